"""Stable-Baselines3's SAC on logits: python examples/sb3_sac.py [STEPS]."""

import sys

import gymnasium as gym
from stable_baselines3 import SAC

from wm_env.wrappers import LogitsToSimplices


def main(steps):
    env = LogitsToSimplices(gym.make("wm_env:CovertWatermarkEnv-v0"))
    model = SAC("MultiInputPolicy", env, learning_starts=min(100, steps // 2), buffer_size=5_000, batch_size=64, seed=0)
    model.learn(steps)
    observation, _ = env.reset()
    done = False
    while not done:
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, done, _, info = env.step(action)
        print(f"rate {reward:.4f} bits, cost {info['cost']:.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000)
