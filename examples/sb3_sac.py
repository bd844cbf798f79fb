"""Stable-Baselines3's SAC on logits, the cost as a fixed penalty: python examples/sb3_sac.py [STEPS].

It learns a small problem, one prompt, one block and four candidates, whose laws are 20 numbers. After 20 seconds of one
core the last line is

    step 1500: rate 1.9041 of at most 2.0000 bits, cost 0.0826 of at most 0.1

The default problem has laws of 2,304 numbers: docs/performance.md tells what learners do on it.
"""

import sys

import gymnasium as gym
import torch
from stable_baselines3 import SAC

from wm_env.wrappers import LogitsToSimplices

WEIGHT = 2.0
"""Bits of reward that a unit of total variation costs."""


class Penalty(gym.Wrapper):
    """reward - WEIGHT * cost: what a learner without constraints can be given."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward - WEIGHT * info["cost"], terminated, truncated, info


def make_env():
    env = gym.make("wm_env:CovertWatermarkEnv-v0", prompts=1, blocks=1, candidates=4, labels=4)
    return Penalty(LogitsToSimplices(env, bound=5.0))


def evaluation(model):
    """One episode of the deterministic policy; the environment is exact, so one is enough."""
    env = make_env()
    observation, info = env.reset()
    rate, done = 0.0, False
    while not done:
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, done, _, step = env.step(action)
        rate += reward + WEIGHT * step["cost"]
    return f"rate {rate:.4f} of at most {info['rate_bound']:.4f} bits, cost {step['cost_so_far']:.4f} of at most 0.1"


def main(steps):
    # The networks are small: a second thread costs more than it gains.
    torch.set_num_threads(1)
    first = min(200, steps // 2)
    model = SAC(
        "MultiInputPolicy",
        make_env(),
        learning_starts=first,
        buffer_size=5_000,
        batch_size=64,
        learning_rate=3e-3,
        gamma=1.0,
        seed=0,
    )
    print(f"step 0: {evaluation(model)}", flush=True)
    while model.num_timesteps < steps:
        model.learn(min(250, steps - model.num_timesteps), reset_num_timesteps=False)
        print(f"step {model.num_timesteps}: {evaluation(model)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_500)
