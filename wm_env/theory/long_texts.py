"""Texts of many blocks whose states are drawn independently: exact limits of their messages, exact total variation.

Both ends know the states, as in the theorem's model. A text x^n of the law p^n has information I = sum_b -log2
p(x_b|s_b), and with any amount of shared key the success probability of l bits at total variation 0 is at most

    U_n = sum min(p(x^n), 2^-l) = E min(1, 2^(I - l)),

reached by `polar.text.offset_coding`; at total variation t of the whole text it is at most U_n + t. The total variation
of a text whose blocks have the laws q is V(q^n, p^n) = E_p (1 - 2^D)+, D = sum_b log2 q(x_b|s_b) / p(x_b|s_b).

The laws of the sums I and D are convolutions of one block's law on a grid. Every block's value is rounded down for one
bound and up for the other, so the truth lies between them; the grid is as fine as memory allows.
"""

from dataclasses import dataclass

import numpy as np

from wm_env.common.arrays import Floats

_POINTS = 1 << 22
"""Most points of a grid."""
_FINEST = 2.0**-14
_SLACK = 1e-11
"""More than the rounding of a transform of 2^22 points whose entries sum to 1."""


@dataclass(frozen=True)
class Bounds:
    """The truth is at least `lower` and at most `upper`."""

    lower: float
    upper: float


@dataclass(frozen=True)
class LongMessage:
    """The longest message within an error probability, in whole bits.

    Attributes:
        reached: a code has it.
        limit: no code has more.
    """

    reached: int
    limit: int


def text_success(covers: Floats, state_probs: Floats, blocks: int, message_bits: float) -> Bounds:
    """U_n of l message bits in n blocks: the success probability at TV 0, any key.

    Args:
        covers: p(x|s), shape (N, Q).
        state_probs: law of each block's state, shape (N,).
        blocks: n >= 1.
        message_bits: l >= 0.
    """
    spectra = _information_spectra(covers, state_probs, blocks)
    lower, upper = (float(chances @ np.exp2(np.minimum(values - message_bits, 0))) for values, chances in spectra)
    return Bounds(max(lower - _SLACK, 0.0), min(upper + _SLACK, 1.0))


def longest_message(
    covers: Floats, state_probs: Floats, blocks: int, block_error: float, variation: float = 0.0
) -> LongMessage:
    """The most bits whose error probability is at most `block_error`, at this total variation of the whole text.

    Arguments as of `text_success`. The limit holds for any key; `reached` needs enough of it.
    """
    wanted = 1 - block_error - variation
    found = []
    for (values, chances), slack in zip(
        _information_spectra(covers, state_probs, blocks), (-_SLACK, _SLACK), strict=True
    ):
        low, high = 0, int(np.ceil(values[-1])) + 64
        while high - low > 1:
            middle = (low + high) // 2
            success = float(chances @ np.exp2(np.minimum(values - middle, 0))) + slack
            low, high = (middle, high) if success >= wanted else (low, middle)
        found.append(low)
    return LongMessage(*found)


def product_variation(laws: Floats, covers: Floats, state_probs: Floats, blocks: int) -> Bounds:
    """V(q^n, p^n) of n blocks with independent states, in [0, 1]; at most n times that of a block.

    Args:
        laws: q(x|s), shape (N, Q), zero where the cover is.
        covers, state_probs, blocks: as in `text_success`.
    """
    chances = (state_probs[:, None] * covers)[covers > 0]
    with np.errstate(divide="ignore"):
        ratios = np.log2(laws[covers > 0] / covers[covers > 0])
    # Where q is 0 the observer is certain; such texts add their whole mass under p.
    possible = np.isfinite(ratios)
    certain = 1 - float(chances[possible].sum()) ** blocks
    bounds = []
    for upwards in (True, False):
        values, spectrum = _sum_spectrum(ratios[possible], chances[possible], blocks, upwards)
        bounds.append(certain + float(spectrum @ np.maximum(1 - np.exp2(values), 0)))
    return Bounds(max(bounds[0] - _SLACK, 0.0), min(bounds[1] + _SLACK, 1.0))


@dataclass(frozen=True)
class Tilted:
    """Laws q proportional to p^a, the flattest whose texts stay within a total variation.

    Attributes:
        exponent: a, in (0, 1].
        laws: q(x|s), shape (N, Q).
        variation: of the whole text, bounded as in `product_variation`; its upper bound is within the budget.
    """

    exponent: float
    laws: Floats
    variation: Bounds


def tilt_texts(covers: Floats, state_probs: Floats, blocks: int, variation: float, steps: int = 30) -> Tilted:
    """Spend a budget for the total variation of whole texts on entropy, by one exponent for all blocks.

    For a budget of the divergence D(q || p) the tilted law is the best (`wm_env.criteria.costs.KLDivergence`).

    Args:
        covers, state_probs, blocks: as in `text_success`.
        variation: budget for V(q^n, p^n), in [0, 1].
        steps: halvings of the exponent's interval.
    """
    low, high = 0.0, 1.0
    best = Tilted(1.0, covers, Bounds(0.0, 0.0))
    for _ in range(steps):
        exponent = (low + high) / 2
        weights = np.where(covers > 0, np.where(covers > 0, covers, 1) ** exponent, 0)
        laws = weights / weights.sum(1, keepdims=True)
        spent = product_variation(laws, covers, state_probs, blocks)
        if spent.upper <= variation:
            best, high = Tilted(exponent, laws, spent), exponent
        else:
            low = exponent
    return best


def pinsker_bound(laws: Floats, covers: Floats, state_probs: Floats, blocks: int) -> float:
    """sqrt(n D(p || q) ln 2 / 2) by Pinsker's inequality, D in bits; at most 1, and 1 where the divergence is
    infinite."""
    kept = covers > 0
    with np.errstate(divide="ignore"):
        terms = np.where(kept, covers * np.log2(np.where(kept, covers, 1) / np.where(kept, laws, 1)), 0)
    return float(min(1.0, np.sqrt(blocks * (state_probs @ terms.sum(1)) * np.log(2) / 2)))


def _information_spectra(covers: Floats, state_probs: Floats, blocks: int) -> list[tuple[Floats, Floats]]:
    """The law of I, rounded down and rounded up."""
    chances = (state_probs[:, None] * covers)[covers > 0]
    information = -np.log2(covers[covers > 0])
    return [_sum_spectrum(information, chances, blocks, upwards) for upwards in (False, True)]


def _sum_spectrum(values: Floats, chances: Floats, count: int, upwards: bool) -> tuple[Floats, Floats]:
    """Values and probabilities of the sum of `count` independent values, each rounded to the grid in one direction."""
    width = max(float(values.max() - values.min()), 1e-9)
    # The number of points of the sum's grid is a power of two, so that the transform is fast and exact to rounding.
    step = max(_FINEST, 2.0 ** np.ceil(np.log2((width + _FINEST) * count / _POINTS)))
    place = (np.ceil if upwards else np.floor)(values / step).astype(np.int64)
    first = int(place.min())
    single = np.bincount(place - first, chances)
    length = (len(single) - 1) * count + 1
    points = 1 << (length - 1).bit_length()
    spectrum = np.fft.irfft(np.fft.rfft(single, points) ** count, points)[:length]
    return (count * first + np.arange(length)) * step, np.maximum(spectrum, 0)
