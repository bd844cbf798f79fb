"""Theorem 1 as software: the covert capacity of a memoryless cover, exactly or with a restricted number of labels.

For a cover (P_S, P_X|S) the theorem maximises I(U;X) - I(U;S) over P(u|x,s), with P_XS held fixed. Without a limit
on the number of labels the maximum is H(X|S): U = X attains it, and I(U;X) - I(U;S) = I(U;X|S) - I(U;S|X) <= H(X|S)
for every U. A real optimisation remains when there are fewer labels than tokens, or when the decoder sees the text
through a channel, Y instead of X; then the rate is I(U;Y) - I(U;S) = H(U|S) - H(U|Y).

Behind a channel the maximum over labels of any number is a convex programme: `wm_env.theory.channel_capacity`. Up to
|X| |S| labels may be needed there, so with fewer `best_rate` may stay below it.

`best_rate` climbs by the update P(u|x,s) <- P(u|x,s) exp(E[ln P(u|Y) | x]) / P(u|s), renormalised over u; without a
channel that is P(u|x,s) P(u|x) / P(u|s). It maximises a lower bound that is tight at the current point: -H(U|Y) is at
least the expected log-likelihood under the current P(u|y) (Gibbs), and H(U|S) at least its tangent minus
D(P(u|x,s) || current) (data processing). So the rate never falls, and every fixed point is stationary.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Annotated

from wm_env.common.command import exit_code, quitting_on_interrupt, run_command, say
from wm_env.common.help import paragraph_help

with quitting_on_interrupt(__name__):
    import torch
    import tyro
    from torch import Tensor

    from wm_env.common.arguments import parse_subcommand
    from wm_env.common.files import check_seed, read_json
    from wm_env.common.json_values import read_as
    from wm_env.information import entropy, measure
    from wm_env.law import BlockLaw
    from wm_env.theory.channel_capacity import MOST_MAPS, channel_capacity, count_maps

TINY = 1e-300

LARGEST_SEARCH = 1 << 27
"""Most numbers in the starting points of a search: 1 GiB, of which a step takes several."""

MOST_TOKENS = 256
"""Largest vocabulary of the table of pairs; its last row has 32 640 states."""


@dataclass(frozen=True)
class Cover:
    """A memoryless cover: one token X per state S, and what the decoder sees of it.

    Attributes:
        state_probs: P(s), shape (N,), sums to 1.
        cover: P(x|s) over the state's candidates, shape (N, Q), rows sum to 1.
        symbol: token number of every candidate, shape (N, Q), int64.
        channel: P(y|x), shape (tokens, Y), rows sum to 1; None where the decoder sees X itself.
    """

    state_probs: Tensor
    cover: Tensor
    symbol: Tensor
    channel: Tensor | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens in the union over all states."""
        return int(self.symbol.max()) + 1 if self.channel is None else len(self.channel)


@dataclass(frozen=True)
class BestLabelling:
    """The best labelling that a search found.

    Attributes:
        rate: I(U;Y) - I(U;S), bits per token.
        key_rate: I(U;X|S), bits per token: the observer sees X, whatever the decoder sees.
        assignment: P(u|x,s), shape (N, Q, M), rows sum to 1.
        rates: the rate that every restart reached, shape (restarts,).
    """

    rate: float
    key_rate: float
    assignment: Tensor
    rates: Tensor


@dataclass(frozen=True)
class Corollary:
    """The paper's Corollary: the labels are the parts of a balanced partition of the vocabulary.

    Attributes:
        rate: bits per token, exact.
        key_rate: bits per token, equal to the rate because U is a function of X.
        partition: the token numbers of every label.
    """

    rate: Fraction
    key_rate: Fraction
    partition: tuple[tuple[int, ...], ...]


def dense_cover(state_probs: Tensor, cover: Tensor, channel: Tensor | None = None) -> Cover:
    """Every token is a candidate of every state, with P(x|s) = `cover` of shape (N, tokens).

    Raises:
        ValueError: an argument is not a (conditional) law, or the shapes do not fit.
    """
    states, tokens = cover.shape
    if state_probs.shape != (states,) or (channel is not None and (channel.ndim != 2 or len(channel) != tokens)):
        raise ValueError(f"P(s) must have {states} entries and P(y|x) {tokens} rows, as P(x|s) has {states} x {tokens}")
    named = {"P(s)": state_probs, "P(x|s)": cover} | ({} if channel is None else {"P(y|x)": channel})
    for name, law in named.items():
        if not (law >= 0).all() or ((law.sum(-1) - 1).abs() > 1e-9).any():
            raise ValueError(f"{name} is not a probability law: entries must be >= 0 and sum to 1")
    symbol = torch.arange(tokens).expand(states, tokens)
    return Cover(state_probs.double(), cover.double(), symbol, None if channel is None else channel.double())


