"""Runs behind a channel, from settings to the evaluation, and the environment beside them."""

import dataclasses
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import wm_env  # noqa: F401  (registers the environment)
from agents.common.settings import RunSettings
from agents.primal_dual.agent import AGENT
from agents.training.run import start_run, train
from wm_env.env import CovertWatermarkEnv
from wm_env.problem import Problem
from wm_env.synthetic import synthetic_tree
from wm_env.vector import CovertWatermarkVectorEnv

TREE = synthetic_tree(3, 2, 4, 4, 1.6, 0.5, 1)


def uniform_actions(env):
    states, labels, candidates = env.action_space.states, env.labels, env.candidates
    rng = np.random.default_rng(0)
    return np.concatenate(
        [
            rng.dirichlet(np.ones(labels), states)[..., None],
            rng.dirichlet(np.ones(candidates), (states, labels)),
        ],
        axis=2,
    )


def play(env):
    env.reset(seed=0)
    action = uniform_actions(env)
    return [env.step(action)[1] for _ in range(2)]


@pytest.mark.parametrize("channel", ["erasure", "substitution"])
def test_no_noise_is_the_clean_environment_and_noise_lowers_the_reward(channel):
    clean = play(CovertWatermarkEnv(TREE, prompts=3, candidates=4))
    silent = play(CovertWatermarkEnv(TREE, prompts=3, candidates=4, channel=channel, noise=0.0))
    noisy = play(CovertWatermarkEnv(TREE, prompts=3, candidates=4, channel=channel, noise=0.2))
    assert silent == pytest.approx(clean, abs=1e-12)
    assert all(edited < whole for edited, whole in zip(noisy, clean, strict=True))


@pytest.mark.parametrize("channel", ["erasure", "substitution"])
def test_vector_copies_are_the_environment(channel):
    arguments = {"prompts": 3, "candidates": 4, "channel": channel, "noise": 0.1}
    single = CovertWatermarkEnv(TREE, **arguments)
    many = CovertWatermarkVectorEnv(2, tree=TREE, **arguments)
    many.reset(seed=0, options={"prompts": 2})
    first = many.step(np.stack([uniform_actions(single)] * 2))[1]
    for copy in range(2):
        problem = dataclasses.replace(single.problem, tree=many.problems[copy].tree)
        alone = CovertWatermarkEnv(problem=problem)
        alone.reset()
        action = uniform_actions(single)[: alone.action_space.states]
        assert alone.step(action)[1] == pytest.approx(first[copy], abs=1e-12)
    credit = many.credit()["rate_by_state"].sum(1)
    np.testing.assert_allclose(credit, first, atol=1e-12)


def settings_of(**changes):
    return RunSettings(tree="news", prompts=1, candidates=4, labels=8, channel="erasure", noise=0.1, **changes)


def test_planner_and_learner_stay_below_the_bound(tmp_path: Path):
    planned = train(start_run(tmp_path / "planner", settings_of(agent="planner", epsilon=0.1), []))
    problem = Problem(start_problem_tree(), 0.1, 1.0, 8, channel="erasure", noise=0.1)
    assert planned.cost <= 0.1 + 1e-9
    assert 0.95 * problem.rate_bound.rate <= planned.rate <= problem.rate_bound.rate + 1e-9
    constants = dataclasses.replace(AGENT.constants, evaluate_every=5)
    learned = train(
        start_run(tmp_path / "learner", settings_of(iterations=10, gradient="autograd", constants=constants), [])
    )
    assert learned.rate <= problem.rate_bound.rate + 1 or not learned.feasible


def start_problem_tree():
    from wm_env.problem import open_tree
    from wm_env.tree import subset

    return subset(open_tree("news"), [0], 4)


def test_what_behind_a_channel_is_not_known_is_refused_in_one_line(tmp_path: Path):
    with pytest.raises(ValueError, match="use autograd"):
        train(start_run(tmp_path / "closed", settings_of(iterations=2), []))
    with pytest.raises(ValueError, match="objective='gp' only"):
        train(start_run(tmp_path / "coded", settings_of(agent="planner", objective="coded"), []))
    with pytest.raises(ValueError, match=r"noise=0\.1: say how"):
        RunSettings(noise=0.1).check()
    with pytest.raises(ValueError, match="name a channel"):
        gym.make("CovertWatermarkEnv-v0", noise=0.1)
