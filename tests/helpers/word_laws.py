"""The law of small words by enumeration: what successive cancellation has to reproduce."""

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def generator_matrix(n: int) -> NDArray[np.int64]:
    matrix = np.ones((1, 1), dtype=np.int64)
    while len(matrix) < n:
        matrix = np.kron(matrix, np.array([[1, 0], [1, 1]]))
    return matrix


def word_law(llr: Floats) -> dict[tuple[int, ...], float]:
    """P(V) for every V, from the product law of U."""
    n = len(llr)
    matrix = generator_matrix(n)
    law = {}
    for word in product((0, 1), repeat=n):
        u = np.array(word) @ matrix % 2
        law[word] = math.prod(1 / (1 + math.exp(-x if bit == 0 else x)) for x, bit in zip(llr, u, strict=True))
    return law


def prefix_prob(law: dict[tuple[int, ...], float], prefix: tuple[int, ...]) -> float:
    return sum(p for word, p in law.items() if word[: len(prefix)] == prefix)


def random_llrs(seed: int, frames: int, n: int) -> Floats:
    return np.random.default_rng(seed).normal(0, 2, (frames, n))
