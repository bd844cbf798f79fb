"""One-shot limits against brute force: all partitions, all decoder maps, linear programmes."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from small_trees import uneven_tree

from agents.planner.coded import plan_coded
from polar.evaluation.exact import evaluate
from polar.evaluation.settings import EvaluationSettings
from wm_env.synthetic import gaussian_pmf, synthetic_tree
from wm_env.theory.limits import (
    best_partition,
    block_limit,
    distance_masses,
    key_limited_success,
    law_limit,
    min_entropy,
    shared_key_success,
    tree_limit,
)
from wm_env.tree import number_paths


def pmfs(size: int) -> st.SearchStrategy[np.ndarray]:
    weights = st.lists(st.floats(0.01, 1.0), min_size=size, max_size=size)
    return weights.map(lambda values: np.array(values) ** 3 / (np.array(values) ** 3).sum())


def value_of(pmf, bins, count):
    loads = [0.0] * count
    for probability, number in zip(pmf, bins, strict=True):
        loads[number] += probability
    return sum(min(load, 1 / count) for load in loads)


@settings(max_examples=30)
@given(pmfs(7), st.integers(1, 2))
def test_best_partition_equals_the_best_of_all_partitions(pmf, bits):
    count = 2**bits
    best = max(value_of(pmf, bins, count) for bins in itertools.product(range(count), repeat=7))
    bins, value = best_partition(pmf, bits, gap=1e-9, nodes=10_000)
    assert value == pytest.approx(value_of(pmf, bins, count), abs=1e-12)
    assert value == pytest.approx(best, abs=1e-6)


@settings(max_examples=30)
@given(pmfs(20), st.integers(0, 5))
def test_partition_is_at_most_the_shared_key_optimum_and_leaves_no_bin_empty_needlessly(pmf, bits):
    bins, value = best_partition(pmf, bits, nodes=0)
    assert value <= sum(min(p, 2.0**-bits) for p in pmf) + 1e-12
    sizes = np.bincount(bins, minlength=2**bits)
    assert sizes.min() > 0 or sizes.max() == 1


@pytest.mark.parametrize(("draws", "bits"), [(63, 1), (63, 3), (127, 2), (400, 1)])
def test_equal_shares_of_any_number_are_dealt_out_evenly(draws: int, bits: int) -> None:
    """Subset sums of a pair are as many as 2^(draws / 2), which nobody can list; dealing is what is best here."""
    bins, value = best_partition(np.full(draws, 1 / draws), bits)
    dealt = np.bincount(np.arange(draws) % 2**bits) / draws
    assert value == pytest.approx(np.minimum(dealt, 2.0**-bits).sum(), abs=1e-12)
    assert sorted(np.bincount(bins) / draws) == pytest.approx(sorted(dealt))


@settings(max_examples=20)
@given(pmfs(48), st.integers(1, 2))
def test_many_candidates_are_split_almost_evenly(pmf, bits):
    """With heavier ones placed first, the subset sums of the lightest 32 reach any half."""
    bins, value = best_partition(pmf, bits)
    assert value == pytest.approx(value_of(pmf, bins, 2**bits), abs=1e-12)
    reachable = shared_key_success(pmf, bits)
    assert reachable - 1e-4 < value <= reachable + 1e-12
    limit = block_limit(pmf[None], np.ones(1), bits)
    assert limit.success + limit.gap >= value - 1e-12


def test_integer_programme_beats_the_search_and_fills_every_bin():
    rng = np.random.default_rng(0)
    gained = 0
    for _ in range(5):
        pmf = gaussian_pmf(20, 4.0, rng)
        _, searched = best_partition(pmf, 3, nodes=0)
        bins, proven = best_partition(pmf, 3, gap=1e-5, nodes=500)
        assert proven >= searched
        assert np.bincount(bins, minlength=8).min() > 0
        gained += proven > searched + 1e-4
    assert gained > 0


def test_padding_gets_no_bin():
    bins, value = best_partition(np.array([0.5, 0.0, 0.5, 0.0]), 1)
    assert bins.tolist() == [0, -1, 1, -1]
    assert value == 1.0


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_uniform_powers_of_two_reach_every_limit(bits):
    pmf = np.full(16, 1 / 16)
    assert best_partition(pmf, bits)[1] == pytest.approx(1, abs=1e-12)
    assert shared_key_success(pmf, bits) == pytest.approx(1, abs=1e-12)
    assert min_entropy(pmf) == pytest.approx(4)
    limit = block_limit(pmf[None], np.ones(1), bits)
    assert limit.zero_error == 1
    assert limit.bit_error(0) == pytest.approx(0, abs=1e-12)


def test_table_of_the_uniform_law_on_twenty():
    pmf = np.full(20, 1 / 20)
    # 20 candidates of .05 in 8 bins of .125: four bins of three lose .025 each. In 16 bins of .0625: .85.
    assert best_partition(pmf, 3)[1] == pytest.approx(0.9)
    assert best_partition(pmf, 4)[1] == pytest.approx(0.85)
    assert shared_key_success(pmf, 4) == pytest.approx(1)


def least_bit_error(pmf, bits, budget):
    """Least BER over all decoder maps by linear programmes: a coupling of uniform words and a law within the budget."""
    count = 2**bits
    best = 1.0
    for decoded in itertools.product(range(count), repeat=len(pmf)):
        wrong = np.array([[bin(word ^ out).count("1") for out in decoded] for word in range(count)]) / bits
        size = count * len(pmf)
        cost = np.concatenate([wrong.reshape(-1), np.zeros(len(pmf))])
        rows = np.kron(np.eye(count), np.ones(len(pmf)))
        equal = np.hstack([rows, np.zeros((count, len(pmf)))])
        columns = np.kron(np.ones(count), np.eye(len(pmf)))
        # q(x) - e(x) <= p(x) with the excess e within the budget
        upper = np.vstack(
            [np.hstack([columns, -np.eye(len(pmf))]), np.concatenate([np.zeros(size), np.ones(len(pmf))])]
        )
        answer = linprog(cost, upper, np.append(pmf, budget), equal, np.full(count, 1 / count))
        best = min(best, answer.fun)
    return best


@pytest.mark.parametrize(("seed", "budget"), [(0, 0.0), (1, 0.1), (2, 0.05), (3, 0.3)])
def test_bit_error_limit_is_a_converse(seed, budget):
    pmf = np.random.default_rng(seed).dirichlet(np.ones(4) * 0.5)
    limit = block_limit(pmf[None], np.ones(1), 2)
    assert limit.bit_error(budget) <= least_bit_error(pmf, 2, budget) + 1e-9


def test_bit_error_limit_is_reached_by_one_heavy_candidate():
    pmf = np.full((1, 8), 1e-13)
    pmf[0, 0] = 1 - 7e-13
    limit = block_limit(pmf, np.ones(1), 3)
    # one candidate says nothing: half of the bits are wrong, and a budget of 1/8 repairs the word three bits away
    assert limit.bit_error(0) == pytest.approx(0.5)
    assert limit.bit_error(1 / 8) == pytest.approx(0.5 - 3 / 8 / 3)


def best_use_of_keys(pmf, bits, key_bits, budget):
    """Most success of all codes with these key bits: every decoding map for every key, laws by linear programming.

    The total variation of a message is that of its law averaged over keys; the budget bounds its mean over messages.
    """
    count, keys, size = 2**bits, 2**key_bits, len(pmf)
    laws = count * keys * size
    best = 0.0
    every = list(itertools.product(range(count), repeat=size))
    # Words can be renamed for all keys at once, so those of the first map come in order of appearance.
    first = [words for words in every if all(word <= max((-1, *words[:x])) + 1 for x, word in enumerate(words))]
    for maps in itertools.product(first, *[every] * (keys - 1)):
        right = np.array([[[maps[k][x] == m for x in range(size)] for k in range(keys)] for m in range(count)])
        sums = np.hstack([np.kron(np.eye(count * keys), np.ones(size)), np.zeros((count * keys, count * size))])
        mean = np.kron(np.eye(count), np.kron(np.ones(keys) / keys, np.eye(size)))
        above = np.hstack([mean, -np.eye(count * size)])
        spent = np.concatenate([np.zeros(laws), np.full(count * size, 1 / count)])
        answer = linprog(
            -np.append(right.ravel() / (count * keys), np.zeros(count * size)),
            np.vstack([above, spent]),
            np.append(np.tile(pmf, count), budget),
            sums,
            np.ones(count * keys),
        )
        best = max(best, -answer.fun)
    return best


@pytest.mark.parametrize(
    ("bits", "key_bits", "size", "seed", "attained"),
    [(1, 0, 3, 0, True), (1, 1, 3, 1, True), (1, 1, 4, 2, True), (2, 0, 3, 3, True), (2, 1, 3, 4, True)],
)
@pytest.mark.parametrize("budget", [0.0, 0.07])
def test_no_use_of_few_key_bits_beats_the_limit(bits, key_bits, size, seed, attained, budget):
    pmf = np.random.default_rng(seed).dirichlet(np.ones(size))
    limit = min(1.0, size / 2**bits, key_limited_success(pmf, bits, key_bits) + budget)
    found = best_use_of_keys(pmf, bits, key_bits, budget)
    assert found <= limit + 1e-9
    if attained:
        assert found == pytest.approx(limit, abs=1e-6)


def test_more_key_bits_never_lower_the_limit():
    pmf = np.random.default_rng(0).dirichlet(np.ones(9))
    limits = [key_limited_success(pmf, 3, key_bits) for key_bits in range(6)]
    assert limits == sorted(limits)
    assert limits[0] == pytest.approx(1 / 8)
    assert limits[3] == pytest.approx(best_partition(pmf, 3)[1])
    assert limits[4] == pytest.approx(shared_key_success(pmf, 3))


def test_a_block_limit_counts_the_doubt_about_the_partition():
    """A partition better than the one found must not beat the limit."""
    rng = np.random.default_rng(0)
    cover, weights = np.stack([gaussian_pmf(20, 4.0, rng) for _ in range(4)]), np.full(4, 0.25)
    found, proven = block_limit(cover, weights, 3, nodes=0), block_limit(cover, weights, 3, gap=1e-4, nodes=2000)
    assert found.gap > proven.gap
    assert found.block_error(0) <= 1 - proven.success + 1e-12
    assert 1 - found.block_error(0) == pytest.approx(found.success + found.gap)


@pytest.mark.parametrize("pmf", [[1.0, 0.0], [0.7, 0.3], [0.5, 0.3, 0.2]])
def test_few_candidates_leave_bit_errors_at_any_budget(pmf):
    limit = block_limit(np.array([pmf]), np.ones(1), 2)
    support = np.array([p for p in pmf if p > 0])
    for budget in (0.0, 0.1, 1.0):
        assert limit.bit_error(budget) <= least_bit_error(support, 2, budget) + 1e-9
    # with the whole budget the bound is what so few words leave: 2, 1 and 1 of 8 bits here at best
    nearest = min(
        sum(min(bin(word ^ kept).count("1") for kept in some) for word in range(4))
        for some in itertools.combinations(range(4), len(support))
    )
    assert limit.bit_error(1.0) == pytest.approx(nearest / 8)
    assert limit.bit_error(1.0) >= limit.shared_key_block_error(1.0) / 2


@settings(max_examples=50)
@given(pmfs(12), st.integers(1, 4), st.floats(0, 1))
def test_limits_are_monotone_and_consistent(pmf, bits, budget):
    limit = block_limit(pmf[None], np.ones(1), bits, nodes=0)
    masses = distance_masses(pmf, bits)
    assert masses.sum() == pytest.approx(1)
    assert masses[0] == pytest.approx(sum(min(p, 2.0**-bits) for p in pmf))
    assert 0 <= limit.bit_error(budget) <= limit.bit_error(0) + 1e-15
    assert limit.bit_error(0) <= 1 - limit.shared_key_success + 1e-12
    assert limit.shared_key_block_error(budget) <= limit.block_error(budget) + 1e-12
    assert limit.block_error(budget) >= 1 - min(1, len(pmf) / 2**bits) - 1e-12
    assert limit.bit_error(budget) >= limit.shared_key_block_error(budget) / bits - 1e-12


def test_average_over_states_is_weighted_and_the_doubt_is_reported():
    rng = np.random.default_rng(3)
    cover = np.stack([gaussian_pmf(20, 4.0, rng) for _ in range(6)])
    weights = rng.dirichlet(np.ones(6))
    limit = block_limit(cover, weights, 3, gap=1e-4, nodes=2000)
    exact = [best_partition(row, 3, gap=1e-7, nodes=5000)[1] for row in cover]
    assert limit.gap <= 1e-4
    assert limit.success <= weights @ exact + 1e-9
    assert limit.success + limit.gap >= weights @ exact - 1e-9
    unproven = block_limit(cover, weights, 3, nodes=0)
    assert unproven.gap > limit.gap
    assert limit.zero_error == pytest.approx(sum(w for w, row in zip(weights, cover, strict=True) if max(row) <= 1 / 8))


def test_limit_of_a_tree_averages_blocks_and_the_states_that_the_model_reaches():
    tree = uneven_tree(2, 2, 6, 0.5, 1)
    expected = np.zeros(3)
    reach = dict(enumerate(tree.prior))
    for block in tree.blocks:
        following = {}
        for state, probability in reach.items():
            row = block.cover[state]
            expected[0] += probability / 2 * sum(min(p, 1 / 4) for p in row)
            expected[1] += probability / 2 * min(1, np.count_nonzero(row) / 4)
            expected[2] += probability / 2 * (max(row) <= 1 / 4)
            following |= {int(block.child[state, x]): probability * row[x] for x in np.nonzero(row)[0]}
        reach = following
    limit = tree_limit(tree, 2)
    assert limit.shared_key_success == pytest.approx(expected[0])
    assert limit.largest_success == pytest.approx(expected[1])
    assert limit.zero_error == pytest.approx(expected[2])
    assert limit.distance_masses.sum() == pytest.approx(1)
    assert limit.block_error(1.0) == pytest.approx(1 - expected[1])


def test_limit_of_a_law_counts_states_as_often_as_the_law_reaches_them():
    """Here a block that leads astray pays twice: it is right more often, and so is the block after it."""
    tree = synthetic_tree(1, 2, 2, 4, 0.5, seed=1)
    covers = np.array([[0.9, 0.1]]), np.array([[1 - 1e-6, 1e-6], [0.5, 0.5]])
    blocks = [
        replace(block, cover=cover, log2_prob=np.log2(cover)) for block, cover in zip(tree.blocks, covers, strict=True)
    ]
    tree = replace(tree, blocks=tuple(blocks))
    law = plan_coded(tree, 1, 0.4, seen=number_paths(tree)).law
    astray = float(law.blocks[1].state_probs[1])
    assert astray > 0.4
    law_and_model = law_limit(law, 1), tree_limit(tree, 1)
    for limit, share in zip(law_and_model, (astray, 0.1), strict=True):
        assert limit.success == pytest.approx((0.6 + share + (1 - share) * (0.5 + 1e-6)) / 2)
    point = evaluate(tree, law, EvaluationSettings((1,), (2,), ("map",), ("path",), transmissions=0))[0]
    below, above = (limit.block_error(point.tv_mean) for limit in law_and_model)
    assert below - 1e-9 <= point.bler < above - 0.05
