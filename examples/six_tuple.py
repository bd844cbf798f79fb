"""The six values of Safety-Gymnasium and OmniSafe, cost in the third place: python examples/six_tuple.py [EPISODES]."""

import sys

import gymnasium as gym

from wm_env.wrappers import CostInTuple, LogitsToSimplices


def main(episodes):
    env = CostInTuple(LogitsToSimplices(gym.make("wm_env:CovertWatermarkEnv-v0")))
    env.action_space.seed(0)
    for episode in range(episodes):
        env.reset(seed=episode)
        rate = spent = 0.0
        done = False
        while not done:
            _, reward, cost, terminated, truncated, _ = env.step(env.action_space.sample())
            rate, spent, done = rate + reward, spent + cost, terminated or truncated
        print(f"episode {episode}: rate {rate:.4f} bits, cost {spent:.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
