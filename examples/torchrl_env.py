"""TorchRL's GymWrapper around the environment: python examples/torchrl_env.py [STEPS]. Needs torchrl."""

import sys

import gymnasium as gym
import torch

from wm_env.wrappers import LogitsToSimplices

try:
    from torchrl.data import Unbounded
    from torchrl.envs import GymWrapper
    from torchrl.envs.gym_like import BaseInfoDictReader
except ModuleNotFoundError as missing:
    raise SystemExit(f"error: this example needs TorchRL ({missing}): pip install torchrl") from None


class CostReader(BaseInfoDictReader):
    """TorchRL keeps of the info what a reader takes out; its own reader wants arrays, the cost is a float."""

    info_spec = {"cost": Unbounded(shape=(1,), dtype=torch.float64)}  # noqa: RUF012  (TorchRL's form)

    def __call__(self, info_dict, tensordict):
        return tensordict.set("cost", torch.tensor([info_dict["cost"]], dtype=torch.float64))


def main(steps):
    env = GymWrapper(LogitsToSimplices(gym.make("wm_env:CovertWatermarkEnv-v0")))
    env.set_info_dict_reader(CostReader())
    rollout = env.rollout(steps, break_when_any_done=False)
    rate, cost = rollout["next", "reward"].mean(), rollout["next", "cost"].mean()
    print(f"{len(rollout)} random steps, mean rate {float(rate):.4f} bits, mean cost {float(cost):.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
