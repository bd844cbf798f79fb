"""Algorithm 1 against loops in plain Python: objective, numeric gradient, a step of Adam, a step of the multiplier."""

import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from small_trees import uneven_tree

from agents.common.policies import SoftmaxPolicy
from agents.common.settings import PolicySettings
from agents.common.slots import candidate_slots
from agents.primal_dual.algorithm import AutogradLagrangian, PrimalDual, initial_policy
from agents.primal_dual.settings import LearnerSettings
from wm_env.criteria.objectives import make_objective
from wm_env.problem import Problem

SETTINGS = PolicySettings(embedding=4, label_spread=1.5)
BY_ROW = LearnerSettings(
    learning_rate=0.1, schedule="linear", second_moment="row", policy=PolicySettings(embedding=None)
)
LABELS = 4


def rate_and_cost(tree, gamma, embedding, label_head, candidate_head):
    """sum_b gamma^b r_b and sum_b gamma^b c_b of softmax heads, with dictionaries and loops."""
    state_law = dict(enumerate(tree.prior))
    row, total_rate, total_cost = 0, 0.0, 0.0
    for number, block in enumerate(tree.blocks):
        joint_ux, joint_us = defaultdict(float), defaultdict(float)
        following = defaultdict(float)
        cost = 0.0
        slots = candidate_slots(block)
        for state, cover in enumerate(block.cover):
            vector = embedding[row + state]
            p_label = softmax(vector @ label_head, np.ones(LABELS, dtype=bool))
            sent = np.zeros(len(cover))
            for label in range(LABELS):
                channel = softmax((vector @ candidate_head[:, :, label])[slots[state]], cover > 0)
                joint_us[label, state] += state_law[state] * p_label[label]
                for x in np.flatnonzero(cover):
                    mass = state_law[state] * p_label[label] * channel[x]
                    joint_ux[label, int(block.symbol[state, x])] += mass
                    following[int(block.child[state, x])] += mass
                    sent[x] += p_label[label] * channel[x]
            cost += state_law[state] * sum(abs(sent - cover)) / 2
        weight = gamma ** (number + 1)
        total_rate += weight * (information(joint_ux) - information(joint_us))
        total_cost += weight * cost
        row += len(block.cover)
        state_law = following
    return total_rate, total_cost


def softmax(logits, support):
    weights = np.where(support, np.exp(logits), 0.0)
    return weights / weights.sum()


def information(joint):
    left, right = defaultdict(float), defaultdict(float)
    for (u, x), mass in joint.items():
        left[u] += mass
        right[x] += mass
    return sum(mass * math.log2(mass / (left[u] * right[x])) for (u, x), mass in joint.items() if mass > 0)


def make(tree, epsilon=0.1, gamma=1.0, **learner):
    problem = Problem(tree, epsilon, gamma)
    policy = initial_policy(problem, LABELS, SETTINGS, seed=5).double()
    gradient = AutogradLagrangian(problem, make_objective("gp", tree.block_length, LABELS))
    return PrimalDual(policy, gradient, epsilon, LearnerSettings(**learner))


def arrays(policy: SoftmaxPolicy):
    return [parameter.detach().numpy().copy() for parameter in policy.parameters()]


def test_multiplier_starts_where_it_is_told():
    tree = uneven_tree(prompts=2, blocks=2, candidates=3, seed=1)
    assert float(make(tree).multiplier) == 0
    learner = make(tree, first_multiplier=8.0, dual_step=0.5)
    outcome = learner.step()
    assert float(learner.multiplier) == pytest.approx(8 + 0.5 * (float(outcome.cost) - 0.1), abs=1e-12)


@pytest.mark.parametrize("gamma", [1.0, 0.6])
def test_outcome_is_the_papers_sum(gamma):
    tree = uneven_tree(prompts=2, blocks=3, candidates=3, seed=1)
    learner = make(tree, gamma=gamma)
    outcome = learner.gradient(learner.policy, learner.multiplier)
    rate, cost = rate_and_cost(tree, gamma, *arrays(learner.policy))
    assert float(outcome.rate) == pytest.approx(rate, abs=1e-12)
    assert float(outcome.cost) == pytest.approx(cost, abs=1e-12)


@pytest.mark.parametrize("multiplier", [0.0, 1.7])
def test_gradient_is_the_numeric_one(multiplier):
    tree, gamma = uneven_tree(prompts=2, blocks=2, candidates=4, seed=2), 0.8
    learner = make(tree, gamma=gamma)
    learner.gradient(learner.policy, torch.tensor(multiplier, dtype=torch.float64))
    values = arrays(learner.policy)

    def lagrangian(part, shift):
        moved = [value + shift if index == part else value for index, value in enumerate(values)]
        rate, cost = rate_and_cost(tree, gamma, *moved)
        return rate - multiplier * cost

    rng, step = np.random.default_rng(0), 1e-6
    for part, parameter in enumerate(learner.policy.parameters()):
        for _ in range(6):
            direction = rng.standard_normal(values[part].shape)
            numeric = (lagrangian(part, step * direction) - lagrangian(part, -step * direction)) / (2 * step)
            assert float((parameter.grad.numpy() * direction).sum()) == pytest.approx(numeric, rel=1e-5, abs=1e-7)


