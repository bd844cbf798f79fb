from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.planner.annealing import _gain, anneal, number_members
from wm_env.common.arrays import Floats


def score(loads: Floats) -> float:
    """The score of the module's docstring for one state, by loops."""
    count = len(loads)
    bits, cap = count.bit_length() - 1, 1 / count
    pairs = [(v, w) for v, w in combinations(range(count), 2) if (v ^ w).bit_count() == 1]
    neighbours = sum(min(loads[v] + loads[w], 2 * cap) for v, w in pairs)
    return sum(min(load, cap) for load in loads) + 0.02 * (loads > 1e-9).sum() + 0.6 / bits * neighbours


@settings(max_examples=200)
@given(seed=st.integers(0, 10**6), message_bits=st.integers(1, 4), everything=st.booleans())
def test_gain_is_the_change_of_the_score(seed: int, message_bits: int, everything: bool) -> None:
    rng = np.random.default_rng(seed)
    count = 2**message_bits
    loads = rng.dirichlet(np.full(count, 0.5)) * (rng.random(count) < 0.8)
    old, new = rng.permutation(count)[:2].tolist()
    mass = float(loads[old] * (1 if everything else rng.random()))
    after = loads.copy()
    after[old] -= mass
    after[new] += mass
    gain = _gain(loads.tolist(), old, new, mass, message_bits)
    assert gain == pytest.approx(score(after) - score(loads), abs=1e-12)


def test_members_by_hand() -> None:
    pmf = np.array([[0.5, 0.5, 0.0], [0.2, 0.0, 0.8]])
    symbols, number = number_members(pmf, np.array([[7, 3, -1], [3, 9, 4]]))
    assert number.tolist() == [[2, 0, -1], [0, -1, 1]]
    assert symbols.mass == (((0, 0.5), (1, 0.2)), ((1, 0.8),), ((0, 0.5),))
    assert symbols.at == ((2, 0), (0, 1))


def test_finds_the_best_words_of_a_small_problem() -> None:
    """Three states that share three of nine symbols, against all maps with the first at word 0: xor keeps the score."""
    pmf = np.random.default_rng(1).dirichlet(np.full(4, 2.0), size=3)
    symbol = np.array([[0, 1, 2, 3], [0, 4, 5, 6], [1, 4, 7, 8]])
    symbols, number = number_members(pmf, symbol)
    weights = [0.5, 0.3, 0.2]

    def total(words: list[int]) -> float:
        loads = np.zeros((3, 4))
        for state in range(3):
            for place in range(4):
                loads[state, words[number[state, place]]] += pmf[state, place]
        return sum(weight * score(row) for weight, row in zip(weights, loads, strict=True))

    best = max(total([0, *words]) for words in product(range(4), repeat=8))
    found = anneal(symbols, weights, [0] * 9, 2)
    assert found == anneal(symbols, weights, [0] * 9, 2)
    assert total(found) == pytest.approx(best, abs=2e-3)
