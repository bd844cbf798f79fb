import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.adaptive_planner import buy_bits, plan_adaptive
from polar.adaptive import AdaptiveSettings, evaluate_adaptive
from wm_env.information import measure
from wm_env.limits import best_partition
from wm_env.synthetic import synthetic_tree


def random_prices(seed, states=5, most=3):
    rng = np.random.default_rng(seed)
    prices = np.cumsum(rng.gamma(0.5, size=(states, most + 1)), axis=1)
    prices[rng.random(prices.shape) < 0.2] = np.inf
    prices[:, 0] = 0
    return prices, rng.dirichlet(np.ones(states))


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.floats(0, 2))
def test_bought_bits_fit_the_budget_and_miss_the_best_by_less_than_one_step(seed, budget):
    prices, weights = random_prices(seed)
    states = np.arange(len(prices))
    chosen = buy_bits(prices, weights, budget)
    assert weights @ prices[states, chosen] <= budget + 1e-12
    best = max(
        weights @ np.array(lengths)
        for lengths in itertools.product(range(4), repeat=5)
        if np.isfinite(prices[states, lengths]).all() and weights @ prices[states, lengths] <= budget
    )
    assert best - 3 * weights.max() <= weights @ chosen <= best + 1e-12


def test_free_bits_are_always_taken():
    prices = np.array([[0, 0, 0, 0.5], [0, np.inf, 0, np.inf], [0, 0.1, 0.2, 0.3]])
    assert buy_bits(prices, np.full(3, 1 / 3), 0.0).tolist() == [2, 2, 0]


def test_the_cheapest_bits_come_first_over_the_convex_hull():
    # Two bits in state 0 cost 0.2 each, less than one bit in either state.
    prices = np.array([[0, 0.3, 0.4], [0, 0.25, np.inf]])
    assert buy_bits(prices, np.ones(2), 0.4).tolist() == [2, 0]
    assert buy_bits(prices, np.ones(2), 0.65).tolist() == [2, 1]


def test_more_budget_never_means_fewer_bits_and_the_price_is_the_partitions_loss():
    tree = synthetic_tree(2, 1, 10, 8, 2.8, seed=3)
    plans = [plan_adaptive(tree, epsilon) for epsilon in (0.0, 0.02, 0.1, 0.5)]
    assert all(first.bits <= second.bits for first, second in itertools.pairwise(plans))
    for plan, epsilon in zip(plans, (0.0, 0.02, 0.1, 0.5), strict=True):
        block = plan.law.blocks[0]
        expected = sum(
            z * (1 - best_partition(row, int(bits), nodes=0)[1])
            for z, row, bits in zip(tree.prior, tree.blocks[0].cover, plan.lengths[0], strict=True)
        )
        assert plan.cost == pytest.approx(expected, abs=1e-9)
        assert float(measure(block).cost) == pytest.approx(plan.cost, abs=1e-9)
        assert plan.cost <= epsilon + 1e-12


def test_no_budget_at_all_is_refused():
    with pytest.raises(ValueError, match="epsilon"):
        plan_adaptive(synthetic_tree(1, 1, 4, 4, 1.5), -0.1)


def test_states_that_look_alike_have_one_length_and_make_no_errors():
    tree = synthetic_tree(6, 2, 8, 4, 2.5, overlap=0.6, seed=3)
    plan = plan_adaptive(tree, 0.6)
    symbols = [set(row[cover > 0]) for row, cover in zip(tree.blocks[0].symbol, tree.blocks[0].cover, strict=True)]
    shared = 0
    for first in range(6):
        for second in range(first):
            if symbols[first] & symbols[second]:
                shared += 1
                assert plan.lengths[0][first] == plan.lengths[0][second]
    assert shared > 0
    point = evaluate_adaptive(tree, plan.law, AdaptiveSettings(transmissions=0))
    assert point.mean_bits == pytest.approx(plan.bits / 2)
    assert plan.bits > 0
    assert point.bler == pytest.approx(0, abs=1e-9)
