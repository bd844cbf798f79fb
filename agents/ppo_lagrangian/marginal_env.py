"""Stable-Baselines3's VecEnv over marginals: logits of q(x|s) in, costs and credit by state in the infos."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from agents.ppo_lagrangian.vec_env import SharedVecEnv
from wm_env.tensor_env import MarginalTensorEnv


class MarginalVecEnv(SharedVecEnv):
    """`num_envs` copies of CovertWatermarkEnv-v0 that play marginals with fixed labels, all in one tensor operation.

    What `CreditByState(MarginalLogits(env))` is in a DummyVecEnv, without writing down the laws of the labels.

    Args:
        num_envs: copies.
        bound: largest absolute logit.
        device: where the environment computes.
        arguments: of the environment.
    """

    def __init__(self, num_envs: int, bound: float = 20.0, device: str = "cpu", **arguments: Any):
        self.copies = MarginalTensorEnv(num_envs, device, bound, **arguments)
        self.single = self.copies.single
        super().__init__(num_envs, self.copies.single_observation_space, self.copies.single_action_space)

    def reset(self) -> dict[str, NDArray[Any]]:
        """First observations of all copies. Nothing is drawn, so seeds change nothing.

        Raises:
            ValueError: there are options.
        """
        observation, _ = self.copies.reset(options=self._options[0])
        self._reset_seeds()
        self._reset_options()
        return _numpy(observation)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Remember the logits, shape (num_envs, N Q)."""
        self._logits = torch.as_tensor(actions, device=self.copies.device)

    def step_wait(self) -> VecEnvStepReturn:
        """Play them; finished copies are reset at once, their last observation is in `terminal_observation`."""
        observation, rewards, dones, _, infos = self.copies.step(self._logits)
        last = _numpy(infos.get("final_obs", {}))
        numbers = _numpy(infos.get("final_info", infos)) | _numpy(self.copies.credit())
        rows: list[dict[str, Any]] = []
        for copy in range(self.num_envs):
            row = {name: values[copy] for name, values in numbers.items()} | {"TimeLimit.truncated": False}
            if last:
                row["terminal_observation"] = {name: values[copy] for name, values in last.items()}
            rows.append(row)
        return _numpy(observation), rewards.cpu().numpy().astype(np.float32), dones.cpu().numpy(), rows


def _numpy(tensors: dict[str, torch.Tensor]) -> dict[str, NDArray[Any]]:
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
