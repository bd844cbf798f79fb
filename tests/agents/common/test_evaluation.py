import dataclasses

import numpy as np
import pytest
import torch

from agents.common.evaluation import evaluate_law, evaluate_policy, law_metrics, law_summary, progress_line
from agents.common.settings import PolicySettings
from agents.planner.adaptive import plan_adaptive
from agents.planner.rate import plan
from agents.primal_dual.algorithm import initial_policy
from wm_env.coded import word_probs
from wm_env.criteria.objectives import make_objective
from wm_env.problem import Problem


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
    assert progress_line(metrics, 0.1, 0.5).endswith("cost 0.1000 of 0.1, beta 0.500, 100.0 % of optimum")
    optimum = f"100.00 % of the optimum {problem.optimum.rate:.4f}"
    assert law_summary(evaluation, problem, make_objective("gp", 4, 8)).endswith(f"of at most 0.1, {optimum}")
    assert metrics["law/i_ux"] - metrics["law/i_us"] == pytest.approx(
        np.mean([float(measured.rate) for measured in evaluation.measures])
    )


def test_few_labels_are_compared_with_a_bound(small_tree):
    problem, objective = Problem(small_tree, 1.0, 1.0, labels=2), make_objective("gp", 4, 2)
    evaluation = evaluate_policy(problem, objective, initial_policy(problem, 2, PolicySettings(), seed=0))
    metrics = law_metrics(evaluation, problem, objective)
    assert "law/percent_of_optimum" not in metrics
    # Two blocks of at most log2 2 bits.
    assert metrics["law/percent_of_bound"] == pytest.approx(100 * evaluation.rate / 2)
    assert progress_line(metrics, 1.0, 0.5).endswith(f"beta 0.500, {50 * evaluation.rate:.1f} % of upper bound")
    line = law_summary(evaluation, problem, objective)
    assert line.endswith(f"{50 * evaluation.rate:.2f} % of the upper bound for 2 labels, 2.0000")


def test_costlier_law_is_not_feasible(small_tree):
    blocks = plan(small_tree, 0.2, 1.0, 8).law.blocks
    problem = Problem(small_tree, 0.1, 1.0)
    objective = make_objective("gp", 4, 8)
    evaluation = evaluate_law(
        problem, objective, lambda number, _: (blocks[number].p_label, blocks[number].p_candidate)
    )
    assert evaluation.cost == pytest.approx(0.2, abs=1e-9)
    assert not evaluation.feasible
    line = law_summary(evaluation, problem, objective)
    assert line.endswith("total variation 0.2000 of at most 0.1, over the limit: train longer")
    assert "%" not in line
    assert progress_line(law_metrics(evaluation, problem, objective), 0.1, 2.0).endswith(
        "cost 0.2000 of 0.1, beta 2.000, over the limit"
    )


def test_no_training_reaches_a_budget_of_nothing(small_tree):
    problem, objective = Problem(small_tree, 0.0, 1.0), make_objective("gp", 4, 8)
    policy = initial_policy(problem, 8, PolicySettings(), seed=0)
    line = law_summary(evaluate_policy(problem, objective, policy), problem, objective)
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
    metrics = law_metrics(evaluation, problem, objective)
    assert "law/percent_of_optimum" not in metrics
    assert not evaluation.feasible
    assert progress_line(metrics, 0.1, 0.0).endswith(", over the limit")


def test_lengths_by_state_are_reported_as_message_bits(small_tree):
    problem, objective = Problem(small_tree, 0.1, 1.0), make_objective("coded", 4, 8, 2)
    plan = plan_adaptive(small_tree, 0.1, labels=8)
    evaluation = dataclasses.replace(
        evaluate_law(
            problem, objective, lambda number, _: (plan.law.blocks[number].p_label, plan.law.blocks[number].p_candidate)
        ),
        message_bits=plan.bits,
    )
    sent = sum(
        float(block.state_probs.numpy() @ lengths) for block, lengths in zip(plan.law.blocks, plan.lengths, strict=True)
    )
    assert law_metrics(evaluation, problem, objective)["law/message_bits"] == pytest.approx(sent / 2)
    line = law_summary(evaluation, problem, objective)
    assert line.startswith(
        f"{sent:.4f} message bits over 2 blocks of 4 tokens ({sent / 8:.4f} bits per token), lengths by state, "
        "no errors, total variation "
    )
    assert "rate" not in line


def test_policy_is_evaluated_in_float64_and_left_as_it_is(small_tree):
    problem, objective = Problem(small_tree, 0.1, 1.0), make_objective("gp", 4, 8)
    policy = initial_policy(problem, 8, PolicySettings(), seed=0)
    evaluation = evaluate_policy(problem, objective, policy)
    assert all(block.p_candidate.dtype == torch.float64 for block in evaluation.law.blocks)
    assert policy.embedding.dtype == torch.float32
    assert policy.embedding.requires_grad
