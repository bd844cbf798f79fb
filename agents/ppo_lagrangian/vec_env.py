"""Stable-Baselines3's VecEnv over the batched environment: logits in, costs and credit by state in the infos."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from wm_env.env import CovertWatermarkEnv
from wm_env.texts.env import CovertWatermarkText
from wm_env.vector import CovertWatermarkVectorEnv
from wm_env.wrappers import VectorLogitsToSimplices


class SharedVecEnv(VecEnv):
    """Copies of one environment, `single`, that are stepped together; `get_attr` and `env_method` reach that one."""

    single: CovertWatermarkEnv | CovertWatermarkText

    def close(self) -> None:
        """Nothing to release."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of the environment that the copies were made from, once per copy."""
        return [getattr(self.single, attr_name)] * len(self._chosen(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refused: the copies share one environment."""
        raise NotImplementedError("the copies share one environment: make it with other arguments instead")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Call a method of the environment that the copies were made from, once per copy."""
        method = getattr(self.single, method_name)
        return [method(*method_args, **method_kwargs) for _ in self._chosen(indices)]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Any = None) -> list[bool]:
        """False: there are no wrappers."""
        return [False] * len(self._chosen(indices))

    def _chosen(self, indices: Any) -> Sequence[int]:
        return list(self._get_indices(indices))


class LogitVecEnv(SharedVecEnv):
    """`num_envs` copies of CovertWatermarkEnv-v0 for Stable-Baselines3, all stepped in one tensor operation.

    What `CreditByState(LogitsToSimplices(env))` is in a DummyVecEnv, several times faster.

    Args:
        num_envs: copies.
        bound: largest absolute logit.
        reset_options: options of every reset, such as {"prompts": 4}.
        arguments: of the environment.
    """

    def __init__(
        self, num_envs: int, bound: float = 10.0, reset_options: dict[str, Any] | None = None, **arguments: Any
    ):
        self.copies = CovertWatermarkVectorEnv(num_envs, autoreset_mode="Disabled", **arguments)
        self.single = self.copies.single
        self.reset_options = reset_options
        self._logits = VectorLogitsToSimplices(self.copies, bound)
        super().__init__(num_envs, self.copies.single_observation_space, self._logits.single_action_space)

    def reset(self) -> dict[str, NDArray[Any]]:
        """First observations of all copies; honours `seed` and `set_options`."""
        seeds = self._seeds if any(seed is not None for seed in self._seeds) else None
        options = self._options[0] or self.reset_options
        observation, _ = self.copies.reset(seed=seeds, options=options)
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: NDArray[Any]) -> None:
        """Remember the logits, shape (num_envs, N * M * (1 + Q))."""
        self._laws = self._logits.actions(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Play them; a finished copy is reset at once, its last observation is in `terminal_observation`."""
        observation, rewards, dones, _, columns = self.copies.step(self._laws)
        numbers = {name: values for name, values in columns.items() if not name.startswith("_")}
        credit = self.copies.credit()
        infos: list[dict[str, Any]] = []
        for copy, done in enumerate(dones):
            info: dict[str, Any] = {name: float(values[copy]) for name, values in numbers.items()}
            info |= {name: values[copy] for name, values in credit.items()} | {"TimeLimit.truncated": False}
            if done:
                info["terminal_observation"] = {name: values[copy] for name, values in observation.items()}
            infos.append(info)
        if dones.any():
            # The copies would reset themselves without options.
            observation, _ = self.copies.reset(options=(self.reset_options or {}) | {"reset_mask": dones})
        return observation, rewards.astype(np.float32), dones, infos
