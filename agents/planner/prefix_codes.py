"""Codes without error whose length follows the key and the candidate: mixtures of dyadic prefix codes, known state.

Given the key, a state has a prefix code: candidate x stands for a word of n(x) bits, no word begins another one, and
the words leave no gap, sum_x 2^-n(x) = 1. The encoder reads message bits until they are a word and sends its candidate,
so the candidate has probability 2^-n(x) and tells n(x) bits. The key chooses among several codes with chances pi_k, so
that the mean law is the one that is wanted. The most bits are a linear programme over all such codes,

    max sum_k pi_k sum_x n_k(x) 2^-n_k(x),    sum_k pi_k 2^-n_k(x) = q(x),

solved by column generation. With prices a(x) of the candidates the code to add maximises sum_x 2^-n(x) (n(x) - a(x)).
Cheap candidates get short words there, and the number of words of each length is found by dynamic programming over
depth, candidates used and open nodes. The value of that code bounds what is left to gain.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from wm_env.common.arrays import Floats, Ints
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.law import occupations
from wm_env.optimum import solve
from wm_env.tree import StateTree

_DEEPEST = 14
"""Longest word; candidates of less than 2^-14 are in codes of small chance."""
_SMOOTHINGS = ((0.97, 0.9, 0.8), (0.95, 0.85, 0.7), (0.5, 0.2, 0.0))
"""Shares of the entropic prices in the prices at which a round seeks codes. Large shares find good codes early; small
ones, at the programme's own prices, the last that are missing."""
_NO_MASS = 1e-12


@dataclass(frozen=True)
class PrefixCode:
    """The codes of a state, among which the key chooses.

    Attributes:
        chances: pi_k, shape (K,), sums to 1.
        lengths: n_k(x), shape (K, Q); -1 where the code does not use the candidate.
        bits: E[n], bits per block.
        bound: no mixture of prefix codes of words up to 14 bits with this law has more.
    """

    chances: Floats
    lengths: Ints
    bits: float
    bound: float

    @property
    def law(self) -> Floats:
        """The law of the candidate that an observer without the key sees, shape (Q,)."""
        mean: Floats = self.chances @ np.where(self.lengths >= 0, 0.5 ** np.maximum(self.lengths, 0), 0)
        return mean

    def words(self, key: float) -> list[str]:
        """The word of every candidate under a key in [0, 1), as a string of bits; "-" for an unused one.

        Words of equal length are numbered by candidate, shorter words come first (a canonical code).
        """
        number = min(int(np.searchsorted(self.chances.cumsum(), key, side="right")), len(self.chances) - 1)
        lengths = self.lengths[number]
        words, value, before = ["-"] * len(lengths), 0, 0
        for x in np.argsort(lengths, kind="stable").tolist():
            if lengths[x] >= 0:
                value <<= int(lengths[x]) - before
                before = int(lengths[x])
                words[x] = format(value, f"0{before}b") if before else ""
                value += 1
        return words


@dataclass(frozen=True)
class PrefixPlan:
    """Codes without error for every state of a tree.

    Attributes:
        codes: of every block, one for each state.
        bits: sum_b E[n] in bits per text, without a single error for a decoder that knows the states.
        cost: sum_b gamma^b c_b of the laws that the codes send.
        most: no code of any kind has more bits without error within the budget: H(X|S) at its best, summed over blocks.
    """

    codes: tuple[tuple[PrefixCode, ...], ...]
    bits: float
    cost: float
    most: float


@usual_torch()
def plan_prefix_codes(tree: StateTree, epsilon: float, gap: float = 0.02, rounds: int = 8) -> PrefixPlan:
    """Codes whose laws are those of the highest entropy within the budget.

    Args:
        tree: the states and their covers.
        epsilon: bound on sum_b c_b.
        gap: bits per block of a state at which its column generation stops.
        rounds: most rounds of column generation; 8 reach 97 to 98 % of the entropy in a quarter of a second a state.

    Raises:
        ValueError: a negative budget.
    """
    best = solve(tree, epsilon)
    codes = tuple(tuple(prefix_codes(law.numpy(), gap, rounds)) for law in best.marginals)
    bits = cost = 0.0
    for reach, block, of_block in zip(
        occupations(tree, [np.stack([code.law for code in each]) for each in codes]), tree.blocks, codes, strict=True
    ):
        bits += float(reach @ np.array([code.bits for code in of_block]))
        sent = np.stack([code.law for code in of_block])
        cost += float(reach @ np.abs(sent - block.cover).sum(1)) / 2
    return PrefixPlan(codes, bits, cost, best.rate)


