import dataclasses
import itertools
import math

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from small_trees import uneven_tree

from wm_env.criteria.costs import clipped_law, cost_of
from wm_env.optimum import Optimum, RateBound, percent_of_optimum, rate_bound, solve
from wm_env.synthetic import synthetic_tree
from wm_env.tree import StateTree, number_symbols


def convex_optimum(tree: StateTree, epsilon: float, gamma: float, kind: str = "tv") -> float:
    """The same optimum as one joint convex programme over the flows f(s, x) = Z(s) q(x|s)."""
    reach: cvxpy.Expression = cvxpy.Constant(tree.prior)
    rate, cost, constraints = cvxpy.Constant(0), cvxpy.Constant(0), []
    for number, block in enumerate(tree.blocks):
        states, candidates = block.cover.shape
        flow = cvxpy.Variable((states, candidates), nonneg=True)
        constraints += [cvxpy.sum(flow, axis=1) == reach, cvxpy.multiply(flow, block.cover == 0) == 0]
        mass = cvxpy.reshape(reach, (states, 1), order="C") @ np.ones((1, candidates))
        weight = gamma ** (number + 1)
        rate += weight * cvxpy.sum(-cvxpy.rel_entr(flow, mass)) / math.log(2)
        plain = cvxpy.multiply(mass, block.cover)
        if kind == "kl":
            cost += weight * cvxpy.sum(cvxpy.rel_entr(flow, plain + (block.cover == 0))) / math.log(2)
        else:
            cost += weight * cvxpy.sum(cvxpy.abs(flow - plain)) / 2
        if number + 1 < len(tree.blocks):
            flat = cvxpy.reshape(flow, (states * candidates,), order="C")
            parent = np.zeros((len(tree.blocks[number + 1].cover), states * candidates))
            for place, state in enumerate(block.child.reshape(-1)):
                if state >= 0:
                    parent[state, place] = 1
            reach = parent @ flat
    problem = cvxpy.Problem(cvxpy.Maximize(rate), [*constraints, cost <= epsilon])
    problem.solve(solver=cvxpy.CLARABEL)
    assert problem.status in (cvxpy.OPTIMAL, cvxpy.OPTIMAL_INACCURATE)
    return float(problem.value)


def rate_and_cost(tree: StateTree, laws: list[np.ndarray], gamma: float) -> tuple[float, float]:
    """Discounted rate and cost of marginal laws, by loops over states and candidates."""
    reach = list(tree.prior)
    rate = cost = 0.0
    for number, (block, law) in enumerate(zip(tree.blocks, laws, strict=True)):
        following = [0.0] * (len(tree.blocks[number + 1].cover) if number + 1 < len(tree.blocks) else 0)
        for state, mass in enumerate(reach):
            weight = gamma ** (number + 1) * mass
            for q, p, child in zip(law[state], block.cover[state], block.child[state], strict=True):
                rate -= weight * (q * math.log2(q) if q > 0 else 0)
                cost += weight * abs(q - p) / 2
                if child >= 0 and following:
                    following[child] += mass * q
        reach = following
    return rate, cost


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize(("blocks", "candidates"), [(1, 20), (2, 6), (3, 3)])
@pytest.mark.parametrize("epsilon", [0.02, 0.2])
@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_equals_a_joint_convex_programme(blocks: int, candidates: int, gamma: float, epsilon: float, kind: str) -> None:
    tree = synthetic_tree(2, blocks, candidates, entropy=0.6 * np.log2(candidates), seed=blocks)
    optimum = solve(tree, epsilon, gamma, cost_of(kind))
    # The solver keeps fewer digits of relative entropies.
    assert optimum.rate == pytest.approx(convex_optimum(tree, epsilon, gamma, kind), abs=1e-5 if kind == "tv" else 3e-5)
    assert optimum.cost <= epsilon + 1e-9


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_equals_a_joint_convex_programme_with_padded_candidates(gamma: float) -> None:
    tree = uneven_tree(blocks=2, candidates=6)
    optimum = solve(tree, 0.1, gamma)
    assert optimum.rate == pytest.approx(convex_optimum(tree, 0.1, gamma), abs=1e-5)
    for law, block in zip(optimum.marginals, tree.blocks, strict=True):
        assert (law.numpy()[block.cover == 0] == 0).all()


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    epsilon=st.floats(1e-6, 0.5),
    gamma=st.sampled_from([1.0, 0.9, 0.5]),
    blocks=st.integers(1, 3),
)
def test_reported_rate_and_cost_are_those_of_the_marginals(
    seed: int, epsilon: float, gamma: float, blocks: int
) -> None:
    tree = uneven_tree(blocks=blocks, candidates=4, seed=seed)
    optimum = solve(tree, epsilon, gamma)
    laws = [law.numpy() for law in optimum.marginals]
    assert all(abs(law.sum(1) - 1).max() < 1e-13 and (law >= 0).all() for law in laws)
    assert rate_and_cost(tree, laws, gamma) == pytest.approx((optimum.rate, optimum.cost), abs=1e-12)
    if optimum.multiplier > 0:
        assert optimum.cost == pytest.approx(epsilon, abs=1e-9)
    else:
        assert optimum.cost <= epsilon


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), epsilon=st.floats(0.001, 0.3), gamma=st.sampled_from([1.0, 0.9]))
def test_no_feasible_change_of_the_laws_is_better(seed: int, epsilon: float, gamma: float) -> None:
    tree = uneven_tree(blocks=2, candidates=4, seed=seed)
    optimum = solve(tree, epsilon, gamma)
    covers = [block.cover for block in tree.blocks]
    rng = np.random.default_rng(seed)
    for _ in range(50):
        step = 10 ** rng.uniform(-5, 0)
        target = [rng.dirichlet(np.ones(cover.shape[1]), size=len(cover)) * (cover > 0) for cover in covers]
        changed = [
            (1 - step) * law.numpy() + step * other / other.sum(1, keepdims=True)
            for law, other in zip(optimum.marginals, target, strict=True)
        ]
        # The most of the change that the budget allows, on the line to the cover.
        share = affordable_share(tree, changed, epsilon, gamma)
        feasible = [share * law + (1 - share) * cover for law, cover in zip(changed, covers, strict=True)]
        assert rate_and_cost(tree, feasible, gamma)[0] <= optimum.rate + 1e-12


