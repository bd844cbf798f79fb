"""Successive cancellation in O(n log n), in the log domain, on many frames at once.

Natural order: U = V G^{(x)p}, so with V = (V', V'') halves and A = V' G', B = V'' G' the word is U = (A + B, B).
Given log-likelihood ratios (L1, L2) of the two halves of U, A is seen through boxplus(L1, L2) and, once A is known, B
through L2 + (-1)^A L1.

Conventions: an LLR is ln P(bit = 0) - ln P(bit = 1), so positive means bit 0. Inside this module a bit is a spin, +1.0
for 0 and -1.0 for 1, and arrays are (positions, frames): every step is one vector operation over all frames. LLRs
saturate at +-CERTAIN, which stands for a bit that is known for sure.

Decoding and filling, where speed matters, are compiled: `polar.code.batches` and `polar.code.lists`.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CERTAIN = 300.0
"""The LLR, in nats, of a bit that is known for sure. Twice this is still within reach of a float64 exponential."""


def boxplus(first: Tensor, second: Tensor) -> Tensor:
    """LLR of the sum (mod 2) of two independent bits: ln (1 + e^(a+b)) / (e^a + e^b), exact and free of overflow."""
    total = (first + second).abs_()
    difference = (first - second).abs_()
    smaller = (total - difference).mul_(0.5)
    return smaller.add_(total.neg_().exp_().add_(1).div_(difference.neg_().exp_().add_(1)).log_())


def conditional_llrs(llr: NDArray[np.float64], sent: NDArray[np.integer]) -> NDArray[np.float64]:
    """ln P(V_i = 0 | V^{i-1}, side) - ln P(V_i = 1 | V^{i-1}, side) along a given path V; shape (F, n).

    Args:
        llr: LLRs of U_1..U_n given the side information, shape (F, n), n a power of two.
        sent: the pre-transform words V whose prefixes are conditioned on, shape (F, n).
    """
    _check_length(llr.shape[-1])
    leaves = torch.empty(llr.shape[::-1], dtype=torch.float64)
    _follow(_rows(llr), _spins(sent), leaves)
    return np.ascontiguousarray(leaves.numpy().T)


def draw(llr: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Sample V by its inverse distribution function, bit by bit: V_i = 1 where points_i >= P(V_i = 0 | V^{i-1}, side).

    Points that are independent and uniform give V, and so U, exactly its law. A point (m + w) / 2 with a uniform bit m
    and a uniform w is uniform too, and then V_i differs from m with probability |P(V_i = 1 | V^{i-1}, side) - 1/2|:
    no joint law of a uniform bit and V_i makes them differ less often. Returned is the word U, shape (F, n).

    Args:
        llr: LLRs of U_1..U_n given the side information, shape (F, n), n a power of two.
        points: numbers in (0, 1), shape (F, n).
    """
    _check_length(llr.shape[-1])
    if points.shape != llr.shape:
        raise ValueError(f"{llr.shape} bits need as many points, got {points.shape}")
    return _bits(_draw(_rows(llr), torch.from_numpy(np.ascontiguousarray(points.T))))


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


def _draw(llr: Tensor, points: Tensor) -> Tensor:
    if len(llr) == 1:
        return torch.where(points < torch.sigmoid(llr), 1.0, -1.0).to(llr.dtype)
    half = len(llr) // 2
    upper, lower = llr[:half], llr[half:]
    left = _draw(boxplus(upper, lower), points[:half])
    right = _draw(_second(upper, lower, left), points[half:])
    return torch.cat((left * right, right))


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