def pair_cover(vocabulary: int, channel: Tensor | None = None) -> Cover:
    """The Corollary's cover: a state is a pair of tokens, all pairs and both tokens of a pair equally likely.

    Raises:
        ValueError: fewer than 2 tokens.
    """
    if vocabulary < 2:
        raise ValueError(f"a pair needs a vocabulary of at least 2 tokens, got {vocabulary}")
    pairs = torch.tensor(list(combinations(range(vocabulary), 2)))
    states = len(pairs)
    uniform = torch.full((states,), 1 / states, dtype=torch.float64)
    return Cover(uniform, torch.full((states, 2), 0.5, dtype=torch.float64), pairs, channel)


def token_substitution(tokens: int, probability: float) -> Tensor:
    """P(y|x) of an editor who replaces a token by another, uniformly chosen one; shape (tokens, tokens).

    Raises:
        ValueError: the probability is outside [0, 1], or there is nothing to replace by.
    """
    if not 0 <= probability <= 1 or tokens < 2:
        raise ValueError(f"substitution needs a probability in [0, 1] and 2 tokens, got {probability} and {tokens}")
    channel = torch.full((tokens, tokens), probability / (tokens - 1), dtype=torch.float64)
    return channel.fill_diagonal_(1 - probability)


def cover_entropy(cover: Cover) -> float:
    """H(X|S) of what is sent, in bits per token."""
    return float(cover.state_probs @ entropy(cover.cover))


def capacity(cover: Cover) -> float:
    """The covert capacity H(X|S) in bits per token, and the key rate that reaches it: both ends see X.

    Raises:
        ValueError: the decoder sees X through a channel, which has no closed form; use `best_rate`.
    """
    if cover.channel is not None:
        raise ValueError("H(X|S) is the capacity without a channel only: use best_rate")
    return cover_entropy(cover)


def corollary(vocabulary: int, labels: int = 2) -> Corollary:
    """The rate of a balanced partition of the vocabulary under `pair_cover`.

    It is the share of the C(V,2) pairs of tokens that the partition separates. With two labels that is
    floor(V^2/4) / C(V,2), the paper's Corollary; with more it is the number of edges of a Turan graph over C(V,2).

    Raises:
        ValueError: fewer than 2 tokens or no label.
    """
    if vocabulary < 2 or labels < 1:
        raise ValueError(f"needs at least 2 tokens and 1 label, got {vocabulary} and {labels}")
    partition = tuple(tuple(range(label, vocabulary, labels)) for label in range(labels))
    inside = sum(math.comb(len(part), 2) for part in partition)
    rate = 1 - Fraction(inside, math.comb(vocabulary, 2))
    return Corollary(rate=rate, key_rate=rate, partition=partition)


def partition_assignment(cover: Cover, label_of_token: Tensor, labels: int) -> Tensor:
    """P(u|x,s) where the label is a function of the token, given as label numbers of shape (tokens,)."""
    return torch.nn.functional.one_hot(label_of_token[cover.symbol], labels).double()


def block_law(cover: Cover, assignment: Tensor) -> BlockLaw:
    """The joint law P(S,U,X) of a cover and P(u|x,s) of shape (..., N, Q, M): P(u|s) and W(x|u,s).

    A label that a state never uses gets the cover itself as its W.
    """
    joint = (cover.cover[..., None] * assignment).transpose(-1, -2)
    p_label = joint.sum(-1)
    p_candidate = torch.where(p_label[..., None] > 0, joint / p_label[..., None].clamp_min(TINY), cover.cover[:, None])
    return BlockLaw(cover.state_probs, cover.cover, cover.symbol, p_label, p_candidate)


def received_label_probs(cover: Cover, assignment: Tensor) -> Tensor:
    """P(y, u), shape (..., Y, M): the label together with what the decoder sees."""
    mass = (cover.state_probs[:, None] * cover.cover)[..., None] * assignment
    by_token = mass.new_zeros(*mass.shape[:-3], cover.tokens, mass.shape[-1])
    by_token.index_add_(-2, cover.symbol.reshape(-1), mass.flatten(-3, -2))
    return by_token if cover.channel is None else cover.channel.T @ by_token