def affordable_share(tree: StateTree, laws: list[np.ndarray], epsilon: float, gamma: float) -> float:
    def excess(share: float) -> float:
        mixed = [share * law + (1 - share) * block.cover for law, block in zip(laws, tree.blocks, strict=True)]
        return rate_and_cost(tree, mixed, gamma)[1] - epsilon

    return 1.0 if excess(1.0) <= 0 else float(brentq(excess, 0.0, 1.0))


@settings(max_examples=200)
@given(
    seed=st.integers(0, 10**6),
    candidates=st.integers(1, 12),
    multiplier=st.sampled_from([0.0, 1e-9, 0.3, 3.0, 40.0, 500.0]),
    spread=st.sampled_from([0.0, 1.0, 20.0]),
    peak=st.sampled_from([0.05, 1.0, 30.0]),
)
def test_clipped_law_solves_for_the_sum_by_bisection_too(
    seed: int, candidates: int, multiplier: float, spread: float, peak: float
) -> None:
    rng = np.random.default_rng(seed)
    cover = np.exp2(-peak * rng.random(candidates))
    cover[rng.random(candidates) < 0.2] = 0
    cover[rng.integers(candidates)] = 1
    cover /= cover.sum()
    bonus = spread * rng.random(candidates)

    def law(log_t: float) -> np.ndarray:
        low, high = bonus + log_t - multiplier / 2, bonus + log_t + multiplier / 2
        return np.where(cover > 0, np.clip(cover, np.exp2(low), np.exp2(high)), 0)

    log_t = brentq(lambda value: law(value).sum() - 1, -600, 600, xtol=1e-13)
    got = clipped_law(torch.as_tensor(cover)[None], torch.as_tensor(bonus)[None], multiplier)[0].numpy()
    assert abs(got.sum() - 1) < 1e-13
    assert abs(got - law(log_t)).max() < 1e-10


def test_a_budget_of_zero_gives_the_cover_itself() -> None:
    tree = uneven_tree(blocks=3, candidates=4)
    optimum = solve(tree, 0.0, 0.9)
    assert all(
        np.array_equal(law.numpy(), block.cover) for law, block in zip(optimum.marginals, tree.blocks, strict=True)
    )
    assert optimum.cost == 0
    rate, _ = rate_and_cost(tree, [block.cover for block in tree.blocks], 0.9)
    assert optimum.rate == pytest.approx(rate, abs=1e-13)


