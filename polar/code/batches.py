"""Successive-cancellation decoding of many frames at once, compiled.

Frames lie side by side, so that every step is one vector operation over a few of them. A node whose bits are all
forced, or all free, needs no recursion, and leaving it out changes nothing: free bits under a product law are the
independent bits of the word itself.

Certain bits are exact. Otherwise soft bits end where an LLR reaches 37 nats in float64 and 17 in float32, and count as
certain there. Along a frame that is decoded rightly such a bit is another one with probability below 1e-15 and 1e-7;
behind a wrong decision, certain bits that contradict each other may lead to other wrong ones than exact LLRs.
"""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from polar.code.compiled import (
    COMBINE,
    FREE,
    KNOWN,
    SECOND,
    SUM,
    Bits,
    Bools,
    schedule,
    second_soft,
    soft_bits,
    sum_soft,
    transform_signs,
)
from polar.compiling import compiled
from wm_env.common.arrays import Floats, Ints

_SIDE_BY_SIDE = 16
"""Frames of one vector operation: two cache lines of float64."""
_AT_ONCE = 64
"""Frames whose soft bits are made at once, so that they are still in the cache when they are used."""


def decide(llr: NDArray[np.floating], forced: Bools, values: NDArray[np.integer] | None = None) -> Bits:
    """The free bits of V, each decided given those before it: the likelier value, ties to bit 0.

    Args:
        llr: LLRs of U_1..U_n given what was received, ln P(0) - ln P(1), float32 or float64, shape (F, n), n a power
            of two.
        forced: positions of V that the decoder knows, shape (n,).
        values: their values in the order of the positions, shape (F, forced.sum()); by default all are 0.

    Returns:
        In the order of the positions, shape (F, n - forced.sum()).

    Raises:
        ValueError: n is no power of two, or shapes do not fit.
    """
    if llr.shape[1:] != forced.shape:
        raise ValueError(f"{len(forced)} positions need LLRs of shape (frames, {len(forced)}), got {llr.shape}")
    steps = schedule(forced, prune_known=True, prune_free=True)
    known, free = np.flatnonzero(forced), np.flatnonzero(~forced)
    if values is None:
        known, values = known[:0], np.empty((len(llr), 0), dtype=np.uint8)
    if values.shape != (len(llr), len(known)):
        raise ValueError(
            f"{len(known)} forced positions need values of shape {(len(llr), len(known))}, got {values.shape}"
        )
    decided = np.empty((len(llr), len(free)), dtype=np.uint8)
    # Memory that is used again and again stays in the cache.
    kind = np.float32 if llr.dtype == np.float32 else np.float64
    received = cast(Floats, np.empty((min(_AT_ONCE, len(llr)), len(forced)), dtype=kind))
    soft = cast(Floats, np.zeros(2 * len(forced) * _SIDE_BY_SIDE, dtype=kind))
    signs = cast(Floats, np.empty(len(forced) * _SIDE_BY_SIDE, dtype=kind))
    for first in range(0, len(llr), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        seen = soft_bits(llr[part], received[: len(llr[part])])
        _decide(steps, seen, known, values[part].astype(np.uint8), free, decided[part], soft, signs)
    return decided


@compiled
def _decide(
    steps: Ints, received: Floats, known: Ints, values: Bits, free: Ints, decided: Bits, soft: Floats, signs: Floats
) -> None:
    """Write the free bits of a few frames; `soft` and `signs` are scratch.

    The soft bits of a node of m positions lie at rows m..2m - 1, one frame in every column.
    """
    frames, n = received.shape
    width = _SIDE_BY_SIDE
    soft_rows, sign_rows = soft.reshape(2 * n, width), signs.reshape(n, width)
    one = signs.dtype.type(1)
    packed = np.empty(len(free), dtype=np.int64)
    for first in range(0, frames, width):
        count = min(width, frames - first)
        # Eight numbers of a frame are one cache line.
        for place in range(0, n, 8):
            for frame in range(count):
                line = received[first + frame, place : place + 8]
                for i in range(len(line)):
                    soft_rows[n + place + i, frame] = line[i]
        signs[:] = one
        for i in range(len(known)):
            for frame in range(count):
                sign_rows[known[i], frame] = one - 2 * values[first + frame, i]
        _pass(steps, soft, signs, width)
        transform_signs(signs, width)
        for i in range(len(free)):
            bits = 0
            for frame in range(width):
                bits |= (sign_rows[free[i], frame] < 0) << frame
            packed[i] = bits
        for frame in range(count):
            row = decided[first + frame]
            for i in range(len(free)):
                row[i] = packed[i] >> frame & 1


@compiled
def _pass(steps: Ints, soft: Floats, signs: Floats, width: int) -> None:
    """All steps of one pass; `signs` holds forced bits of V and becomes U."""
    one = signs.dtype.type(1)
    for number in range(len(steps)):
        step, first, length = steps[number, 0], steps[number, 1] * width, steps[number, 2] * width
        half = length // 2
        word = signs[first : first + length]
        if step == SUM:
            sum_soft(soft, length, half)
        elif step == SECOND:
            upper, lower = soft[length : length + half], soft[length + half : 2 * length]
            second_soft(upper, lower, word[:half], soft[half:length])
        elif step == COMBINE:
            upper, lower = word[:half], word[half:]
            for i in range(half):
                upper[i] *= lower[i]
        elif step == FREE:
            seen = soft[length : 2 * length]
            for i in range(length):
                word[i] = one if seen[i] >= 0 else -one
        elif step == KNOWN:
            transform_signs(word, width)
