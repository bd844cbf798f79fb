"""Texts as episodes of constrained PPO: what a step pays, what texts pay on average, and what is refused."""

import dataclasses

import numpy as np
import pytest

from agents.common.table import preset
from agents.ppo_lagrangian.settings import PPOSettings
from agents.ppo_lagrangian.text_env import TextVecEnv
from agents.training.run import start_run, train
from wm_env.criteria.credit import COST, PARENT, RATE
from wm_env.env import CovertWatermarkEnv
from wm_env.labels.marginals import MarginalLogits
from wm_env.texts.contexts import TreeContexts
from wm_env.texts.env import CovertWatermarkText, TextTask


def softmax(logits, cover):
    weights = np.where(cover > 0, np.exp(logits), 0)
    return weights / weights.sum(-1, keepdims=True)


def test_a_step_pays_the_entropy_of_the_marginal_and_its_distance_from_the_cover():
    env = TextVecEnv(3, source="chain", prompts=4, candidates=5, blocks=2)
    env.seed(7)
    cover = env.reset()["cover"]
    logits = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    marginal = softmax(logits, cover)
    entropy, distance = -(marginal * np.log2(marginal)).sum(1), np.abs(marginal - cover).sum(1) / 2
    _, rewards, dones, infos = env.step(logits)
    np.testing.assert_allclose(rewards, entropy, rtol=1e-5)
    assert not dones.any()
    for info, rate, cost in zip(infos, entropy, distance, strict=True):
        assert (info[RATE], info[COST]) == (pytest.approx(rate, rel=1e-5), pytest.approx(cost, abs=1e-6))
        assert info[PARENT].tolist() == [0]
        assert info["cost_so_far"] == pytest.approx(cost, abs=1e-6)
    before = [info["cost_so_far"] for info in infos]
    observation, _, dones, infos = env.step(logits)
    assert dones.all()
    assert observation["block"].tolist() == [0, 0, 0]
    for info, spent in zip(infos, before, strict=True):
        assert info["cost_so_far"] == pytest.approx(spent + info["cost"])
        assert info["terminal_observation"]["state_probs"].tolist() == [0.0]


def test_texts_pay_on_average_what_the_law_over_states_pays(small_tree):
    """The sampled texts against the mean field, with logits that depend on the cover alone."""
    copies, blocks = 4000, len(small_tree.blocks)
    texts = TextVecEnv(copies, task=TextTask(TreeContexts(small_tree), 8, blocks, 0.1, 1.0))
    law = MarginalLogits(CovertWatermarkEnv(tree=small_tree, prompts=6, candidates=5, labels=8))
    texts.seed(0)
    seen, (mean, _) = texts.reset(), law.reset()
    for _ in range(blocks):
        with np.errstate(divide="ignore"):
            of_texts, of_law = (np.maximum(1.5 * np.log(each["cover"]), -20) for each in (seen, mean))
        seen, _, _, infos = texts.step(of_texts)
        mean, reward, _, _, info = law.step(of_law.astype(np.float32))
        for name, exact in ((RATE, reward), (COST, info["cost"])):
            values = np.array([each[name][0] for each in infos])
            assert abs(values.mean() - exact) < 4 * values.std() / np.sqrt(copies) + 1e-6


@pytest.fixture
def settings(small_tree_file):
    constants = PPOSettings(plays="texts", copies=128, dual_step=4.0, evaluate_every=10)
    sizes = {"tree": str(small_tree_file), "prompts": 3, "candidates": 5, "labels": 8, "iterations": 60}
    return dataclasses.replace(preset("ppo")[1], **sizes, constants=constants)


def test_texts_teach_the_law_over_states(settings, tmp_path):
    run = start_run(tmp_path / "run", settings, [])
    evaluation = train(run)
    assert evaluation.feasible
    optimum, cover = (dataclasses.replace(run.problem, epsilon=limit).rate_bound.rate for limit in (0.1, 0.0))
    # More than half of what lies between the cover, where every run starts, and the optimum.
    assert (evaluation.rate - cover) / (optimum - cover) > 0.5


@pytest.mark.parametrize("change", [{"labels": 4}, {"cost": "kl"}, {"objective": "coded", "labels": 8}])
def test_texts_are_for_the_gp_objective_and_enough_labels(settings, change, tmp_path):
    with pytest.raises(
        ValueError, match=r"ppo\.plays=texts: the gp objective, cost=tv, no channel and a label for every"
    ):
        train(start_run(tmp_path / "run", dataclasses.replace(settings, **change), []))
    assert not (tmp_path / "run").exists()


def test_wrong_arguments_are_one_line():
    with pytest.raises(ValueError, match="labels=4: texts are played with a label for each of 8 candidates"):
        TextVecEnv(2, source="chain", labels=4)
    with pytest.raises(ValueError, match="blocks: leave it out beside a task, which has its own"):
        CovertWatermarkText(task=CovertWatermarkText().task, blocks=2)
