import numpy as np
import pytest
import torch

from agents.evaluation import evaluate_law, evaluate_policy, law_metrics, summary
from agents.planner import plan
from agents.primal_dual import initial_policy
from agents.settings import PolicySettings
from wm_env.coded import word_probs
from wm_env.problem import Problem, make_objective


def evaluate_plan(problem, labels=8):
    objective = make_objective("gp", problem.tree.block_length, labels)
    blocks = plan(problem.tree, problem.epsilon, problem.gamma, labels).law.blocks
    return evaluate_law(problem, objective, lambda number, _: (blocks[number].p_label, blocks[number].p_candidate))


def test_optimal_law_scores_its_optimum(small_tree):
    problem = Problem(small_tree, 0.1, 0.8)
    evaluation = evaluate_plan(problem)
    assert evaluation.rate == pytest.approx(problem.optimum.rate, abs=1e-9)
    assert evaluation.cost == pytest.approx(0.1, abs=1e-9)
    assert evaluation.feasible
    metrics = law_metrics(evaluation, problem, make_objective("gp", 4, 8))
    assert metrics["law/percent_of_optimum"] == pytest.approx(100.0, abs=1e-6)
    assert metrics["law/i_ux"] - metrics["law/i_us"] == pytest.approx(
        np.mean([float(measured.rate) for measured in evaluation.measures])
    )


def test_costlier_law_is_not_feasible(small_tree):
    blocks = plan(small_tree, 0.2, 1.0, 8).law.blocks
    problem = Problem(small_tree, 0.1, 1.0)
    objective = make_objective("gp", 4, 8)
    evaluation = evaluate_law(
        problem, objective, lambda number, _: (blocks[number].p_label, blocks[number].p_candidate)
    )
    assert evaluation.cost == pytest.approx(0.2, abs=1e-9)
    assert not evaluation.feasible
    assert "the limit is not met: train longer" in summary(evaluation, problem, objective)


def test_no_training_reaches_a_budget_of_nothing(small_tree):
    problem, objective = Problem(small_tree, 0.0, 1.0), make_objective("gp", 4, 8)
    policy = initial_policy(problem, 8, PolicySettings(), seed=0)
    line = summary(evaluate_policy(problem, objective, policy), problem, objective)
    assert "--agent planner" in line
    assert "train longer" not in line


def test_coded_law_has_uniform_message_words_and_no_percentage(small_tree):
    problem, objective = Problem(small_tree, 0.1, 1.0), make_objective("coded", 4, 8, 2)
    policy = initial_policy(problem, 8, PolicySettings(), seed=0)
    evaluation = evaluate_policy(problem, objective, policy)
    assert evaluation.law.message_sets == ((1, 2), (1, 2))
    for block in evaluation.law.blocks:
        words = word_probs(block, 4, (1, 2))
        torch.testing.assert_close(words, torch.full_like(words, 0.25), rtol=1e-12, atol=1e-12)
    assert "law/percent_of_optimum" not in law_metrics(evaluation, problem, objective)


def test_policy_is_evaluated_in_float64_and_left_as_it_is(small_tree):
    problem, objective = Problem(small_tree, 0.1, 1.0), make_objective("gp", 4, 8)
    policy = initial_policy(problem, 8, PolicySettings(), seed=0)
    evaluation = evaluate_policy(problem, objective, policy)
    assert all(block.p_candidate.dtype == torch.float64 for block in evaluation.law.blocks)
    assert policy.embedding.dtype == torch.float32
    assert policy.embedding.requires_grad
