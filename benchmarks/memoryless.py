"""Theorem 1 at long blocks: rates, block errors and total variation of the polar code.

python benchmarks/memoryless.py rates --out docs/figures/memoryless.png
python benchmarks/memoryless.py noisy
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from command import MANY, SEEDS, draw_bits, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import matplotlib.pyplot as plt
    import numpy as np
    import torch
    import tyro
    from matplotlib.axes import Axes
    from scipy.stats import binomtest

    from polar.code.density_evolution import variation_bound
    from polar.code.index_sets import (
        IndexSets,
        Spectrum,
        TokenCode,
        choose_sets,
        divergence,
        expected_dead_ends,
        positions_within,
        spectrum,
        token_code,
    )
    from polar.code.memoryless import decode_tokens, draw_states, encode_tokens
    from wm_env.common.arguments import parse
    from wm_env.common.figures import FIGURE_MARK, figure_format, save_figure
    from wm_env.common.files import check_output
    from wm_env.information import measure
    from wm_env.theory.capacity import (
        Cover,
        block_law,
        capacity,
        dense_cover,
        pair_cover,
        partition_assignment,
        rate_of,
        token_substitution,
    )


@dataclass(frozen=True)
class Scheme:
    """How a frame is filled; the salt grows with n, as its share of the rate falls."""

    name: str
    salted: bool
    tilt: float
    particles: int

    def salt_bits(self, n: int) -> int:
        return min(max(n.bit_length() - 7, 2), 6) if self.salted else 0


PLAIN = Scheme("plain filling", salted=False, tilt=0.0, particles=1)
AHEAD = Scheme("16 drafts, salt", salted=True, tilt=0.43, particles=16)


@dataclass(frozen=True)
class Measured:
    """One point: a law, a length, a scheme."""

    n: int
    rate: float
    frames: int
    failures: int
    lost_bits: float
    milliseconds: float

    @property
    def error(self) -> float:
        return self.failures / self.frames

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper-Pearson, 95 %."""
        found = binomtest(self.failures, self.frames).proportion_ci(0.95)
        return float(found.low), float(found.high)


def pairs_code(vocabulary: int, labels: int) -> TokenCode:
    """The Corollary's cover with a balanced partition as the label, neighbouring tokens together."""
    cover = pair_cover(vocabulary)
    label_of_token = torch.arange(vocabulary) * labels // vocabulary
    return token_code(block_law(cover, partition_assignment(cover, label_of_token, labels)))


def dense_code(seed: int = 0) -> tuple[TokenCode, float]:
    """U = X under 8 random states over 4 tokens of full support, where nothing is ever determined; and its H(X|S)."""
    rng = np.random.default_rng(seed)
    state, rows = rng.dirichlet(np.ones(8)), rng.dirichlet(np.ones(4), 8)
    cover = dense_cover(torch.from_numpy(state), torch.from_numpy(rows))
    return token_code(block_law(cover, partition_assignment(cover, torch.arange(4), 4))), capacity(cover)


def sets_at_rate(polarised: Spectrum, rate: float, scheme: Scheme) -> IndexSets:
    """Index sets that carry at least `rate` message bits per token besides their salt."""
    levels, n = polarised.deficit.shape
    salt = scheme.salt_bits(n)
    return choose_sets(polarised, min(math.ceil(rate * n) + levels * salt, levels * n), salt, scheme.tilt)


