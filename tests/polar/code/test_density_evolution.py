"""Density evolution against full enumeration and against the erasure channel's own recursion."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polar.code.density_evolution import polarise

Floats = NDArray[np.float64]


def h2(p: float) -> float:
    return 0.0 if p <= 0 or p >= 1 else -p * math.log2(p) - (1 - p) * math.log2(1 - p)


def exact_entropies(crossover: Floats, probs: Floats, n: int) -> tuple[list[float], list[float]]:
    """H(V_i | V^{i-1}, A^n) and the probability that V_i is determined, over all a^n and all words."""
    matrix = np.ones((1, 1), dtype=np.int64)
    while len(matrix) < n:
        matrix = np.kron(matrix, np.array([[1, 0], [1, 1]]))
    words = np.array(list(product((0, 1), repeat=n)))
    u = words @ matrix % 2
    entropies, certain = [0.0] * n, [0.0] * n
    for side in product(range(len(probs)), repeat=n):
        weight = math.prod(probs[a] for a in side)
        p = crossover[list(side)]
        law = np.where(u == 1, p, 1 - p).prod(1)
        for i in range(n):
            pairs = law.reshape(2**i, 2, -1).sum(2)
            for zero, one in pairs:
                if zero + one > 0:
                    entropies[i] += weight * (zero + one) * h2(one / (zero + one))
                    certain[i] += weight * (zero + one) * (min(zero, one) == 0)
    return entropies, certain


@settings(max_examples=15)
@given(st.lists(st.floats(0, 0.5), min_size=2, max_size=3), st.sampled_from([1, 2]), st.integers(0, 1000))
def test_entropies_are_tight_lower_bounds_of_the_exact_ones(points: list[float], levels: int, seed: int) -> None:
    crossover = np.array(points)
    probs = np.random.default_rng(seed).dirichlet(np.ones(len(points)))
    found = polarise(crossover, probs, levels)
    exact, _ = exact_entropies(crossover, probs, 2**levels)
    assert (found.entropy <= np.array(exact) + 1e-9).all()
    assert found.entropy == pytest.approx(np.array(exact), abs=0.01)
    assert found.deficit == pytest.approx(1 - found.entropy, abs=1e-12)


def test_mixed_law_of_eight_bits_close_to_enumeration() -> None:
    crossover, probs = np.array([0.0, 0.11]), np.array([0.4, 0.6])
    found = polarise(crossover, probs, 3)
    exact, certain = exact_entropies(crossover, probs, 8)
    assert found.entropy == pytest.approx(np.array(exact), abs=0.01)
    assert found.certain == pytest.approx(np.array(certain), abs=1e-9)


@settings(max_examples=40)
@given(st.floats(0.0, 1.0), st.integers(0, 12))
def test_erasure_laws_are_exact(erasure: float, levels: int) -> None:
    expected = np.array([erasure])
    for _ in range(levels):
        expected = np.stack((1 - (1 - expected) ** 2, expected**2), -1).reshape(-1)
    found = polarise(np.array([0.5, 0.0]), np.array([erasure, 1 - erasure]), levels)
    assert found.entropy == pytest.approx(expected, abs=1e-12)
    assert found.certain == pytest.approx(1 - expected, abs=1e-12)
    assert found.entropy.sum() == pytest.approx(erasure * 2**levels, abs=1e-9)


def test_erasure_law_of_one_half_at_eight_bits() -> None:
    expected = [0.996094, 0.878906, 0.808594, 0.316406, 0.683594, 0.191406, 0.121094, 0.003906]
    assert polarise(np.array([0.5, 0.0]), np.array([0.5, 0.5]), 3).entropy == pytest.approx(expected, abs=1e-6)


def test_entropy_is_nearly_conserved_while_the_positions_polarise() -> None:
    crossover, probs = np.array([0.11, 0.02, 0.4]), np.array([0.3, 0.3, 0.4])
    whole = sum(p * h2(x) for p, x in zip(probs, crossover, strict=True))
    middle = []
    for levels in (3, 6, 9):
        entropy = polarise(crossover, probs, levels).entropy
        assert entropy.mean() == pytest.approx(whole, abs=0.004)
        assert entropy.mean() <= whole
        middle.append(((entropy > 0.05) & (entropy < 0.95)).mean())
    assert middle[0] > middle[1] > middle[2]


def test_wrong_laws_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[0, 1/2\]"):
        polarise(np.array([0.6]), np.array([1.0]), 2)
    with pytest.raises(ValueError, match="sum to 1"):
        polarise(np.array([0.1, 0.2]), np.array([0.5, 0.4]), 2)
