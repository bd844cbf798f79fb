"""Stable-Baselines3's own PPO, the cost as a fixed penalty: python examples/sb3_ppo.py [STEPS]."""

import sys

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from wm_env.wrappers import LogitsToSimplices


class Penalty(gym.Wrapper):
    """reward - weight * cost: what a learner without constraints can be given."""

    def __init__(self, env, weight):
        super().__init__(env)
        self.weight = weight

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward - self.weight * info["cost"], terminated, truncated, info


def make_env():
    return Penalty(LogitsToSimplices(gym.make("wm_env:CovertWatermarkEnv-v0")), weight=2.0)


def main(steps):
    model = PPO("MultiInputPolicy", make_vec_env(make_env, n_envs=8), n_steps=32, batch_size=64, seed=0)
    model.learn(steps)
    env = make_env()
    observation, info = env.reset()
    rate, done = 0.0, False
    while not done:
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, done, _, step = env.step(action)
        rate += reward + 2.0 * step["cost"]
    print(f"rate {rate:.4f} bits of at most {info['optimal_rate']:.4f}, cost {step['cost_so_far']:.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
