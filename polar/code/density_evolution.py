"""How n positions polarise under a memoryless law: H(V_i | V^{i-1}, side) by density evolution.

A bit U with side information A is, for this purpose, a mixture of binary symmetric channels: with probability P(a) its
crossover probability is p = min(P(U=0|a), P(U=1|a)), and uniform U would see the same entropies (Honda, Yamamoto).
Both halves of a polarisation step map such a mixture to such a mixture:

* sum of two bits: p1 (1 - p2) + p2 (1 - p1);
* second bit, the sum known: the two observations agree or not; each case has its own crossover probability.

Mixtures are kept on a fixed grid of crossover probabilities. A value between two grid points is split over both with
its mean kept, which can only lower the entropy: the reported entropies are lower bounds, so what is derived from
1 - H (divergence of the encoder, dead ends) is never too small. A law of p in {0, 1/2} only, an erasure law, stays on
the two-point grid and its entropies are exact.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import entr

from wm_env.common.arrays import Floats

NODES_AT_ONCE = 256
"""Positions that one sparse product handles; bounds the memory of a step."""


@dataclass(frozen=True)
class Polarisation:
    """The synthetic bits V_1..V_n of one law.

    Attributes:
        entropy: H(V_i | V^{i-1}, side), bits, shape (n,), in [0, 1]; a lower bound, exact for erasure laws.
        deficit: 1 - entropy, accurate also where it is tiny.
        certain: probability that V_i is determined by V^{i-1} and the side information, shape (n,).
        error: probability that the likelier value of V_i given V^{i-1} and the side information is wrong, shape (n,).
    """

    entropy: Floats
    deficit: Floats
    certain: Floats
    error: Floats


def polarise(crossover: Floats, probs: Floats, levels: int) -> Polarisation:
    """Polarise n = 2^levels independent bits of the same law, natural order.

    Args:
        crossover: p = min(P(U=0|a), P(U=1|a)) of every value a of the side information, in [0, 1/2], shape (A,).
        probs: P(a), shape (A,), sums to 1.
        levels: log2 n.

    Raises:
        ValueError: a crossover probability outside [0, 1/2], or probabilities that do not sum to 1.
    """
    if ((crossover < 0) | (crossover > 0.5)).any():
        raise ValueError("crossover probabilities must lie in [0, 1/2]")
    if abs(probs.sum() - 1) > 1e-9 or (probs < 0).any():
        raise ValueError(f"probabilities must be >= 0 and sum to 1, got a sum of {probs.sum():.6g}")
    grid = _grid(crossover[probs > 0])
    mass = (_split(grid, crossover) @ probs)[:, None]
    steps = _steps(grid)
    for _ in range(levels):
        mass = _polarise_once(mass, steps)
    bits = (entr(grid) + entr(1 - grid)) / math.log(2)
    return Polarisation(entropy=bits @ mass, deficit=(1 - bits) @ mass, certain=mass[-1], error=grid @ mass)


def variation_bound(divergence_bits: float) -> float:
    """Pinsker: total variation <= sqrt(D ln(2) / 2), D in bits; at most 1. With a uniform pad, for every message."""
    return min(1.0, math.sqrt(divergence_bits * math.log(2) / 2))


def _grid(crossover: Floats) -> Floats:
    """Crossover probabilities from 1/2 down to 0: dense where entropy is near 1 and near 0."""
    if np.isin(crossover, (0.0, 0.5)).all():
        return np.array([0.5, 0.0])
    bias = np.geomspace(1e-6, 0.25, 100)
    return np.concatenate(([0.5], 0.5 - bias, np.geomspace(0.25, 1e-13, 130)[1:], [0.0]))


def _split(grid: Floats, values: Floats) -> csr_array:
    """Operator that puts mass at `values` onto the two neighbouring grid points, means kept; shape (grid, values)."""
    lower = np.clip(np.searchsorted(-grid, -values, side="right") - 1, 0, len(grid) - 2)
    share = np.clip((grid[lower] - values) / (grid[lower] - grid[lower + 1]), 0, 1)
    column = np.arange(len(values))
    entries = np.concatenate((1 - share, share))
    places = (np.concatenate((lower, lower + 1)), np.concatenate((column, column)))
    return csr_array((entries, places), shape=(len(grid), len(values)))


@dataclass(frozen=True)
class _Steps:
    """One polarisation step on a grid as two bilinear maps: pair (i <= j) of grid points -> grid points."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    minus: csr_array
    plus: csr_array


def _steps(grid: Floats) -> _Steps:
    first, second = np.triu_indices(len(grid))
    p, q = grid[first], grid[second]
    times = np.where(first == second, 1.0, 2.0)
    differ = p * (1 - q) + q * (1 - p)
    agree = 1 - differ
    disagreeing = np.divide(np.minimum(p * (1 - q), q * (1 - p)), differ, out=np.zeros_like(p), where=differ > 0)
    minus = _split(grid, differ) * times
    plus = _split(grid, p * q / agree) * (agree * times) + _split(grid, disagreeing) * (differ * times)
    return _Steps(first, second, csr_array(minus), csr_array(plus))


def _polarise_once(mass: Floats, steps: _Steps) -> Floats:
    """(grid, n) -> (grid, 2n): position i becomes positions 2i (sum) and 2i + 1 (second bit)."""
    points, count = mass.shape
    result = np.empty((points, count, 2))
    for start in range(0, count, NODES_AT_ONCE):
        part = slice(start, start + NODES_AT_ONCE)
        pairs = mass[steps.first, part] * mass[steps.second, part]
        result[:, part, 0] = steps.minus @ pairs
        result[:, part, 1] = steps.plus @ pairs
    return result.reshape(points, 2 * count)
