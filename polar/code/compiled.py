"""What every compiled kernel of this package has in common: the two formulas of a node, and the steps of a pass.

A kernel works on soft bits, E[(-1)^V] = P(V = 0) - P(V = 1) = tanh(LLR / 2), in [-1, 1]. With soft bits (a, b) of two
independent bits, that of their sum is a b. Once the sum is known, with sign s = (-1)^sum, that of the second bit is
(b + s a) / (1 + s a b). Neither formula needs a logarithm or an exponential.
"""

import itertools
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from polar.compiling import compiled
from wm_env.common.arrays import Floats, Ints

Bools = NDArray[np.bool_]
Bits = NDArray[np.uint8]

KNOWN, FREE, SUM, SECOND, STORE, COMBINE = range(6)
"""Steps of a pass; see `schedule`."""

LEAST = 1e-30
"""What stands for 0 where a number is divided by or its logarithm taken."""


def soft_bits(llr: NDArray[np.floating], out: Floats) -> Floats:
    """tanh(LLR / 2), written to `out`, of the same shape (F, n)."""
    if llr.dtype == out.dtype == np.float32:
        _soft_singles(llr, out)
    else:
        np.multiply(llr, 0.5, out=out)
        np.tanh(out, out=out)
    return out


@compiled
def _soft_singles(llr: NDArray[np.floating], out: Floats) -> None:
    """tanh(LLR / 2) in float32 to some 4e-7, in a fifth of the time of numpy's, which is half of the decoder's.

    With w = LLR / 8, tanh w is the seventh convergent of Lambert's continued fraction w / (1 + w^2 / (3 + w^2 / (5 +
    ...))), and tanh 2w = 2 tanh w / (1 + tanh^2 w), twice. From an LLR of 24 on the result is 1 anyway.
    """
    kind = out.dtype.type
    one, two, far, share = kind(1), kind(2), kind(3), kind(0.125)
    a, b, c, d, e, f = kind(135135), kind(17325), kind(378), kind(62370), kind(3150), kind(28)
    for frame in range(len(llr)):
        seen, written = llr[frame], out[frame]
        for i in range(len(seen)):
            w = min(max(seen[i] * share, -far), far)
            square = w * w
            t = w * (a + square * (b + square * (c + square))) / (a + square * (d + square * (e + square * f)))
            t = two * t / (one + t * t)
            written[i] = two * t / (one + t * t)


@compiled
def sum_soft(soft: Floats, at: int, half: int) -> None:
    """Soft bits of the sums of two halves: [at, at + 2 half) to [at / 2, at / 2 + half)."""
    upper, lower, out = soft[at : at + half], soft[at + half : at + 2 * half], soft[at // 2 : at // 2 + half]
    for i in range(half):
        out[i] = upper[i] * lower[i]


@compiled
def second_bit(turned: float, other: float, one: float, least: float) -> float:
    """The soft bit (turned + other) / (1 + turned other) of the second half; `one` and `least` fix its type.

    Two certain bits that contradict each other leave nothing known: 0.
    """
    value = (turned + other) / max(one + turned * other, least)
    return min(max(value, -one), one)


@compiled
def second_soft(upper: Floats, lower: Floats, signs: Floats, out: Floats) -> None:
    """Soft bits of the second half once the signs of the sums are known."""
    # Constants of the arrays' own type: a float64 would make float32 arithmetic four times slower.
    one, least = out.dtype.type(1), out.dtype.type(LEAST)
    for i in range(len(out)):
        out[i] = second_bit(upper[i] * signs[i], lower[i], one, least)


@compiled
def transform_signs(signs: Floats, step: int) -> None:
    """The polar transform of signs in place, on rows of `step` numbers each."""
    while step < len(signs):
        for first in range(0, len(signs), 2 * step):
            upper, lower = signs[first : first + step], signs[first + step : first + 2 * step]
            for i in range(step):
                upper[i] *= lower[i]
        step *= 2


def schedule(forced: Bools, prune_known: bool, prune_free: bool) -> Ints:
    """The steps of a pass over n positions, depth first; rows (step, first position, positions), int64.

    SUM and SECOND make the soft bits of a node's halves, STORE keeps the word of its first half, COMBINE makes the
    node's word of both. KNOWN and FREE are nodes all of whose bits are forced, or none: single positions, or with
    `prune_known` and `prune_free` the largest such nodes. With both the sums in front of a KNOWN first half are left
    out, since nothing depends on them.

    Raises:
        ValueError: the number of positions is not a power of two.
    """
    positions = len(forced)
    if positions < 1 or positions & (positions - 1):
        raise ValueError(f"the number of positions must be a power of two, got {positions}")
    return _schedule(forced.tobytes(), prune_known, prune_free)


@lru_cache(maxsize=64)
def _schedule(mask: bytes, prune_known: bool, prune_free: bool) -> Ints:
    before = [0, *itertools.accumulate(mask)]
    steps: list[tuple[int, int, int]] = []

    def visit(first: int, length: int) -> None:
        count = before[first + length] - before[first]
        if count == length and (prune_known or length == 1):
            steps.append((KNOWN, first, length))
        elif count == 0 and (prune_free or length == 1):
            steps.append((FREE, first, length))
        else:
            half = length // 2
            if not (prune_known and prune_free and before[first + half] - before[first] == half):
                steps.append((SUM, first, length))
            visit(first, half)
            steps.extend(((STORE, first, half), (SECOND, first, length)))
            visit(first + half, half)
            steps.append((COMBINE, first, length))

    visit(0, len(mask))
    return np.array(steps, dtype=np.int64)