def simulate(code: TokenCode, sets: IndexSets, scheme: Scheme, options: "Rates") -> Measured:
    """Send frames until there are enough or the time for a point is over."""
    n = sets.message.shape[1]
    batch = max(4, min(options.frames, 2**18 // (n * scheme.particles)))
    generator, rng = torch.Generator().manual_seed(options.seed), np.random.default_rng(options.seed)
    frames = failures = lost = 0
    start = time.process_time()
    while frames < options.frames and time.process_time() - start < options.seconds:
        states = draw_states(code, batch, n, generator)
        messages = draw_bits(rng, batch, sets.message_bits)
        keys = draw_bits(rng, batch, sets.key_bits)
        sent = encode_tokens(code, sets, states, messages, keys, rng, scheme.particles)
        wrong = decode_tokens(code, sets, sent.symbols, keys) != messages
        frames, failures, lost = frames + batch, failures + int(wrong.any(1).sum()), lost + int(wrong.sum())
    spent = time.process_time() - start
    return Measured(n, sets.message_bits / n, frames, failures, lost / frames, spent / frames * 1e3)


@dataclass(frozen=True)
class Rates:
    """Block error and total variation against n at a fixed share of the limit; rate against n for plain filling."""

    out: Path = Path("docs/figures/memoryless.png")
    """Figure file."""
    vocabulary: int = 64
    """V of the Corollary's cover."""
    share: float = 0.9
    """Share of the limiting rate that is sent."""
    smallest: int = 6
    """log2 of the smallest n."""
    largest: int = 16
    """log2 of the largest n."""
    frames: int = 1000
    """Frames per point at most."""
    seconds: float = 60.0
    """CPU time per point after which no further batch is sent."""
    seed: int = 0
    """Seed of states, messages, keys and draws."""
    cache: Path | None = None
    """Folder for the polarised entropies."""

    @property
    def exponents(self) -> range:
        return range(self.smallest, self.largest + 1)

    def run(self) -> None:
        within(self, share=(0, 1), seconds=(0, 10**9))
        check_output(self.out, "name another --out", FIGURE_MARK)
        figure_format(self.out)
        figure, (errors, rates, variation) = plt.subplots(1, 3, figsize=(14, 4.2))
        two, many = pairs_code(self.vocabulary, 2), pairs_code(self.vocabulary, self.vocabulary)
        limit = self.vocabulary**2 // 4 / math.comb(self.vocabulary, 2)
        for name, code, best, colour in (("|U| = 2", two, limit, "C0"), (f"|U| = {self.vocabulary}", many, 1.0, "C1")):
            self.plain_rates(rates, name, code, best, colour)
            for scheme, marker in ((PLAIN, "o:"), (AHEAD, "s-")):
                self.block_errors(errors, name, code, best, scheme, colour + marker)
        self.insisting_variation(variation, two, limit)
        self.dense_variation(variation)
        errors.axhline(0.01, color="grey", linewidth=0.8)
        errors.set(xscale="log", yscale="log", xlabel="n", ylabel="block error", title=f"{self.share:.0%} of the limit")
        rates.set(xscale="log", xlabel="n", ylabel="share of the limit", title="plain filling, dead ends <= 1e-2")
        variation.set(xscale="log", yscale="log", ylim=(1e-8, 2), xlabel="n", ylabel="total variation, upper bound")
        variation.set_title("covertness")
        for axes in (errors, rates, variation):
            axes.set_xscale("log", base=2)
            axes.legend(fontsize=7)
        figure.tight_layout()
        save_figure(figure, self.out)
        print(f"wrote {self.out}")

    def plain_rates(self, axes: Axes, name: str, code: TokenCode, limit: float, colour: str) -> None:
        """The largest rate of plain filling whose expected dead ends, a bound on its block error, are at most 1e-2."""
        shares = []
        for exponent in self.exponents:
            share = positions_within(spectrum(code, exponent, self.cache), 0.02) / 2**exponent / limit
            shares.append(share)
            print(f"{name:<9} n = 2^{exponent:<3} plain rate {share * limit:.4f} = {share:.1%} of the limit")
        axes.plot([2**e for e in self.exponents], shares, "o-", color=colour, label=name)

    def block_errors(self, axes: Axes, name: str, code: TokenCode, limit: float, scheme: Scheme, style: str) -> None:
        """Measured block error with 95 % intervals, printed and drawn."""
        points = []
        for exponent in self.exponents:
            polarised = spectrum(code, exponent, self.cache)
            sets = sets_at_rate(polarised, self.share * limit, scheme)
            if sets.message_bits < self.share * limit * sets.message.shape[1]:
                continue
            point = simulate(code, sets, scheme, self)
            points.append(point)
            low, high = point.interval
            exact = variation_bound(divergence(polarised, sets))
            print(
                f"{name:<9} {scheme.name:<16} n = 2^{exponent:<3} rate {point.rate:.4f}  block error {point.error:.4f} "
                f"[{low:.4f}, {high:.4f}] of {point.frames}  lost bits a frame {point.lost_bits:.3f}  "
                f"TV {exact:.1e}  expected dead ends, plain {expected_dead_ends(polarised, sets):.3g}  "
                f"{point.milliseconds:.2f} ms",
                flush=True,
            )
        draw_errors(axes, points, f"{name}, {scheme.name}", style)

    def insisting_variation(self, axes: Axes, code: TokenCode, limit: float) -> None:
        """Union bound on the dead ends of plain filling: the price in TV of insisting on those bits, |U| = 2."""
        for share, marker in ((0.7, "^"), (0.8, "v"), (0.9, "d")):
            bounds = []
            for exponent in self.exponents:
                polarised = spectrum(code, exponent, self.cache)
                sets = choose_sets(polarised, math.ceil(share * limit * 2**exponent))
                bounds.append(min(1.0, expected_dead_ends(polarised, sets)))
                print(
                    f"|U| = 2 at {share:.0%} of {limit:.4f} bits, n = 2^{exponent:<3} insisting: TV <= {bounds[-1]:.3e}"
                )
            label = f"Corollary, {share:.0%}, if it insisted"
            axes.plot([2**e for e in self.exponents], bounds, marker + ":", color="C0", label=label)

    def dense_variation(self, axes: Axes) -> None:
        """Pinsker bound of plain filling under a law of full support, at several shares of H(X|S)."""
        code, entropy_bits = dense_code(self.seed)
        for share, marker in ((0.7, "^"), (0.8, "v"), (0.9, "d")):
            bounds = []
            for exponent in self.exponents:
                polarised = spectrum(code, exponent, self.cache)
                sets = choose_sets(polarised, math.ceil(share * entropy_bits * 2**exponent))
                bounds.append(variation_bound(divergence(polarised, sets)))
                print(f"dense law {share:.0%} of {entropy_bits:.4f} bits, n = 2^{exponent:<3} TV <= {bounds[-1]:.3e}")
            label = f"full support, {share:.0%} of H(X|S)"
            axes.plot([2**e for e in self.exponents], bounds, marker + "-", color="C2", label=label)


@dataclass(frozen=True)
class Noisy:
    """What the key is for when the decoder sees the text after substitutions: index sets and measured errors."""

    vocabulary: int = 64
    """V of the Corollary's cover; two labels."""
    substitution: float = 0.02
    """Probability that a token is replaced by another."""
    smallest: int = 8
    """log2 of the smallest n."""
    largest: int = 14
    """log2 of the largest n."""
    frames: int = 200
    """Frames per point."""
    seed: int = 0
    """Seed of everything drawn."""
    cache: Path | None = None
    """Folder for the polarised entropies."""

    def run(self) -> None:
        within(self, substitution=(0, 1))
        cover = pair_cover(self.vocabulary)
        assignment = partition_assignment(cover, torch.arange(self.vocabulary) * 2 // self.vocabulary, 2)
        channel = token_substitution(self.vocabulary, self.substitution)
        law = block_law(cover, assignment)
        limit = float(rate_of(Cover(cover.state_probs, cover.cover, cover.symbol, channel), assignment))
        print(f"I(U;Y) - I(U;S) = {limit:.4f}, I(U;X|S) = {float(measure(law).i_ux_given_s):.4f} bits per token")
        code = token_code(law, channel)
        generator, rng = torch.Generator().manual_seed(self.seed), np.random.default_rng(self.seed)
        for exponent in range(self.smallest, self.largest + 1):
            n = 2**exponent
            polarised = spectrum(code, exponent, self.cache)
            sets = choose_sets(polarised, positions_within(polarised, 0.005))
            states = draw_states(code, self.frames, n, generator)
            messages = draw_bits(rng, self.frames, sets.message_bits)
            keys = draw_bits(rng, self.frames, sets.key_bits)
            symbols = encode_tokens(code, sets, states, messages, keys, rng).symbols
            hit = rng.random(symbols.shape) < self.substitution
            moved = (symbols + rng.integers(1, self.vocabulary, symbols.shape)) % self.vocabulary
            wrong = (decode_tokens(code, sets, np.where(hit, moved, symbols), keys) != messages).any(1)
            print(
                f"n = 2^{exponent:<3} message {sets.message_bits / n:.4f}  key {sets.key_bits / n:.4f} bits per token, "
                f"undecodable positions {int(sets.undecodable.sum())}, block error {wrong.mean():.3f}"
            )


def draw_errors(axes: Axes, points: list[Measured], label: str, style: str) -> None:
    """Points with errors on a line, with their intervals; of one without, the upper limit, hollow and by itself: where
    it lies depends on the number of frames only.
    """
    seen, unseen = [p for p in points if p.failures], [p for p in points if not p.failures]
    below, above = [p.error - p.interval[0] for p in seen], [p.interval[1] - p.error for p in seen]
    bars: dict[str, Any] = {"capsize": 2, "markersize": 4}
    axes.errorbar([p.n for p in seen], [p.error for p in seen], [below, above], fmt=style, label=label, **bars)
    limits = [p.interval[1] for p in unseen]
    arrows = [0.3 * limit for limit in limits]
    axes.errorbar([p.n for p in unseen], limits, arrows, fmt=style[:3], uplims=True, markerfacecolor="white", **bars)


Command = Annotated[Rates, tyro.conf.subcommand("rates")] | Annotated[Noisy, tyro.conf.subcommand("noisy")]


def main() -> None:
    options = parse(Command, description=__doc__)
    within(options, vocabulary=(2, 1024), smallest=(1, 20), largest=(options.smallest, 20), frames=MANY, seed=SEEDS)
    torch.set_num_threads(1)
    options.run()


if __name__ == "__main__":
    run_benchmark(main)