def test_the_multiplier_is_the_slope_of_rate_against_budget() -> None:
    tree = synthetic_tree(3, 2, 5, entropy=1.5, seed=4)
    for epsilon in (1e-9, 0.05, 0.3):
        step = min(1e-5, epsilon / 2)
        slope = (solve(tree, epsilon + step).rate - solve(tree, epsilon - step).rate) / (2 * step)
        assert solve(tree, epsilon).multiplier == pytest.approx(slope, rel=1e-3)
    assert solve(tree, 0.0).multiplier == pytest.approx(solve(tree, 1e-12).multiplier, rel=1e-6)


def test_more_budget_never_hurts_and_helps_less_and_less() -> None:
    tree = synthetic_tree(3, 2, 6, entropy=1.8, overlap=0.5, seed=5)
    rates = np.array([solve(tree, epsilon).rate for epsilon in np.linspace(0, 1.5, 31)])
    assert (np.diff(rates) >= -1e-12).all()
    assert (np.diff(rates, 2) <= 1e-12).all()


def test_a_budget_that_does_not_bind_has_no_price() -> None:
    tree = synthetic_tree(2, 1, 5, entropy=1.0)
    optimum = solve(tree, 1.0)
    assert optimum.multiplier == 0
    assert optimum.rate == pytest.approx(math.log2(5), abs=1e-12)


def test_a_flat_cover_needs_no_budget() -> None:
    optimum = solve(synthetic_tree(2, 2, 4, entropy=2.0), 0.1)
    assert (optimum.cost, optimum.multiplier) == (pytest.approx(0, abs=1e-12), 0)
    assert optimum.rate == pytest.approx(4.0, abs=1e-12)