def rate_of(cover: Cover, assignment: Tensor) -> Tensor:
    """I(U;Y) - I(U;S) = H(U|S) - H(U|Y) of P(u|x,s), bits per token, shape (...)."""
    p_label = (cover.cover[..., None] * assignment).sum(-2)
    received = received_label_probs(cover, assignment)
    h_u_given_y = entropy(received, (-1, -2)) - entropy(received.sum(-1))
    return entropy(p_label) @ cover.state_probs - h_u_given_y


def climb(cover: Cover, assignment: Tensor) -> Tensor:
    """One monotone update of P(u|x,s), shape (..., N, Q, M)."""
    received = received_label_probs(cover, assignment).clamp_min(TINY)
    log_posterior = received.log() - received.sum(-1, keepdim=True).log()
    if cover.channel is not None:
        log_posterior = cover.channel @ log_posterior
    p_label = (cover.cover[..., None] * assignment).sum(-2, keepdim=True).clamp_min(TINY)
    logits = assignment.clamp_min(TINY).log() + log_posterior[..., cover.symbol, :] - p_label.log()
    return logits.softmax(-1)


def best_rate(
    cover: Cover,
    labels: int,
    generator: torch.Generator,
    restarts: int = 32,
    iterations: int = 5000,
    tolerance: float = 1e-12,
) -> BestLabelling:
    """The largest I(U;Y) - I(U;S) with at most `labels` values of U, by `climb` from random starts, all at once.

    The problem is not concave: the result is a lower bound on the maximum, and reaches it if a start lies in its basin.

    Args:
        cover: the cover, with or without a channel.
        labels: M, at least 1.
        generator: source of the starting points.
        restarts: number of starting points.
        iterations: updates at most.
        tolerance: stop when 20 updates gain less than this many bits in every restart.

    Raises:
        ValueError: no label, restart or update, or more starting points than memory holds.
    """
    if labels < 1 or restarts < 1 or iterations < 1:
        raise ValueError(f"labels={labels}, restarts={restarts}, iterations={iterations}: at least 1 of each is needed")
    shape = (restarts, *cover.cover.shape, labels)
    if math.prod(shape) > LARGEST_SEARCH:
        raise ValueError(
            f"restarts={restarts} with labels={labels} need more than {LARGEST_SEARCH} numbers: take fewer restarts"
        )
    assignment = (2 * torch.randn(shape, dtype=torch.float64, generator=generator)).softmax(-1)
    rates = rate_of(cover, assignment)
    for iteration in range(iterations):
        assignment = climb(cover, assignment)
        if iteration % 20 == 19:
            before, rates = rates, rate_of(cover, assignment)
            if (rates - before).max() < tolerance:
                break
    rates = rate_of(cover, assignment)
    best = assignment[int(rates.argmax())]
    return BestLabelling(
        rate=float(rate_of(cover, best)),
        key_rate=float(measure(block_law(cover, best)).i_ux_given_s),
        assignment=best,
        rates=rates,
    )


@dataclass(frozen=True)
class PairsTable:
    """Table of the Corollary's cover: its exact value, the best rate with M labels, and H(X|S)."""

    largest: int = 9
    """Largest vocabulary V; the table starts at 2."""
    labels: int = 6
    """Largest number M of labels to search; more than V are of no use."""
    restarts: int = 64
    """Random starts of every search."""
    seed: int = 0
    """Seed of the starting points."""

    def run(self) -> None:
        """Print for V = 2 to `largest` the Corollary's rate, the best rates found with M labels, and H(X|S).

        Raises:
            ValueError: a number is out of its range.
        """
        if not 2 <= self.largest <= MOST_TOKENS:
            raise ValueError(f"largest={self.largest}: a vocabulary of 2 to {MOST_TOKENS} tokens is needed")
        if self.labels < 2:
            raise ValueError(f"labels={self.labels}: at least 2 are needed")
        check_seed(self.seed)
        generator = torch.Generator().manual_seed(self.seed)
        say("Bits per token. In brackets: the best balanced partition into M parts.")
        most = min(self.labels, self.largest)
        searched = "".join(f"{f'M = {labels}':>17}" for labels in range(2, most + 1))
        say(f"{'V':>3}{'Corollary':>16}{searched}{'H(X|S)':>9}")
        for vocabulary in range(2, self.largest + 1):
            cover = pair_cover(vocabulary)
            value = corollary(vocabulary).rate
            cells = []
            for labels in range(2, min(most, vocabulary) + 1):
                found = best_rate(cover, labels, generator, self.restarts).rate
                cells.append(f"{found:>8.4f} [{float(corollary(vocabulary, labels).rate):.4f}]")
            row = "".join(cells).ljust(17 * (most - 1))
            say(f"{vocabulary:>3}{f'{value} = {float(value):.4f}':>16}{row}{capacity(cover):>9.4f}")


