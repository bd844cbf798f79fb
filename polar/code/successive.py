"""Successive cancellation in O(n log n), in the log domain, on many frames at once.

Natural order: U = V G^{(x)p}, so with V = (V', V'') halves and A = V' G', B = V'' G' the word is U = (A + B, B).
Given log-likelihood ratios (L1, L2) of the two halves of U, A is seen through boxplus(L1, L2) and, once A is known, B
through L2 + (-1)^A L1.

Conventions: an LLR is ln P(bit = 0) - ln P(bit = 1), so positive means bit 0. Inside this module a bit is a spin, +1.0
for 0 and -1.0 for 1, and arrays are (positions, frames): every step is one vector operation over all frames. LLRs
saturate at +-CERTAIN, which stands for a bit that is known for sure.

A sub-tree whose bits are all forced, or all free, needs no recursion, and leaving it out changes nothing: free bits
under a product law are the independent bits of U themselves, be they drawn or decided.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polar.code.transform import polar_transform

CERTAIN = 300.0
"""The LLR, in nats, of a bit that is known for sure. Twice this is still within reach of a float64 exponential."""

IMPOSSIBLE = CERTAIN / 2
"""A bit against an LLR above this, of probability below 1e-65, counts as impossible."""


@dataclass(frozen=True)
class Filled:
    """Frames that an encoder filled.

    Attributes:
        word: U, shape (F, n).
        dead_ends: forced bits of each frame that had probability 0 and gave way to the only possible bit, shape (F,).
    """

    word: NDArray[np.uint8]
    dead_ends: NDArray[np.int64]


def boxplus(first: Tensor, second: Tensor) -> Tensor:
    """LLR of the sum (mod 2) of two independent bits: ln (1 + e^(a+b)) / (e^a + e^b), exact and free of overflow."""
    total = (first + second).abs_()
    difference = (first - second).abs_()
    smaller = (total - difference).mul_(0.5)
    return smaller.add_(total.neg_().exp_().add_(1).div_(difference.neg_().exp_().add_(1)).log_())


def conditional_llrs(llr: NDArray[np.float64], sent: NDArray[np.integer]) -> NDArray[np.float64]:
    """ln P(V_i = 0 | V^{i-1}, side) - ln P(V_i = 1 | V^{i-1}, side) along a given path V.

    Args:
        llr: LLRs of U_1..U_n given the side information, shape (F, n), n a power of two.
        sent: the pre-transform words V whose prefixes are conditioned on, shape (F, n).

    Returns:
        Shape (F, n).
    """
    _check_length(llr.shape[-1])
    leaves = torch.empty(llr.shape[::-1], dtype=torch.float64)
    _follow(_rows(llr), _spins(sent), leaves)
    return np.ascontiguousarray(leaves.numpy().T)


def decide(llr: NDArray[np.float64], forced: NDArray[np.bool_], values: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Decode: every free bit of V takes its likelier value given the bits before it; ties go to bit 0.

    Args:
        llr: LLRs of U_1..U_n given what was received, shape (F, n), n a power of two.
        forced: positions of V that the decoder knows, shape (n,).
        values: their values in the order of the positions, shape (F, forced.sum()).

    Returns:
        The decoded word U, shape (F, n); its polar transform is V.
    """
    known = _Known(forced, values, len(llr))
    return _bits(_decide(_rows(llr), known, 0))


def fill(
    llr: NDArray[np.float64],
    forced: NDArray[np.bool_],
    values: NDArray[np.integer],
    generator: torch.Generator,
    particles: int = 1,
) -> Filled:
    """Encode: forced bits of V are given, every other bit is drawn from P(V_i | V^{i-1}, side).

    With one particle this is successive-cancellation filling. With more, each frame keeps that many drafts, weighs them
    by the probability of the bits forced on them, and resamples: as their number grows the law of V tends to
    P(V | side, V_forced = values), the look-ahead rule of the paper, which cannot be computed at such lengths.

    A forced bit that no draft can take is a dead end: the only possible bit is taken instead, so the word always has
    positive probability, and the event is counted.

    Args:
        llr: LLRs of U_1..U_n given the side information, shape (F, n), n a power of two.
        forced: positions of V that are given, shape (n,).
        values: their values in the order of the positions, shape (F, forced.sum()).
        generator: source of every draw.
        particles: drafts per frame, at least 1.
    """
    if particles < 1:
        raise ValueError(f"particles must be at least 1, got {particles}")
    frames = len(llr)
    known = _Known(forced, values, frames)
    drafts = _Drafts(
        particles, torch.zeros(frames * particles, dtype=torch.float64), torch.zeros(frames, dtype=torch.int64)
    )
    spins, _ = _fill(_rows(np.repeat(llr, particles, 0)), known, 0, drafts, generator)
    chosen = drafts.sample(generator, 1)[:, 0]
    return Filled(_bits(spins[:, chosen]), drafts.dead_ends.numpy())


