"""The bound behind a channel against a general solver, and without noise against the exact optimum."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from small_laws import random_law
from small_trees import uneven_tree

from agents.planner.noisy import plan_noisy
from wm_env.criteria.channel import received_law, tree_channels
from wm_env.criteria.noise import mutual_information, noisy_rate_bound
from wm_env.information import law_totals, measure
from wm_env.optimum import solve
from wm_env.synthetic import synthetic_tree
from wm_env.theory.channel_capacity import channel_capacity


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.3, 2.0])
def test_without_noise_it_is_the_exact_optimum(epsilon):
    tree = uneven_tree(2, 2, 5, 0.5, 4)
    bound = noisy_rate_bound(tree, tree_channels(tree, "substitution", 0.0), epsilon, tolerance=1e-5)
    exact = solve(tree, epsilon)
    assert bound.rate == pytest.approx(exact.rate, abs=1.1e-5)
    assert bound.reached == pytest.approx(exact.rate, abs=1.1e-5)
    assert bound.cost <= epsilon + 1e-9


@pytest.mark.parametrize("name", ["erasure", "substitution"])
@pytest.mark.parametrize("epsilon", [0.02, 0.15])
def test_one_block_equals_a_general_solver(name, epsilon):
    tree = synthetic_tree(2, 1, 4, 4, 1.6, 0.3, 2)
    channel = tree_channels(tree, name, 0.15)[0]
    cover = tree.blocks[0].cover

    def rate(flat):
        return float(
            torch.from_numpy(tree.prior) @ mutual_information(torch.from_numpy(flat.reshape(2, 4)), channel.kernel)
        )

    # q = p + up - down, so that the budget is linear.
    def law(z):
        return np.clip(cover.ravel() + z[:8] - z[8:], 1e-12, 1)

    answer = minimize(
        lambda z: -rate(law(z)),
        np.full(16, 1e-3),
        method="SLSQP",
        bounds=[(0, 1)] * 8 + [(0, p) for p in cover.ravel()],
        constraints=[
            {"type": "eq", "fun": lambda z: (z[:8] - z[8:]).reshape(2, 4).sum(1)},
            {"type": "ineq", "fun": lambda z: epsilon - tree.prior @ z[:8].reshape(2, 4).sum(1)},
        ],
        options={"maxiter": 500, "ftol": 1e-12},
    )
    bound = noisy_rate_bound(tree, [channel], epsilon, tolerance=1e-4)
    assert bound.rate >= -answer.fun - 1e-6
    assert bound.rate == pytest.approx(-answer.fun, abs=2e-4)


@pytest.mark.parametrize("seed", range(5))
def test_no_random_law_beats_the_bound(seed):
    tree = uneven_tree(2, 2, 4, 0.5, seed)
    channels = tree_channels(tree, ("erasure", "substitution")[seed % 2], 0.1)
    for number in range(3):
        law = random_law(tree, 8, number)
        rate = sum(float(measure(received_law(b, c)).rate) for b, c in zip(law.blocks, channels, strict=True))
        cost = law_totals(law.blocks).cost
        assert rate <= noisy_rate_bound(tree, channels, cost).rate + 1e-9


@pytest.mark.parametrize(("seed", "noise"), [(0, 0.05), (1, 0.1), (2, 0.2)])
def test_the_planner_equals_the_concave_programme_for_one_block(seed, noise):
    """Labels as maps of states to symbols, at total variation 0: `channel_capacity` has the certified maximum."""
    tree = synthetic_tree(2, 1, 3, 2, 1.3, 0.67, seed)
    (channel,) = tree_channels(tree, "substitution", noise)
    block = tree.blocks[0]
    outputs = int(channel.output.max()) + 1
    # Symbols of one state only are inputs of their own; a shared symbol has a channel for each state.
    cover = np.zeros((2, 6))
    rows = np.zeros((6, outputs))
    for state in range(2):
        for x in range(3):
            cover[state, 3 * state + x] = block.cover[state, x]
            np.add.at(rows[3 * state + x], channel.output[state].numpy(), channel.kernel[state, x].numpy())
    exact = channel_capacity(tree.prior, cover, rows, gap=1e-8)
    start = torch.Generator().manual_seed(0)
    best = plan_noisy(tree, [channel], 0.0, labels=16, iterations=100, generator=start).rate
    assert best <= exact.rate + exact.gap + 1e-9
    # Without momentum 100 updates come no nearer than 6e-5, 4e-4 and 3e-3.
    assert best == pytest.approx(exact.rate, abs=1e-7)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_no_number_of_updates_loses_what_the_start_had(epsilon):
    tree = uneven_tree(3, 2, 4, 0.9, 2)
    channels = tree_channels(tree, "substitution", 0.2)

    def plan(iterations):
        start = torch.Generator().manual_seed(1)
        return plan_noisy(tree, channels, epsilon, labels=16, iterations=iterations, generator=start)

    first, *more = [plan(iterations) for iterations in (1, 2, 3, 5, 9, 17, 33, 65)]
    assert all(later.rate >= first.rate - 1e-12 for later in more)
    assert all(later.cost <= epsilon + 1e-9 for later in (first, *more))


def test_the_planner_climbs_and_keeps_its_budget():
    tree = uneven_tree(2, 2, 5, 0.5, 1)
    channels = tree_channels(tree, "erasure", 0.1)
    for epsilon in (0.0, 0.1):
        plans = [plan_noisy(tree, channels, epsilon, iterations=rounds) for rounds in (1, 30)]
        bound = noisy_rate_bound(tree, channels, epsilon)
        assert plans[0].rate - 1e-4 <= plans[1].rate <= bound.rate + 1e-9
        assert plans[1].rate >= 0.9 * bound.rate
        assert all(plan.cost <= epsilon + 1e-9 for plan in plans)
