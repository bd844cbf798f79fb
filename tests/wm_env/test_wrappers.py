import math

import gymnasium as gym
import numpy as np
import pytest

from wm_env.wrappers import CostInTuple, LogitsToSimplices, VectorLogitsToSimplices, logits_to_laws


@pytest.fixture
def env(small_tree_file):
    return gym.make("wm_env:CovertWatermarkEnv-v0", tree=str(small_tree_file), prompts=2, candidates=4, labels=4)


def test_logits_become_softmax_laws(env):
    wrapped = LogitsToSimplices(env, bound=5.0)
    states, labels, columns = env.action_space.shape
    assert wrapped.action_space.shape == (states * labels * columns,)
    wrapped.action_space.seed(0)
    logits = wrapped.action_space.sample()
    assert np.abs(logits).max() <= 5
    laws = wrapped.action(logits)
    assert laws in env.action_space
    table = logits.reshape(states, labels, columns).astype(float)
    weights = [math.exp(table[1, u, 0]) for u in range(labels)]
    assert laws[1, 2, 0] == pytest.approx(weights[2] / sum(weights), abs=1e-7)
    weights = [math.exp(table[0, 3, 1 + q]) for q in range(columns - 1)]
    assert laws[0, 3, 2] == pytest.approx(weights[1] / sum(weights), abs=1e-7)
    wrapped.reset(seed=0)
    assert wrapped.step(logits)[4]["cost"] >= 0


def test_extreme_logits_stay_laws(env):
    wrapped = LogitsToSimplices(env, bound=1e6)
    for logits in (np.full(wrapped.action_space.shape, 1e6), np.full(wrapped.action_space.shape, -1e6)):
        assert wrapped.action(logits.astype(np.float32)) in env.action_space


@pytest.mark.parametrize("bound", [None, "1", True, -1, 0, math.nan, math.inf, 1e39])
def test_bounds_that_are_refused(env, bound):
    with pytest.raises(ValueError, match=r"^bound=.*: a "):
        LogitsToSimplices(env, bound=bound)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_of_a_policy_that_diverged_are_named(env, value):
    wrapped = LogitsToSimplices(env)
    with pytest.raises(ValueError, match="logits: finite numbers are needed"):
        wrapped.step(np.full(wrapped.action_space.shape, value))


def test_minus_infinity_is_the_logit_of_probability_zero():
    assert logits_to_laws(np.array([[[0.0, -np.inf, 0.0], [-np.inf, 0.0, 0.0]]])).tolist() == [
        [[1.0, 0.0, 1.0], [0.0, 0.5, 0.5]]
    ]


def test_logits_are_real_numbers(env):
    wrapped = LogitsToSimplices(env)
    zeros = np.zeros(wrapped.action_space.shape)
    for wrong in (zeros.astype(complex), zeros.astype(object), zeros.astype(str), None):
        with pytest.raises(ValueError, match=r"^logits: an array of real numbers is needed"):
            wrapped.action(wrong)
    for wrong in (zeros[1:], np.zeros(0)):
        with pytest.raises(ValueError, match=r"^logits of shape \(\d+,\): this environment wants"):
            wrapped.action(wrong)
    assert wrapped.action(zeros) in env.action_space


def test_logits_need_simplices():
    with pytest.raises(TypeError, match="simplex actions"):
        LogitsToSimplices(gym.make("Pendulum-v1"))


def test_cost_in_the_third_place(env):
    wrapped = CostInTuple(env)
    wrapped.reset(seed=0)
    _, _, cost, terminated, truncated, info = wrapped.step(env.action_space.sample())
    assert cost == info["cost"]
    assert (terminated, truncated) == (False, False)
    silent = CostInTuple(gym.make("CartPole-v1"))
    silent.reset(seed=0)
    with pytest.raises(KeyError, match="cost"):
        silent.step(0)


def test_logits_of_all_copies_become_the_laws_of_each(small_tree_file):
    arguments = {"tree": str(small_tree_file), "prompts": 2, "candidates": 4, "labels": 4}
    batched = VectorLogitsToSimplices(gym.make_vec("wm_env:CovertWatermarkEnv-v0", num_envs=3, **arguments), bound=5)
    batched.action_space.seed(2)
    logits = batched.action_space.sample()
    assert logits.shape == (3, *batched.single_action_space.shape)
    assert np.abs(logits).max() <= 5
    batched.reset(seed=0)
    _, rewards, _, _, infos = batched.step(logits)
    for copy in range(3):
        single = LogitsToSimplices(gym.make("wm_env:CovertWatermarkEnv-v0", **arguments), bound=5)
        assert single.action_space == batched.single_action_space
        single.reset(seed=0)
        _, reward, _, _, info = single.step(logits[copy])
        assert rewards[copy] == pytest.approx(reward, abs=1e-12)
        assert infos["cost"][copy] == pytest.approx(info["cost"], abs=1e-12)
    with pytest.raises(ValueError, match=r"logits of shape .* wants"):
        batched.step(logits[:2])


def test_a_policy_of_vectors_wraps_vectors_of_simplices(small_tree_file):
    batched = gym.make_vec("wm_env:CovertWatermarkEnv-v0", num_envs=2, tree=str(small_tree_file), candidates=4)
    with pytest.raises(ValueError, match="bound=0"):
        VectorLogitsToSimplices(batched, bound=0)
    with pytest.raises(TypeError, match="simplex actions"):
        VectorLogitsToSimplices(VectorLogitsToSimplices(batched))
