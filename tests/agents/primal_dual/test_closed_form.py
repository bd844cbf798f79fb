"""The closed form against automatic differentiation of `agents.primal_dual.algorithm`."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trees import uneven_tree

from agents.common.settings import PolicySettings
from agents.primal_dual.agent import AGENT
from agents.primal_dual.algorithm import AutogradLagrangian, PrimalDual, initial_policy
from agents.primal_dual.closed_form import ClosedFormLagrangian
from agents.primal_dual.settings import LearnerSettings
from wm_env.criteria.costs import cost_of
from wm_env.criteria.objectives import Coded, make_objective
from wm_env.criteria.table import COSTS
from wm_env.problem import Problem
from wm_env.synthetic import synthetic_tree
from wm_env.theory.limits import best_partition

SHARP = PolicySettings(embedding=6, common=0.2, label_spread=3.0)
TABLE = PolicySettings(embedding=None, common=0.2, label_spread=3.0)


def compare(problem, objective, labels, multiplier, dtype, tolerance, start=SHARP):
    reference = initial_policy(problem, labels, start, seed=1).double()
    wanted = AutogradLagrangian(problem, objective)(reference, torch.tensor(multiplier, dtype=torch.float64))
    policy = initial_policy(problem, labels, start, seed=1).to(dtype)
    lagrangian = ClosedFormLagrangian(problem, objective, labels, dtype)
    got = lagrangian(policy, torch.tensor(multiplier, dtype=dtype))
    assert float(got.rate) == pytest.approx(float(wanted.rate), abs=10 * tolerance)
    assert float(got.cost) == pytest.approx(float(wanted.cost), abs=10 * tolerance)
    for right, left in zip(reference.parameters(), policy.parameters(), strict=True):
        error = torch.linalg.vector_norm(left.grad - right.grad)
        assert float(error) <= tolerance * float(torch.linalg.vector_norm(right.grad)) + 1e-14


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(2, 5)),
    overlap=st.sampled_from([0.0, 0.5, 1.0]),
    objective=st.sampled_from(["gp", "coded"]),
    gamma=st.sampled_from([1.0, 0.6]),
    multiplier=st.sampled_from([0.0, 2.5]),
    cost=st.sampled_from([cost_of(name) for name in COSTS]),
    start=st.sampled_from([SHARP, TABLE]),
    seed=st.integers(0, 100),
)
@settings(max_examples=60)
def test_equals_automatic_differentiation(shape, overlap, objective, gamma, multiplier, cost, start, seed):
    prompts, blocks, candidates = shape
    problem = Problem(uneven_tree(prompts, blocks, candidates, overlap, seed), 0.1, gamma, cost=cost)
    bits = 2 if objective == "coded" else None
    compare(problem, make_objective(objective, 8, 16, bits), 16, multiplier, torch.float64, 1e-10, start)


@pytest.mark.parametrize("objective", ["gp", "coded"])
def test_single_precision_agrees_to_five_digits(objective):
    problem = Problem(synthetic_tree(8, 2, 10, 8, entropy=3.0, overlap=0.2), 0.1, 1.0)
    compare(problem, make_objective(objective, 8, 64), 64, 2.0, torch.float32, 1e-5)


@pytest.mark.parametrize("start", [SHARP, TABLE])
def test_chunks_do_not_change_the_result(monkeypatch, small_tree, start):
    problem, objective = Problem(small_tree, 0.1, 1.0), make_objective("gp", 4, 8)
    policy = initial_policy(problem, 8, start, seed=0).double()
    multiplier = torch.tensor(1.0, dtype=torch.float64)
    whole = ClosedFormLagrangian(problem, objective, 8, torch.float64)
    assert [len(tables.chunks) for tables in whole.blocks] == [1, 1]
    whole(policy, multiplier)
    wanted = [parameter.grad.clone() for parameter in policy.parameters()]
    monkeypatch.setattr("agents.primal_dual.closed_form.CHUNK_BYTES", 7 * 5 * 8 * 8)
    pieces = ClosedFormLagrangian(problem, objective, 8, torch.float64)
    assert [len(tables.chunks) for tables in pieces.blocks] == [1, 5]
    pieces(policy, multiplier)
    for parameter, value in zip(policy.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, value, rtol=1e-12, atol=1e-15)


def test_both_forms_learn_the_same(small_tree):
    problem, objective = Problem(small_tree, 0.1, 1.0), make_objective("gp", 4, 8)
    learners = []
    for gradient in (
        AutogradLagrangian(problem, objective),
        ClosedFormLagrangian(problem, objective, 8, torch.float64),
    ):
        policy = initial_policy(problem, 8, SHARP, seed=0).double()
        learners.append(PrimalDual(policy, gradient, 0.1, LearnerSettings()))
    for _ in range(100):
        outcomes = [learner.step() for learner in learners]
    assert float(outcomes[0].rate) == pytest.approx(float(outcomes[1].rate), abs=1e-6)
    assert float(learners[0].multiplier) == pytest.approx(float(learners[1].multiplier), abs=1e-6)


def test_learns_the_optimal_law_and_its_multiplier():
    problem = Problem(synthetic_tree(3, blocks=2, candidates=4, block_length=4, entropy=1.6), 0.1, 1.0)
    policy = initial_policy(problem, 8, PolicySettings(embedding=16), seed=0)
    gradient = ClosedFormLagrangian(problem, make_objective("gp", 4, 8), 8)
    learner = PrimalDual(policy, gradient, 0.1, LearnerSettings(learning_rate=0.01))
    outcomes = [learner.step() for _ in range(1000)]
    feasible = [float(outcome.rate) for outcome in outcomes if outcome.cost <= 0.1]
    assert 0.99 * problem.optimum.rate < max(feasible) <= problem.optimum.rate + 1e-5
    assert float(learner.multiplier) == pytest.approx(problem.optimum.multiplier, rel=0.05)


@pytest.mark.parametrize("second_moment", ["row", "entry"])
def test_steps_by_row_find_even_partitions(second_moment):
    # Ten states that share nothing, 3 bits in about 4 bits of entropy. Block error plus total variation is at least
    # 1 - P0 for every law; how far above it a learner stops depends on how evenly its words divide the candidates.
    tree = synthetic_tree(10, 1, 20, entropy=4.0, seed=3)
    problem, constants = Problem(tree, 0.05, 1.0), AGENT.presets["coded"].constants
    constants = dataclasses.replace(constants, second_moment=second_moment)
    policy = initial_policy(problem, 8, constants.policy, seed=0)
    gradient = ClosedFormLagrangian(problem, make_objective("coded", 8, 8, 3), 8)
    learner = PrimalDual(policy, gradient, 0.05, constants, iterations=1500)
    for _ in range(1500):
        learner.step()
    with torch.no_grad():
        channel = policy(0)[1].double().numpy()
    losses = []
    for cover, given_word in zip(tree.blocks[0].cover, channel, strict=True):
        joint = given_word / 8
        loss = 1 - joint.max(0).sum() + abs(joint.sum(0) - cover).sum() / 2
        losses.append(loss - (1 - best_partition(cover, 3)[1]))
    assert min(losses) > -1e-6
    above = sum(losses) / len(losses)
    assert above < 0.055 if second_moment == "row" else above > 0.065


def test_scattered_message_set_is_refused(small_tree):
    with pytest.raises(ValueError, match="first free positions"):
        ClosedFormLagrangian(Problem(small_tree, 0.1, 1.0), Coded(4, (1, 3)), 8)