def encode_block(code: PrefixCode, message: str, key: float) -> int:
    """The candidate whose word `message`, a string of bits that is long enough, begins with.

    Raises:
        ValueError: the message ends inside every word.
    """
    for x, word in enumerate(code.words(key)):
        if word != "-" and message.startswith(word):
            return x
    raise ValueError(f"{len(message)} message bits are too few for a word: pad the message")


def decode_block(code: PrefixCode, candidate: int, key: float) -> str:
    """The message bits that a candidate tells.

    Raises:
        ValueError: a candidate that is not sent under this key.
    """
    word = code.words(key)[candidate]
    if word == "-":
        raise ValueError(f"candidate {candidate} is not sent under this key")
    return word


_NOTHING = PrefixCode(np.ones(1), np.zeros((1, 1), dtype=np.int64), 0.0, np.inf)


def prefix_codes(laws: Floats, gap: float = 0.02, rounds: int = 8) -> list[PrefixCode]:
    """Mixtures of prefix codes for every law, shape (N, Q), within `gap` bits of the best of all mixtures if `rounds`
    of column generation are enough; `PrefixCode.bound` says how near they are.
    """
    laws = np.where(laws > _NO_MASS, laws, 0)
    laws = laws / laws.sum(1, keepdims=True)
    columns: list[list[Ints]] = [_single_candidates(law) for law in laws]
    for number, lengths in _peeled(laws):
        columns[number].append(lengths)
    entropic = -np.log2(np.where(laws > 0, laws, 1))
    found: list[PrefixCode] = [_NOTHING] * len(laws)
    bounds = np.full(len(laws), np.inf)
    prices = entropic.copy()
    open_states = np.arange(len(laws))
    for turn in range(rounds):
        for number in open_states.tolist():
            found[number], prices[number] = _mixture(laws[number], np.array(columns[number]))
        # Between the programme's own prices, which jump about, and those of a code as good as the entropy.
        for smoothing in _SMOOTHINGS[turn % len(_SMOOTHINGS)]:
            asked = smoothing * entropic[open_states] + (1 - smoothing) * prices[open_states]
            added, worth = _best_codes(asked, laws[open_states] > 0)
            # Chances sum to 1, so at any prices no mixture has more than they cost and the best code adds to that.
            bounds[open_states] = np.minimum(bounds[open_states], (laws[open_states] * asked).sum(1) + worth)
            for number, lengths in zip(open_states.tolist(), added, strict=True):
                columns[number].append(lengths)
        bits = np.array([found[number].bits for number in open_states])
        open_states = open_states[bounds[open_states] - bits > gap]
        if not len(open_states):
            break
    return [replace(code, bound=float(bound)) for code, bound in zip(found, bounds, strict=True)]


def _single_candidates(law: Floats) -> list[Ints]:
    """Codes of one candidate and no bits: with them every law is a mixture."""
    single = np.full((len(law), len(law)), -1, dtype=np.int64)
    np.fill_diagonal(single, 0)
    return list(single[law > 0])


def _peeled(laws: Floats) -> list[tuple[int, Ints]]:
    """Good codes to begin with: the nearest to what is left of each law, as much of it as fits, again and again."""
    left = laws.copy()
    codes: list[tuple[int, Ints]] = []
    for _ in range(laws.shape[1]):
        rows = np.flatnonzero(left.sum(1) > 1e-6)
        if not len(rows):
            break
        shares = left[rows] / left[rows].sum(1, keepdims=True)
        # The code of the least divergence from a law has prices -log2 of the law.
        lengths, _ = _best_codes(-np.log2(np.maximum(shares, 1e-300)), shares > 0)
        sent = np.where(lengths >= 0, 0.5 ** np.maximum(lengths, 0), 0)
        ratio = np.divide(left[rows], sent, out=np.full_like(sent, np.inf), where=sent > 0).min(1)
        left[rows] = np.maximum(left[rows] - ratio[:, None] * sent, 0)
        left[left < 1e-12] = 0
        codes += zip(rows.tolist(), lengths, strict=True)
    return codes