@pytest.mark.parametrize("epsilon", [-0.1, math.nan])
def test_refuses_a_budget_that_is_none(epsilon: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon=.*budget of 0 or more"):
        solve(synthetic_tree(1, 1, 4, entropy=1.0), epsilon)


@pytest.mark.parametrize("gamma", [0.0, 1.1, math.nan])
def test_refuses_a_discount_outside_its_range(gamma: float) -> None:
    with pytest.raises(ValueError, match=r"gamma=.*discount"):
        solve(synthetic_tree(1, 1, 4, entropy=1.0), 0.1, gamma)


def test_percent_of_optimum() -> None:
    optimum = solve(synthetic_tree(1, 1, 4, entropy=1.0), 1.0)
    assert percent_of_optimum(1.5, optimum) == pytest.approx(75.0)
    assert percent_of_optimum(0.0, Optimum((), 0.0, 0.0, 0.0)) == 100.0


def shared_tree(cover: list[list[float]], blocks_of: list[list[str]]) -> StateTree:
    """One block whose states have the given laws of the given token blocks."""
    tree = synthetic_tree(len(cover), 1, len(cover[0]), entropy=0.5, seed=0)
    text = tuple(tuple(name.encode() for name in row) for row in blocks_of)
    block = dataclasses.replace(tree.blocks[0], cover=np.array(cover), text=text, symbol=number_symbols(text))
    return dataclasses.replace(tree, blocks=(block,))


def joint_rate_and_cost(tree: StateTree, p_label: np.ndarray, p_candidate: np.ndarray) -> tuple[float, float]:
    """I(U;X) - I(U;S) in bits and the total variation of a tree of one block, from the joint pmf by loops.

    Args:
        tree: the states, N of them with Q candidates.
        p_label: P(u|s), shape (N, M).
        p_candidate: W(x|u,s), shape (N, M, Q).
    """
    block = tree.blocks[0]
    states, labels, candidates = p_candidate.shape
    pairs: dict[str, dict[tuple[int, int], float]] = {"symbol": {}, "state": {}}
    cost = 0.0
    for s, u, x in itertools.product(range(states), range(labels), range(candidates)):
        mass = tree.prior[s] * p_label[s, u] * p_candidate[s, u, x]
        for name, other in (("symbol", int(block.symbol[s, x])), ("state", s)):
            pairs[name][u, other] = pairs[name].get((u, other), 0.0) + mass
    for s, x in itertools.product(range(states), range(candidates)):
        sent = sum(p_label[s, u] * p_candidate[s, u, x] for u in range(labels))
        cost += tree.prior[s] * abs(sent - block.cover[s, x]) / 2

    def information(joint: dict[tuple[int, int], float]) -> float:
        left: dict[int, float] = {}
        right: dict[int, float] = {}
        for (u, other), mass in joint.items():
            left[u] = left.get(u, 0.0) + mass
            right[other] = right.get(other, 0.0) + mass
        return sum(mass * math.log2(mass / (left[u] * right[o])) for (u, o), mass in joint.items() if mass > 0)

    return information(pairs["symbol"]) - information(pairs["state"]), cost


ABOUT_TRIANGLE = ([[0.5, 0.5]] * 3, [["a", "b"], ["b", "c"], ["c", "a"]])
"""Three states with two candidates each, every two share one: three labels are needed."""


@pytest.mark.parametrize(
    ("cover", "names", "labels", "expected"),
    [
        ([[0.25] * 4], [["a", "b", "c", "d"]], 2, RateBound(1.0, exact=False)),
        ([[0.25] * 4], [["a", "b", "c", "d"]], 4, RateBound(2.0, exact=True)),
        ([[0.25] * 4], [["a", "b", "c", "d"]], None, RateBound(2.0, exact=True)),
        (*ABOUT_TRIANGLE, 2, RateBound(1.0, exact=False)),
        (*ABOUT_TRIANGLE, 4, RateBound(1.0, exact=True)),
    ],
)
def test_bound_of_few_labels(
    cover: list[list[float]], names: list[list[str]], labels: int | None, expected: RateBound
) -> None:
    tree = shared_tree(cover, names)
    bound = rate_bound(tree, solve(tree, 0.1), labels)
    assert bound == RateBound(pytest.approx(expected.rate, abs=1e-12), expected.exact)


def test_discounted_bound_of_few_labels() -> None:
    tree = synthetic_tree(2, 3, 8, entropy=2.9)
    bound = rate_bound(tree, solve(tree, 0.1, 0.5), 2, 0.5)
    assert bound == RateBound(pytest.approx(0.5 + 0.25 + 0.125), exact=False)


@pytest.mark.parametrize("epsilon", [0.05, 0.3])
@pytest.mark.parametrize(
    ("cover", "names"),
    [
        ([[0.5, 0.3, 0.2]], [["a", "b", "c"]]),
        ([[0.7, 0.3], [0.4, 0.6]], [["a", "b"], ["b", "c"]]),
        ABOUT_TRIANGLE,
    ],
)
def test_no_law_of_two_labels_exceeds_the_bound(
    cover: list[list[float]], names: list[list[str]], epsilon: float
) -> None:
    """Every map of candidates to labels, with P(u|s) and W(x|u,s) on a grid around it."""
    tree = shared_tree(cover, names)
    states, candidates = np.shape(cover)
    bound = rate_bound(tree, solve(tree, epsilon), 2)
    best = 0.0
    rng = np.random.default_rng(0)
    for maps in itertools.product(range(2), repeat=states * candidates):
        for _ in range(20):
            marginal = np.array(cover) * rng.uniform(0.4, 1.6, size=(states, candidates))
            marginal /= marginal.sum(1, keepdims=True)
            noise = rng.choice([0.0, 0.0, 0.1])
            given = np.full((states, candidates, 2), noise / 2)  # P(u|x,s)
            for place, label in enumerate(maps):
                given[place // candidates, place % candidates, label] += 1 - noise
            joint = np.moveaxis(marginal[:, :, None] * given, 2, 1)
            p_label = joint.sum(2)
            p_candidate = np.where(p_label[:, :, None] > 0, joint / np.maximum(p_label, 1e-300)[:, :, None], 0.5)
            rate, cost = joint_rate_and_cost(tree, p_label, p_candidate)
            if cost <= epsilon:
                best = max(best, rate)
    assert best <= bound.rate + 1e-12
    assert best > 0.6 * bound.rate
    fewest = min(
        max(labelled.values()) + 1
        for labelling in itertools.product(range(4), repeat=len({name for row in names for name in row}))
        for labelled in [dict(zip(sorted({name for row in names for name in row}), labelling, strict=True))]
        if all(len({labelled[name] for name in row}) == len(row) for row in names)
    )
    assert bound.exact == (fewest <= 2)
    if bound.exact:
        assert best > 0.95 * bound.rate