def draw(llr: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Sample V by its inverse distribution function, bit by bit: V_i = 1 where points_i >= P(V_i = 0 | V^{i-1}, side).

    Points that are independent and uniform give V, and so U, exactly its law. A point (m + w) / 2 with a uniform bit m
    and a uniform w is uniform too, and then V_i differs from m with probability |P(V_i = 1 | V^{i-1}, side) - 1/2|:
    no joint law of a uniform bit and V_i makes them differ less often.

    Args:
        llr: LLRs of U_1..U_n given the side information, shape (F, n), n a power of two.
        points: numbers in (0, 1), shape (F, n).

    Returns:
        The word U, shape (F, n); its polar transform is V.
    """
    _check_length(llr.shape[-1])
    if points.shape != llr.shape:
        raise ValueError(f"{llr.shape} bits need as many points, got {points.shape}")
    return _bits(_draw(_rows(llr), torch.from_numpy(np.ascontiguousarray(points.T))))


class _Known:
    """The forced bits of V, and for any aligned segment whether all, none or some of its bits are forced."""

    def __init__(self, forced: NDArray[np.bool_], values: NDArray[np.integer], frames: int) -> None:
        n = len(forced)
        _check_length(n)
        count = int(forced.sum())
        if values.shape != (frames, count):
            raise ValueError(f"{count} forced positions need values of shape {(frames, count)}, got {values.shape}")
        self._before: Sequence[int] = [0, *np.cumsum(forced).tolist()]
        self._values = values

    def count(self, start: int, length: int) -> int:
        return self._before[start + length] - self._before[start]

    def word(self, start: int, length: int) -> Tensor:
        """Spins of the part of U that the all-forced segment makes."""
        first = self._before[start]
        return _spins(polar_transform(self._values[:, first : first + length]))


@dataclass
class _Drafts:
    """The weights of the drafts: frame f owns drafts f * particles .. (f + 1) * particles - 1."""

    particles: int
    log_weight: Tensor
    dead_ends: Tensor

    def sample(self, generator: torch.Generator, count: int) -> Tensor:
        """`count` drafts of every frame, sampled systematically from the weights: flat indices (frames, count)."""
        weight = torch.softmax(self.log_weight.reshape(-1, self.particles), 1).cumsum(1)
        shift = torch.rand(len(weight), 1, dtype=torch.float64, generator=generator)
        points = (torch.arange(count, dtype=torch.float64) + shift) / count
        inside = torch.searchsorted(weight, points * weight[:, -1:], right=True).clamp_max_(self.particles - 1)
        return inside + torch.arange(len(weight))[:, None] * self.particles

    def weigh(self, agreement: Tensor, possible: Tensor, generator: torch.Generator) -> Tensor | None:
        """Multiply the weights by the probability of forced bits; resample frames that have grown uneven.

        Args:
            agreement: LLRs in favour of the forced bits, shape (bits, drafts); their probabilities are independent.
            possible: drafts that can take the forced bits at all, at least one a frame, shape (drafts,).
            generator: source of the draws.

        Returns:
            The draft that each draft continues, or None where nothing was resampled.
        """
        if self.particles == 1:
            return None
        log_prob = torch.nn.functional.logsigmoid(agreement).sum(0)
        self.log_weight += torch.where(possible, log_prob, -torch.inf)
        weight = torch.softmax(self.log_weight.reshape(-1, self.particles), 1)
        uneven = (1 / (weight * weight).sum(1) < self.particles / 2) | (weight == 0).any(1)
        if not uneven.any():
            return None
        kept = torch.arange(len(self.log_weight)).reshape(-1, self.particles)
        origin = torch.where(uneven[:, None], self.sample(generator, self.particles), kept).reshape(-1)
        self.log_weight = torch.where(uneven.repeat_interleave(self.particles), 0.0, self.log_weight)
        return origin


def _follow(llr: Tensor, sent: Tensor, leaves: Tensor) -> Tensor:
    """Write the leaf LLRs of the path `sent` into `leaves`; returns the spins of U."""
    if len(llr) == 1:
        leaves.copy_(llr)
        return sent
    half = len(llr) // 2
    upper, lower = llr[:half], llr[half:]
    left = _follow(boxplus(upper, lower), sent[:half], leaves[:half])
    right = _follow(_second(upper, lower, left), sent[half:], leaves[half:])
    return torch.cat((left * right, right))


def _decide(llr: Tensor, known: _Known, start: int) -> Tensor:
    forced = known.count(start, len(llr))
    if forced == len(llr):
        return known.word(start, forced)
    if forced == 0:
        return torch.copysign(torch.ones(()), llr + 0.0)
    half = len(llr) // 2
    upper, lower = llr[:half], llr[half:]
    left = _decide(boxplus(upper, lower), known, start)
    right = _decide(_second(upper, lower, left), known, start + half)
    return torch.cat((left * right, right))


def _draw(llr: Tensor, points: Tensor) -> Tensor:
    if len(llr) == 1:
        return torch.where(points < torch.sigmoid(llr), 1.0, -1.0).to(llr.dtype)
    half = len(llr) // 2
    upper, lower = llr[:half], llr[half:]
    left = _draw(boxplus(upper, lower), points[:half])
    right = _draw(_second(upper, lower, left), points[half:])
    return torch.cat((left * right, right))


def _fill(
    llr: Tensor, known: _Known, start: int, drafts: _Drafts, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Spins of U of one segment, and the draft that each draft continues if any was resampled on the way."""
    forced = known.count(start, len(llr))
    if forced == 0:
        chance = torch.sigmoid(llr)
        return torch.copysign(
            torch.ones(()), chance - torch.rand(llr.shape, dtype=llr.dtype, generator=generator)
        ), None
    if forced == len(llr):
        spins = known.word(start, forced).repeat_interleave(drafts.particles, 1)
        possible = (spins * llr > -IMPOSSIBLE).all(0)
        stuck = ~possible.reshape(-1, drafts.particles).any(1)
        if len(llr) == 1:
            drafts.dead_ends += stuck
            overruled = stuck.repeat_interleave(drafts.particles)
            spins = torch.where(overruled, -spins, spins)
            possible |= overruled
        if len(llr) == 1 or not stuck.any():
            origin = drafts.weigh(spins * llr, possible, generator)
            return (spins if origin is None else spins[:, origin]), origin
    half = len(llr) // 2
    upper, lower = llr[:half], llr[half:]
    left, origin = _fill(boxplus(upper, lower), known, start, drafts, generator)
    if origin is not None:
        upper, lower = upper[:, origin], lower[:, origin]
    right, later = _fill(_second(upper, lower, left), known, start + half, drafts, generator)
    if later is not None:
        left = left[:, later]
        origin = later if origin is None else origin[later]
    return torch.cat((left * right, right)), origin


def _second(upper: Tensor, lower: Tensor, left: Tensor) -> Tensor:
    """LLRs of the second half, L2 + (-1)^A L1."""
    # Saturation keeps sums of certain bits out of the subnormal range of exp, where it is slow.
    return torch.addcmul(lower, left, upper).clamp_(-CERTAIN, CERTAIN)


def _rows(llr: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.clip(llr, -CERTAIN, CERTAIN).T, dtype=np.float64))


def _spins(bits: NDArray[np.integer]) -> Tensor:
    return 1 - 2 * torch.from_numpy(np.ascontiguousarray(bits.T, dtype=np.float64))


def _bits(spins: Tensor) -> NDArray[np.uint8]:
    return np.ascontiguousarray((spins < 0).numpy().T).view(np.uint8)


def _check_length(n: int) -> None:
    if n < 1 or n & (n - 1):
        raise ValueError(f"the number of positions must be a power of two, got {n}")