def test_one_iteration_moves_policy_and_multiplier_by_the_formulas():
    learner = make(uneven_tree(), learning_rate=0.01, dual_step=0.5)
    learner.multiplier = torch.tensor(2.0, dtype=torch.float64)
    before = arrays(learner.policy)
    learner.gradient(learner.policy, learner.multiplier)
    gradients = [parameter.grad.numpy().copy() for parameter in learner.policy.parameters()]
    _, cost = rate_and_cost(uneven_tree(), 1.0, *before)
    learner.step()
    for start, gradient, parameter in zip(before, gradients, learner.policy.parameters(), strict=True):
        # Adam's first step, its moments corrected for their start at 0: up the gradient by the learning rate.
        wanted = start + 0.01 * gradient / (abs(gradient) + 1e-8)
        np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=1e-9, atol=1e-12)
    assert float(learner.multiplier) == pytest.approx(max(0.0, 2.0 + 0.5 * (cost - 0.1)), abs=1e-12)
    assert learner.iteration == 1


def make_by_row(tree, iterations=10):
    problem = Problem(tree, 0.1, 1.0)
    policy = initial_policy(problem, LABELS, BY_ROW.policy, seed=5).double()
    gradient = AutogradLagrangian(problem, make_objective("coded", tree.block_length, LABELS, 1))
    return PrimalDual(policy, gradient, 0.1, BY_ROW, iterations)


def test_linear_schedule_takes_shorter_steps_and_ends_at_rest(small_tree):
    learner = make_by_row(small_tree, iterations=4)
    for iteration in range(6):
        assert learner.learning_rate() == pytest.approx(0.1 * max(0, 4 - iteration) / 4, abs=1e-15)
        before = arrays(learner.policy)
        learner.step()
        moved = max(abs(now - then).max() for now, then in zip(arrays(learner.policy), before, strict=True))
        assert (moved == 0) == (iteration >= 4)
    assert learner.iteration == 6


def test_constant_schedule_needs_no_end_and_a_falling_one_does(small_tree):
    learner = make(small_tree, learning_rate=0.3)
    for _ in range(3):
        learner.step()
    assert learner.learning_rate() == 0.3
    with pytest.raises(ValueError, match="schedule=linear: say after how many iterations"):
        make(small_tree, schedule="linear")


def test_state_restores_moments_by_row(small_tree):
    learner = make_by_row(small_tree)
    for _ in range(5):
        learner.step()
    saved = {name: value.clone() for name, value in learner.state().items()}
    other = make_by_row(small_tree)
    other.restore(saved)
    for _ in range(5):
        learner.step()
        other.step()
    for left, right in zip(other.policy.parameters(), learner.policy.parameters(), strict=True):
        assert torch.equal(left, right)


def test_start_is_no_stationary_point(small_tree):
    learner = make(small_tree)
    outcome = learner.gradient(learner.policy, learner.multiplier)
    assert float(outcome.rate) > 0.05
    assert float(learner.gradient_norm()) > 0.05


def test_independent_label_is_the_stationary_point_that_the_start_avoids(small_tree):
    learner = make(small_tree)
    with torch.no_grad():
        learner.policy.candidate_head.copy_(learner.policy.candidate_head[:, :, :1].expand(-1, -1, LABELS).clone())
        learner.policy.label_head.zero_()
    outcome = learner.gradient(learner.policy, learner.multiplier)
    assert float(outcome.rate) == pytest.approx(0.0, abs=1e-12)
    assert float(learner.gradient_norm()) == pytest.approx(0.0, abs=1e-12)


def test_state_restores_a_learner_exactly(small_tree):
    learner = make(small_tree)
    for _ in range(5):
        learner.step()
    saved = {name: value.clone() for name, value in learner.state().items()}
    for _ in range(5):
        learner.step()
    other = make(small_tree)
    other.restore(saved)
    for _ in range(5):
        other.step()
    assert other.iteration == learner.iteration == 10
    assert torch.equal(other.multiplier, learner.multiplier)
    for left, right in zip(other.policy.parameters(), learner.policy.parameters(), strict=True):
        assert torch.equal(left, right)


def test_state_of_another_problem_is_refused(small_tree):
    saved = make(small_tree).state()
    with pytest.raises(ValueError, match=r"^the state: policy\.embedding has shape .* is needed: start a new run$"):
        make(uneven_tree()).restore(saved)
