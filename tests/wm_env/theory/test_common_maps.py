import itertools
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from wm_env.common.arrays import Floats, Ints
from wm_env.theory.common_maps import best_common_map, common_map_limits, common_map_success


def best_law_of_maps(pmf: Floats, seen: Ints, state_probs: Floats, maps: list[tuple[int, ...]], count: int) -> float:
    """The success probability over all laws of `maps`, by the dual programme, written with loops.

    Minimise sum p z price + level, where every map is worth at most the level: for a map and state, what each word
    brings is at least Z(s) - price of its candidates.
    """
    states, candidates = pmf.shape
    prices = pmf.size
    variables = prices + 1 + len(maps) * states * count
    cost = np.zeros(variables)
    cost[:prices], cost[prices] = pmf.ravel(), 1
    rows, bounds = [], []
    for number, words in enumerate(maps):
        start = prices + 1 + number * states * count
        level = np.zeros(variables)
        level[start : start + states * count], level[prices] = 1 / count, -1
        rows.append(level)
        bounds.append(0.0)
        for state in range(states):
            for place in range(candidates):
                row = np.zeros(variables)
                row[state * candidates + place] = -1
                row[start + state * count + words[seen[state, place]]] = -1
                rows.append(row)
                bounds.append(-state_probs[state])
    return float(linprog(cost, A_ub=np.array(rows), b_ub=np.array(bounds)).fun)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), states=st.integers(1, 3))
def test_the_search_finds_the_best_law_of_all_maps(seed: int, states: int) -> None:
    rng = np.random.default_rng(seed)
    pmf = rng.dirichlet(np.ones(3), size=states)
    seen = np.stack([rng.permutation(5)[:3] for _ in range(states)])
    state_probs = rng.dirichlet(np.ones(states))
    best = best_law_of_maps(pmf, seen, state_probs, list(product(range(2), repeat=5)), 2)
    found = common_map_success(pmf, seen, state_probs, 1, np.zeros((1, 5), dtype=np.int64), 30)
    assert found == pytest.approx(best, abs=1e-7)
    assert found <= state_probs @ np.minimum(pmf, 0.5).sum(1) + 1e-9


def test_one_bit_cannot_serve_three_states_that_share_two_by_two() -> None:
    """Of three symbols two have the same bit, so one of three states has a single word."""
    pmf, seen = np.full((3, 2), 0.5), np.array([[0, 1], [1, 2], [0, 2]])
    found = common_map_success(pmf, seen, np.full(3, 1 / 3), 1, np.array([[0, 1, 0]]), 20)
    assert found == pytest.approx(5 / 6, abs=1e-9)


def test_states_that_share_a_heavy_candidate_reach_the_limit_of_shared_keys() -> None:
    pmf = np.array([[0.6, 0.2, 0.2], [0.2, 0.1, 0.7]])
    seen = np.array([[0, 1, 2], [0, 3, 4]])
    one_map = np.array([[0, 1, 1, 1, 1]])
    limit = (0.5 + 0.4 + 0.3 + 0.5) / 2
    assert common_map_success(pmf, seen, np.full(2, 0.5), 1, one_map, 0) < limit - 0.01
    assert common_map_success(pmf, seen, np.full(2, 0.5), 1, one_map, 20) == pytest.approx(limit, abs=1e-9)


def test_padding_is_no_candidate() -> None:
    pmf = np.array([[0.5, 0.5, 0.0], [0.4, 0.3, 0.3]])
    seen = np.array([[0, 1, -1], [2, 3, 4]])
    found = common_map_success(pmf, seen, np.full(2, 0.5), 1, np.zeros((1, 5), dtype=np.int64), 20)
    assert found == pytest.approx(1.0, abs=1e-9)


def test_one_bit_cannot_serve_three_states_that_share_in_a_ring():
    """Every map gives two of three candidates one word, so one of the three states has both on one word."""
    pmf, seen = np.full((3, 2), 0.5), np.array([[0, 1], [1, 2], [2, 0]])
    limit = common_map_limits(pmf, seen, np.full(3, 1 / 3), 1)
    assert limit.success == pytest.approx(5 / 6, abs=1e-9)
    assert limit.bound == pytest.approx(5 / 6, abs=1e-7)
    assert best_common_map(pmf, seen, np.full(3, 1 / 3), 1)[1].bound == pytest.approx(5 / 6, abs=1e-7)


@pytest.mark.parametrize("seed", range(6))
def test_integer_programmes_find_the_best_of_all_maps(seed):
    rng = np.random.default_rng(seed)
    pmf = rng.dirichlet(np.full(4, 0.7), 3)
    seen = np.stack([rng.permutation(6)[:4] for _ in range(3)])
    probs = rng.dirichlet(np.ones(3))
    every = np.array(list(itertools.product(range(4), repeat=5)))
    every = np.concatenate([np.zeros((len(every), 1), dtype=int), every], axis=1)
    loads = np.zeros((len(every), 3, 4))
    for state, place in itertools.product(range(3), range(4)):
        np.add.at(loads, (np.arange(len(every)), state, every[:, seen[state, place]]), pmf[state, place])
    best = (np.minimum(loads, 0.25).sum(2) @ probs).max()
    limit = best_common_map(pmf, seen, probs, 2)[1]
    assert limit.success == pytest.approx(best, abs=1e-7)
    assert limit.bound == pytest.approx(best, abs=1e-6)
    mixed = common_map_limits(pmf, seen, probs, 2)
    assert best - 1e-7 <= mixed.success <= mixed.bound + 1e-9 <= probs @ np.minimum(pmf, 0.25).sum(1) + 1e-6
    assert mixed.bound - mixed.success < 1e-6
    # All maps at once, no search: the programme that the bound is about.
    assert common_map_success(pmf, seen, probs, 2, every, 0) == pytest.approx(mixed.success, abs=1e-6)
