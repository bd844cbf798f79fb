"""The exact search against all partitions and against an integer programme."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from wm_env.theory.partition import excess_bound, partition_items


def excess_of(sizes, bins):
    return sum(max(sum(sizes[item] for item in items) - 1, 0) for items in bins)


def least_excess(sizes, count):
    """Over all ways to put items into bins."""
    best = np.inf
    for places in itertools.product(range(count), repeat=len(sizes)):
        loads = [0.0] * count
        for size, place in zip(sizes, places, strict=True):
            loads[place] += size
        best = min(best, sum(max(load - 1, 0) for load in loads))
    return best


def least_excess_by_programme(sizes, count):
    """The same by branch and bound: x[item, bin] binary, excess e[bin] >= load - 1."""
    items = len(sizes)
    everywhere = np.hstack([np.kron(np.eye(items), np.ones(count)), np.zeros((items, count))])
    loads = np.hstack([np.kron(sizes, np.eye(count)), -np.eye(count)])
    answer = milp(
        np.concatenate([np.zeros(items * count), np.ones(count)]),
        constraints=[LinearConstraint(everywhere, 1, 1), LinearConstraint(loads, -np.inf, 1)],
        integrality=np.concatenate([np.ones(items * count), np.zeros(count)]),
        bounds=Bounds(0, np.concatenate([np.ones(items * count), np.full(count, np.inf)])),
        options={"mip_rel_gap": 0},
    )
    assert answer.success
    return answer.fun


decreasing = st.lists(st.integers(1, 99), min_size=3, max_size=8).map(
    lambda sizes: np.array(sorted(sizes, reverse=True)) / 100
)


@settings(max_examples=60)
@given(decreasing, st.integers(2, 3), st.sampled_from([1e-9, 0.2]))
def test_search_finds_the_best_of_all_partitions(sizes, count, slack):
    best = least_excess(sizes, count)
    assert excess_bound(sizes, count) <= best + 1e-12
    bins, bound = partition_items(sizes, count, excess=best + slack, nodes=10_000)
    assert sorted(item for items in bins for item in items) == list(range(len(sizes)))
    assert len(bins) == count
    assert excess_of(sizes, bins) == pytest.approx(best, abs=1e-12)
    assert bound == pytest.approx(best, abs=1e-12)


@settings(max_examples=30)
@given(decreasing, st.integers(2, 3))
def test_nothing_is_returned_where_nothing_is_better(sizes, count):
    best = least_excess(sizes, count)
    bins, bound = partition_items(sizes, count, excess=best, nodes=10_000)
    assert bins == []
    assert bound == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_sixteen_items_in_six_bins_against_an_integer_programme(seed):
    sizes = -np.sort(-np.random.default_rng(seed).uniform(0.1, 0.7, 16))
    bins, bound = partition_items(sizes, 6, excess=10.0, nodes=50_000)
    best = least_excess_by_programme(sizes, 6)
    assert excess_of(sizes, bins) == pytest.approx(best, abs=1e-6)
    assert bound == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 21, 25, 35])
def test_with_too_few_nodes_the_bound_still_holds(seed):
    sizes = -np.sort(-np.random.default_rng(seed).uniform(0.2, 0.6, 18))
    sizes *= 6.993 / sizes.sum()
    best = partition_items(sizes, 7, excess=10.0, nodes=50_000)[1]
    bins, bound = partition_items(sizes, 7, excess=10.0, nodes=20)
    assert sorted(item for items in bins for item in items) == list(range(18))
    assert excess_of(sizes, bins) > best + 1e-9
    assert bound <= best + 1e-12


def test_a_search_with_too_many_fills_ends_with_a_bound(monkeypatch):
    """Cut short by its work, it says no more than a search that goes on."""
    sizes = np.sort(np.random.default_rng(0).dirichlet(np.ones(14)) * 4.2)[::-1]
    sizes = sizes[sizes < 1]
    whole = partition_items(sizes, 4, 4.0, 10_000)
    for work in (4, 40, 400, 4000):
        monkeypatch.setattr("wm_env.theory.partition._WORK", work)
        bins, bound = partition_items(sizes, 4, 4.0, 10_000)
        assert bound <= whole[1] + 1e-12
        assert not bins or sum(max(sizes[items].sum() - 1, 0) for items in bins) >= whole[1] - 1e-12


def test_equal_items_are_bounded_by_their_number():
    # 20 items of .4 in 8 bins: two in a bin leave room, three lose .2, and four bins need three.
    sizes = np.full(20, 0.4)
    assert excess_bound(sizes, 8) == pytest.approx(4 * 0.2)
    # Two items a bin fit exactly; one more has nowhere to go.
    assert excess_bound(np.full(4, 0.5), 2) == 0
    assert excess_bound(np.full(5, 0.5), 2) == pytest.approx(0.5)


def test_too_many_items_are_bounded_only():
    sizes = np.full(60, 0.3)
    assert partition_items(sizes, 10, excess=9.0, nodes=100) == ([], excess_bound(sizes, 10))


def test_more_bins_than_items_leave_bins_empty():
    bins, bound = partition_items(np.array([0.9, 0.8]), 4, excess=1.0, nodes=10)
    assert sorted(map(len, bins)) == [0, 0, 1, 1]
    assert bound == 0
