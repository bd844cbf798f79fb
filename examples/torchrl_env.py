"""TorchRL's GymEnv on the environment: python examples/torchrl_env.py [STEPS]. Needs torchrl."""

import sys

import gymnasium as gym
from torchrl.envs import GymWrapper

from wm_env.wrappers import LogitsToSimplices


def main(steps):
    env = GymWrapper(LogitsToSimplices(gym.make("wm_env:CovertWatermarkEnv-v0")))
    # TorchRL drops the info unless it is told which keys to keep.
    env.auto_register_info_dict(ignore_private=True)
    rollout = env.rollout(steps, break_when_any_done=False)
    rate, cost = rollout["next", "reward"].mean(), rollout["next", "cost"].mean()
    print(f"{len(rollout)} random steps, mean rate {float(rate):.4f} bits, mean cost {float(cost):.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
