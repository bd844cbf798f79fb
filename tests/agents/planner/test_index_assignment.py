from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.planner.couplings import assign_surplus, wrong_bits
from agents.planner.index_assignment import assign_indices
from wm_env.common.arrays import Floats, Ints


def some_loads(seed: int, states: int, count: int) -> Floats:
    return np.random.default_rng(seed).dirichlet(np.full(count, 0.5), size=states)


def bits_wrong(loads: Floats) -> float:
    """Expected number of wrong bits if the nearest words take the surplus of a state, by a double loop."""
    flows = assign_surplus(loads[None], np.full((1, len(loads)), 1 / len(loads)))[0]
    words = range(len(flows))
    return sum(flows[v, w] * (v ^ w).bit_count() for v in words for w in words)


def renumbered(loads: Floats, number: Ints) -> Floats:
    return np.stack([row[np.argsort(numbers)] for row, numbers in zip(loads, number, strict=True)])


def place_alone(loads: Floats) -> Floats:
    """The loads at their numbers if every state is a group of its own."""
    number = assign_indices(loads, np.zeros_like(loads, dtype=np.bool_), np.arange(len(loads)), np.ones(len(loads)))
    assert (np.sort(number, axis=1) == np.arange(loads.shape[1])).all()
    return renumbered(loads, number)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_no_other_numbering_of_four_words_has_fewer_wrong_bits(seed: int) -> None:
    loads = some_loads(seed, 3, 4)
    for row, placed in zip(loads, place_alone(loads), strict=True):
        best = min(bits_wrong(row[list(order)]) for order in permutations(range(4)))
        assert bits_wrong(placed) == pytest.approx(best, abs=1e-12)


def test_whole_words_of_a_heavy_candidate_surround_it() -> None:
    loads = np.array([[1, 4, 1, 0, 0, 1, 1, 0]]) / 8
    assert bits_wrong(place_alone(loads)[0]) == pytest.approx(3 / 8)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), count=st.sampled_from([4, 8, 16]))
def test_pinned_words_move_with_their_group_and_nobody_is_worse_off_in_all(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    loads = some_loads(seed, 6, count)
    group = np.array([0, 1, 0, 1, 1, 2])
    weights = rng.dirichlet(np.ones(6))
    pinned = rng.random(loads.shape) < 0.5
    pinned[5] = False
    number = assign_indices(loads, pinned, group, weights)
    assert (np.sort(number, axis=1) == np.arange(count)).all()
    for word in range(count):
        for first, second in ((0, 2), (1, 3), (1, 4), (3, 4)):
            if pinned[first, word] and pinned[second, word]:
                assert number[first, word] == number[second, word]
    placed = renumbered(loads, number)
    for members in ([0, 2], [1, 3, 4], [5]):
        before = sum(weights[state] * wrong_bits(loads[[state]].T)[0] for state in members)
        after = sum(weights[state] * wrong_bits(placed[[state]].T)[0] for state in members)
        assert after <= before + 1e-9


def test_a_group_is_renumbered_as_a_whole() -> None:
    """All words of two states are pinned, and both have the same heavy word: its room must come to surround it."""
    loads = np.array([[4, 1, 1, 0, 1, 0, 0, 1]] * 2) / 8
    assert bits_wrong(loads[0]) > 3 / 8
    number = assign_indices(loads, np.ones((2, 8), dtype=np.bool_), np.zeros(2, dtype=np.int64), np.full(2, 0.5))
    assert (number[0] == number[1]).all()
    assert bits_wrong(renumbered(loads, number)[0]) == pytest.approx(3 / 8)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_wrong_bits_are_at_least_those_of_the_best_order_and_one_for_every_wrong_block(seed: int) -> None:
    loads = some_loads(seed, 5, 4)
    quick = wrong_bits(loads.T)
    for row, wrong in zip(loads, quick, strict=True):
        assert bits_wrong(row) <= wrong + 1e-12
        assert wrong >= np.maximum(row - 0.25, 0).sum() - 1e-12