def _mixture(law: Floats, lengths: Ints) -> tuple[PrefixCode, Floats]:
    """The best mixture of the given codes, shape (K, Q), and the prices of the candidates."""
    present = law > 0
    sent = np.where(lengths >= 0, 0.5 ** np.maximum(lengths, 0), 0)
    gains = (sent * np.maximum(lengths, 0)).sum(1)
    answer = linprog(-gains, A_eq=sent[:, present].T, b_eq=law[present], method="highs")
    # The solver meets the law to its tolerance. Where it does not, codes of one candidate make up for the rest.
    if answer.x is None:
        raise ValueError(f"no mixture of codes found for a law ({answer.message}): is it a probability law?")
    chances = np.maximum(answer.x, 0)
    mean = chances @ sent
    chances *= np.divide(law, mean, out=np.full_like(law, np.inf), where=mean > 0)[present].min()
    rest = np.maximum(law - chances @ sent, 0)
    chances = np.append(chances, rest)
    codes = np.concatenate([lengths, np.where(np.eye(len(law), dtype=np.bool_), 0, -1)])
    used = chances > 0
    chances, codes = chances[used] / chances[used].sum(), codes[used]
    gains = np.append(gains, np.zeros(len(law)))[used]
    prices = np.zeros(len(law))
    prices[present] = -answer.eqlin.marginals
    return PrefixCode(chances, codes, float(gains @ chances), np.inf), prices


def _best_codes(prices: Floats, present: NDArray[np.bool_]) -> tuple[Ints, Floats]:
    """The code of every state with the largest sum_x 2^-n(x) (n(x) - a(x)), shape (N, Q), and this sum, shape (N,).

    best[d][:, i, m] is the most that candidates i, i + 1, ... add in order of price, when m nodes are open at depth d:
    j of them become the words of the next j candidates, the others two nodes each.
    """
    states, candidates = prices.shape
    order = np.argsort(np.where(present, prices, np.inf), axis=1, kind="stable")
    sorted_prices = np.take_along_axis(np.where(present, prices, 0), order, axis=1)
    sums = np.concatenate([np.zeros((states, 1)), sorted_prices.cumsum(1)], axis=1)
    able = present.sum(1)
    deepest = min(_DEEPEST, candidates - 1)
    index = np.arange(candidates + 1)
    choice = np.zeros((deepest + 1, states, candidates + 1, candidates + 1), dtype=np.uint8)
    below = np.full((states, candidates + 1, candidates + 1), -np.inf)
    below[:, :, 0] = 0
    for depth in range(deepest, -1, -1):
        best = np.full_like(below, -np.inf)
        best[:, :, 0] = 0
        for opened in range(1, candidates + 1):
            for leaves in range(max(0, opened - candidates // 2), opened + 1):
                split = 2 * (opened - leaves)
                if depth == deepest and split:
                    continue
                start, end = index[: candidates + 1 - leaves], index[leaves:]
                value = 0.5**depth * (depth * leaves - (sums[:, end] - sums[:, start])) + below[:, end, split]
                value = np.where(end + split <= able[:, None], value, -np.inf)
                better = value > best[:, start, opened]
                best[:, start, opened] = np.where(better, value, best[:, start, opened])
                choice[depth][:, start, opened] = np.where(better, leaves, choice[depth][:, start, opened])
        below = best
    lengths = np.full((states, candidates), -1, dtype=np.int64)
    rows = np.arange(states)
    used, nodes = np.zeros(states, dtype=np.int64), np.ones(states, dtype=np.int64)
    place = np.full((states, candidates), -1, dtype=np.int64)
    for depth in range(deepest + 1):
        ending = np.where(nodes > 0, choice[depth][rows, used, nodes], 0).astype(np.int64)
        inside = (np.arange(candidates) >= used[:, None]) & (np.arange(candidates) < (used + ending)[:, None])
        place[inside] = depth
        used, nodes = used + ending, 2 * (nodes - ending)
    np.put_along_axis(lengths, order, place, axis=1)
    return lengths, below[:, 0, 1]
