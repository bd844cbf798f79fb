"""Costs by independent arithmetic: divergences by loops, best responses by a generic optimiser, texts path by path."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from small_trees import uneven_tree

from agents.planner.rate import plan
from wm_env.criteria.costs import KLDivergence, cost_of, solvable_costs
from wm_env.criteria.table import COSTS
from wm_env.information import law_totals, measure
from wm_env.law import induced_cover
from wm_env.optimum import solve
from wm_env.synthetic import synthetic_tree

laws = st.lists(st.floats(0.01, 1), min_size=4, max_size=4).map(lambda row: np.array(row) / sum(row))


def divergence(name: str, law: np.ndarray, cover: np.ndarray) -> float:
    if name == "tv":
        return sum(abs(q - p) for q, p in zip(law, cover, strict=True)) / 2
    return sum(q * math.log2(q / p) for q, p in zip(law, cover, strict=True) if q > 0)


def row(law: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(law)[None]


@pytest.mark.parametrize("name", COSTS)
@given(law=laws, cover=laws)
def test_value_slope_and_excess(name: str, law: np.ndarray, cover: np.ndarray) -> None:
    cost = cost_of(name)
    value = divergence(name, law, cover)
    assert float(cost(row(law), row(cover))) == pytest.approx(value, abs=1e-12)
    slope = cost.slope(row(law), row(cover))[0].numpy()
    assert float(cost.excess(row(law), row(cover))) == pytest.approx(law @ slope - value, abs=1e-12)
    # A subgradient on the simplex: the divergence of every other law lies above the line.
    for other in (cover, np.eye(4)[0] * 0.7 + law * 0.3, np.full(4, 0.25)):
        assert divergence(name, other, cover) >= value + slope @ (other - law) - 1e-9


@pytest.mark.parametrize("name", solvable_costs())
@given(
    cover=laws,
    bonus=st.lists(st.floats(-2, 2), min_size=4, max_size=4).map(np.array),
    multiplier=st.floats(0, 20),
)
def test_no_law_does_better_than_the_best_response(
    name: str, cover: np.ndarray, bonus: np.ndarray, multiplier: float
) -> None:
    def worth(law: np.ndarray) -> float:
        entropy = -sum(q * math.log2(q) for q in law if q > 0)
        return entropy + law @ bonus - multiplier * divergence(name, law, cover)

    found = cost_of(name).best_response(row(cover), row(bonus), multiplier)[0].numpy()
    assert found.sum() == pytest.approx(1)
    rng = np.random.default_rng(0)
    for _ in range(20):
        other = rng.dirichlet(np.ones(4))
        for step in (1e-3, 0.1, 1):
            assert worth(found) >= worth((1 - step) * found + step * other) - 1e-9


def test_the_tilted_law_is_that_of_a_generic_optimiser() -> None:
    cover, bonus, multiplier = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.3, -0.5, 1.0, 0.0]), 1.7

    def loss(logits: np.ndarray) -> float:
        law = np.exp(logits) / np.exp(logits).sum()
        return float(law @ np.log2(law) - law @ bonus + multiplier * divergence("kl", law, cover))

    logits = minimize(loss, np.zeros(4), tol=1e-14).x
    found = cost_of("kl").best_response(row(cover), row(bonus), multiplier)[0].numpy()
    np.testing.assert_allclose(found, np.exp(logits) / np.exp(logits).sum(), atol=1e-6)


def test_what_a_state_does_not_have_gets_no_mass() -> None:
    cover = torch.tensor([[0.7, 0.0, 0.3]], dtype=torch.float64)
    bonus = torch.tensor([[0.0, 9.0, 1.0]], dtype=torch.float64)
    for cost in map(cost_of, COSTS):
        assert float(cost.best_response(cover, bonus, 2.0)[0, 1]) == 0
        assert torch.isfinite(cost.slope(cover, cover)).all()


@pytest.mark.parametrize("tree", [synthetic_tree(2, 2, 3, entropy=1.2, seed=1), uneven_tree()], ids=["full", "uneven"])
def test_kl_adds_up_to_that_of_whole_texts_and_bounds_their_total_variation(tree) -> None:
    law = plan(tree, 0.2, cost=cost_of("kl")).law
    marked = [induced_cover(block).numpy() for block in law.blocks]
    first, second = tree.blocks
    whole = variation = 0.0
    candidates = range(first.cover.shape[1])
    for state, x, y in itertools.product(range(len(tree.prior)), candidates, candidates):
        child = first.child[state, x]
        if child < 0:
            continue
        q = tree.prior[state] * marked[0][state, x] * marked[1][child, y]
        p = tree.prior[state] * first.cover[state, x] * second.cover[child, y]
        whole += q * math.log2(q / p) if q > 0 else 0.0
        variation += abs(q - p) / 2
    assert law_totals(law.blocks, cost=cost_of("kl")).cost == pytest.approx(whole, abs=1e-12)
    assert whole == pytest.approx(0.2, abs=1e-9)
    assert variation <= math.sqrt(whole * math.log(2) / 2)


def test_the_slope_of_the_frontier_is_the_multiplier() -> None:
    tree, kl = synthetic_tree(2, 2, 5, entropy=1.5, seed=2), cost_of("kl")
    for epsilon in (0.01, 0.1, 0.4):
        step = 1e-6
        slope = (solve(tree, epsilon + step, cost=kl).rate - solve(tree, epsilon - step, cost=kl).rate) / (2 * step)
        assert solve(tree, epsilon, cost=kl).multiplier == pytest.approx(slope, rel=1e-3)
    nothing = solve(tree, 0.0, cost=kl)
    assert (nothing.multiplier, nothing.cost) == (math.inf, 0.0)


def test_the_kl_optimum_is_no_tv_optimum_but_as_good_at_its_own_cost() -> None:
    tree = synthetic_tree(2, 2, 5, entropy=1.5, seed=2)
    found = plan(tree, 0.1, cost=cost_of("kl"))
    totals = law_totals(found.law.blocks)
    assert solve(tree, totals.cost).rate > totals.rate
    assert [float(measure(block, cost_of("kl")).rate) for block in found.law.blocks] == [
        float(measure(block).rate) for block in found.law.blocks
    ]


def test_names() -> None:
    assert cost_of("kl") == cost_of(cost_of("kl")) == KLDivergence()
    with pytest.raises(ValueError, match=r"^cost='js': choose one of tv, kl$"):
        cost_of("js")
