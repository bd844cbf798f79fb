"""What the learners of this folder share: a small problem with the cost as a penalty, and its exact evaluation.

One prompt, one block and four candidates: a law is 20 numbers, and most learners find a good one in seconds. The
default problem has laws of 2,304 numbers: docs/performance.md tells what learners do on it.
"""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import FlattenObservation, TransformObservation

from wm_env.wrappers import LogitsToSimplices

WEIGHT = 2.0
"""Bits of reward that a unit of total variation costs."""


class Penalty(gym.Wrapper):
    """reward - WEIGHT * cost: what a learner without constraints can be given."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward - WEIGHT * info["cost"], terminated, truncated, info


def make_env(flat=False):
    """The problem with logits in [-5, 5] as actions; flat: the observation is one vector of float32."""
    env = gym.make("wm_env:CovertWatermarkEnv-v0", prompts=1, blocks=1, candidates=4, labels=4)
    env = Penalty(LogitsToSimplices(env, bound=5.0))
    if not flat:
        return env
    env = FlattenObservation(env)
    numbers = Box(0.0, 1.0, env.observation_space.shape, np.float32)
    return TransformObservation(env, lambda observation: observation.astype(np.float32), numbers)


def evaluation(act, flat=False):
    """One episode of the policy act(observation) -> logits; the environment is exact, so one is enough."""
    env = make_env(flat)
    observation, info = env.reset()
    rate, done = 0.0, False
    while not done:
        observation, reward, done, _, step = env.step(act(observation))
        rate += reward + WEIGHT * step["cost"]
    return f"rate {rate:.4f} of at most {info['rate_bound']:.4f} bits, cost {step['cost_so_far']:.4f} of at most 0.1"


def learn(model, steps, every):
    """Let a model of Stable-Baselines3 learn, and print the evaluation of its policy at the start and now and then."""

    def act(observation):
        return model.predict(observation, deterministic=True)[0]

    print(f"step 0: {evaluation(act)}", flush=True)
    while model.num_timesteps < steps:
        model.learn(min(every, steps - model.num_timesteps), reset_num_timesteps=False)
        print(f"step {model.num_timesteps}: {evaluation(act)}", flush=True)
