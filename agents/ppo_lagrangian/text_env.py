"""Stable-Baselines3's VecEnv over texts: logits of q(x|s) of one state in, costs and credit in the infos."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from agents.ppo_lagrangian.vec_env import SharedVecEnv
from wm_env.criteria.credit import COST, PARENT, RATE
from wm_env.labels.marginals import marginal_action
from wm_env.texts.env import CovertWatermarkTextVectorEnv


class TextVecEnv(SharedVecEnv):
    """`num_envs` texts of CovertWatermarkText-v0 that play marginals, the label of a candidate being its place.

    A text is one state at a time, so its credit by state is its reward and its cost. Labels that are a function of the
    candidate make the expected reward the rate H(X|S) of the law that the texts are drawn from, which is that of
    `CovertWatermarkEnv-v0` with its labels, if there is a label for every candidate.

    Args:
        num_envs: texts side by side.
        bound: largest absolute logit.
        arguments: of the environment.

    Raises:
        ValueError: fewer labels than candidates.
    """

    def __init__(self, num_envs: int, bound: float = 20.0, **arguments: Any):
        self.copies = CovertWatermarkTextVectorEnv(num_envs, **arguments)
        self.single = self.copies.single
        task = self.copies.task
        candidates = task.contexts.candidates
        if task.labels < candidates:
            raise ValueError(f"labels={task.labels}: texts are played with a label for each of {candidates} candidates")
        self._label = torch.arange(candidates).expand(num_envs, -1)
        self._shape = (num_envs, task.labels, 1 + candidates)
        actions = Box(-bound, bound, (candidates,), np.float32)
        super().__init__(num_envs, self.copies.single_observation_space, actions)

    def reset(self) -> dict[str, NDArray[Any]]:
        """New texts; honours `seed`."""
        seeds = self._seeds if any(seed is not None for seed in self._seeds) else None
        observation, _ = self.copies.reset(seed=seeds, options=self._options[0] or None)
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: NDArray[Any]) -> None:
        """Remember the logits, shape (num_envs, Q)."""
        cover = torch.from_numpy(self.copies.cover)
        label = self._label.where(cover > 0, -1)
        self._laws = marginal_action(torch.as_tensor(actions), cover, label, self._shape)

    def step_wait(self) -> VecEnvStepReturn:
        """Play them; finished texts begin anew, their last observation is in `terminal_observation`."""
        observation, rewards, dones, _, columns = self.copies.step(self._laws[:, None])
        last = columns.get("final_obs")
        numbers = columns.get("final_info", columns)
        infos: list[dict[str, Any]] = []
        for copy in range(self.num_envs):
            info = {name: values[copy] for name, values in numbers.items() if not name.startswith("_")}
            info |= {RATE: rewards[[copy]], COST: numbers["cost"][[copy]], PARENT: np.zeros(1, dtype=np.int64)}
            info["TimeLimit.truncated"] = False
            if last is not None:
                info["terminal_observation"] = last[copy]
            infos.append(info)
        return observation, rewards.astype(np.float32), dones, infos