@paragraph_help
@dataclass(frozen=True)
class Solve:
    """Best rate of one cover: its capacity behind a channel, or what is found with a restricted number of labels."""

    law: Annotated[Path, tyro.conf.Positional]
    """JSON file: {"state_probs": [P(s)], "cover": [[P(x|s)] per state], "channel": [[P(y|x)] per token], optional}."""
    labels: int | None = None
    """M, the largest number of labels; by default as many as can be of use. Behind a channel the default is the
    capacity, by convex programming, if there are at most 16384 maps of states to tokens."""
    substitution: float | None = None
    """Probability that a token is replaced by another before the decoder sees it; instead of a channel in the file."""
    restarts: int = 32
    """Random starts of the search."""
    iterations: int = 5000
    """Updates at most."""
    seed: int = 0
    """Seed of the starting points."""

    def run(self) -> None:
        """Print the cover's entropy, the best rate and its key rate.

        Raises:
            OSError, ValueError: the file or a number is not what is needed.
        """
        check_seed(self.seed)
        cover = self._read()
        states, tokens = cover.cover.shape
        if cover.channel is not None and self.labels is None and count_maps(cover.cover.numpy()) <= MOST_MAPS:
            self._certify(cover, cover.channel)
            return
        needed = tokens if cover.channel is None else tokens * states
        labels = needed if self.labels is None else self.labels
        generator = torch.Generator().manual_seed(self.seed)
        found = best_rate(cover, labels, generator, self.restarts, self.iterations)
        near = int((found.rates > found.rate - 1e-6).sum())
        say(f"H(X|S)               {cover_entropy(cover):.6f} bits/token")
        say(f"best rate, M = {labels:<5} {found.rate:.6f} bits/token ({near} of {len(found.rates)} starts reached it)")
        say(f"key rate I(U;X|S)    {found.key_rate:.6f} bits/token")

    def _certify(self, cover: Cover, channel: Tensor) -> None:
        found = channel_capacity(cover.state_probs.numpy(), cover.cover.numpy(), channel.numpy())
        say(f"H(X|S)               {cover_entropy(cover):.6f} bits/token")
        say(f"capacity             {found.rate:.6f} bits/token (proven within {found.gap:.0e})")
        say(f"key rate I(U;X|S)    {found.key_rate:.6f} bits/token")

    def _read(self) -> Cover:
        stored = read_as(_CoverFile, read_json(self.law), self.law)
        channel = None if stored.channel is None else _matrix(stored.channel, "channel", self.law)
        cover = _matrix(stored.cover, "cover", self.law)
        if self.substitution is not None:
            if channel is not None:
                raise ValueError("give the channel in the file or a substitution, not both")
            channel = token_substitution(cover.shape[1], self.substitution)
        return dense_cover(torch.tensor(stored.state_probs, dtype=torch.float64), cover, channel)


@dataclass(frozen=True)
class _CoverFile:
    """What the JSON file of a cover holds; see `Cover`."""

    state_probs: tuple[float, ...]
    cover: tuple[tuple[float, ...], ...]
    channel: tuple[tuple[float, ...], ...] | None = None


def _matrix(rows: tuple[tuple[float, ...], ...], name: str, source: Path) -> Tensor:
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise ValueError(f"{source}: {name} needs rows of one length")
    return torch.tensor(rows, dtype=torch.float64)


def main(arguments: list[str] | None = None) -> int:
    """Command line: 0 done, 1 failed on the way, 2 an argument or a file is wrong, 130 interrupted."""
    with quitting_on_interrupt(__name__):
        command: PairsTable | Solve = parse_subcommand(
            {"pairs": PairsTable, "solve": Solve},
            prog="python -m wm_env.theory.capacity",
            description="Covert capacity of a memoryless cover (Theorem 1).",
            args=arguments,
        )
    return exit_code(command.run)


if __name__ == "__main__":
    run_command(main)
