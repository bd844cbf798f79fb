"""List decoding and list filling of frames, from LLRs to bits; the doors to the compiled kernels.

W = (w_0, ..., w_(n-1)) carries forced and free bits, V = W T is its convolution (PAC; T = 1 for plain polar codes) and
U = V G. With one path decoding is successive cancellation, and filling is successive-cancellation filling.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polar.code.compiled import Bits, Bools, schedule, soft_bits
from polar.code.lists.kernel import draw_drafts, likeliest_paths
from polar.code.lists.precoding import NO_TAPS, check_taps
from wm_env.common.arrays import Floats, Ints

MOST_PATHS = 4096


@dataclass(frozen=True)
class Paths:
    """The likeliest words of every frame, likeliest first.

    Attributes:
        free: free bits of W in the order of the positions, shape (F, P, n - forced).
        log_prob: ln P(W | side), forced bits included, up to a constant of the frame where the first bits are forced,
            shape (F, P); -inf where a frame has fewer paths, whose bits are then 0.
    """

    free: Bits
    log_prob: Floats


@dataclass(frozen=True)
class Filled:
    """Frames that an encoder filled.

    Attributes:
        word: U, shape (F, n).
        dead_ends: forced bits of each frame that no draft could take and that gave way, shape (F,).
    """

    word: Bits
    dead_ends: Ints


def decode_paths(
    llr: NDArray[np.floating],
    forced: Bools,
    values: NDArray[np.integer],
    paths: int,
    taps: int = NO_TAPS,
) -> Paths:
    """Successive-cancellation list decoding with P paths.

    Args:
        llr, forced, values: as in `polar.code.batches.decide`.
        paths: P, 1 to 4096.
        taps: the convolution, see `precoding`.

    Raises:
        ValueError: n is no power of two, shapes do not fit, paths or taps are out of range.
    """
    _check(llr, forced, values, paths, taps)
    steps = schedule(forced, prune_known=True, prune_free=False)
    words = np.zeros((len(llr), paths, len(forced)), dtype=np.uint8)
    log_prob = np.empty((len(llr), paths))
    likeliest_paths(steps, _soft(llr), _spread(forced, values), taps, paths, words, log_prob)
    return Paths(np.ascontiguousarray(words[:, :, ~forced]), log_prob)


def fill(
    llr: NDArray[np.floating],
    forced: Bools,
    values: NDArray[np.integer],
    generator: np.random.Generator,
    drafts: int = 1,
    taps: int = NO_TAPS,
) -> Filled:
    """Encode: forced bits of W are given, every other bit of V is drawn from P(V_i | V^{i-1}, side).

    With one draft this is successive-cancellation filling. With more, each frame keeps that many, weighs them by the
    probability of the bits forced on them, and resamples: as their number grows the law of V tends to
    P(V | side, W_forced = values), the look-ahead rule of the paper.

    A forced bit that no draft can take is a dead end: the only possible bit is taken instead, so the word always has
    positive probability, and the event is counted.

    Args and errors as of `decode_paths`; LLRs are those of U given what the encoder knows.
    """
    _check(llr, forced, values, drafts, taps)
    word, dead_ends = np.empty(llr.shape, dtype=np.uint8), np.empty(len(llr), dtype=np.int64)
    steps = schedule(forced, prune_known=False, prune_free=False)
    draw_drafts(
        steps,
        _soft(llr),
        forced.astype(np.uint8),
        _spread(forced, values),
        taps,
        drafts,
        generator,
        word,
        dead_ends,
    )
    return Filled(word, dead_ends)


def _soft(llr: NDArray[np.floating]) -> Floats:
    return soft_bits(llr, np.empty(llr.shape))


def _spread(forced: Bools, values: NDArray[np.integer]) -> Bits:
    """The values at their positions, 0 elsewhere, shape (F, n)."""
    word = np.zeros((len(values), len(forced)), dtype=np.uint8)
    word[:, forced] = values
    return word


def _check(llr: NDArray[np.floating], forced: Bools, values: NDArray[np.integer], paths: int, taps: int) -> None:
    check_taps(taps)
    if not 1 <= paths <= MOST_PATHS:
        raise ValueError(f"{paths} paths or drafts: 1 to {MOST_PATHS} are possible")
    if llr.shape[1:] != forced.shape:
        raise ValueError(f"{len(forced)} positions need LLRs of shape (frames, {len(forced)}), got {llr.shape}")
    if values.shape != (len(llr), int(forced.sum())):
        raise ValueError(
            f"{int(forced.sum())} forced positions need values of shape {(len(llr), int(forced.sum()))}, "
            f"got {values.shape}"
        )
