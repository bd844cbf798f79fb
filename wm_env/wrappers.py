"""Wrappers for policies that do not speak in simplices, and for costs that must not get lost."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray
from scipy.special import softmax

from wm_env.arguments import number, reals
from wm_env.spaces import ProductOfSimplices, join_laws


def logits_to_laws(logits: NDArray[Any]) -> NDArray[np.float32]:
    """Logits (..., N, M, 1 + Q) -> laws of the same shape: one softmax per law, in float64.

    Raises:
        ValueError: they are no real numbers, or no law has them: NaN, inf, or -inf for everything.
    """
    wide = reals("logits", logits).astype(np.float64)
    with np.errstate(invalid="ignore"):
        laws = join_laws(softmax(wide[..., 0], axis=-1), softmax(wide[..., 1:], axis=-1))
    if np.isnan(laws).any():
        raise ValueError("logits: finite numbers are needed; has the policy diverged?")
    return laws


class LogitsToSimplices(gym.ActionWrapper[Any, NDArray[np.float32], NDArray[np.float32]]):
    """Take bounded logits instead of laws: one softmax per law, in float64.

    The action becomes a flat `Box(-bound, bound, (N * M * (1 + Q),))`, which is what Gaussian policies of any library
    emit. Store the logits, not the laws: the log-probability belongs to what was sampled. Rows of padded states and
    candidates are ignored by the environment, so they need no mask here.

    Args:
        env: a CovertWatermarkEnv, wrapped or not.
        bound: largest absolute logit. 10 lets a law be deterministic up to e^-20 without letting a policy drift away.

    Raises:
        TypeError: the actions of `env` are no simplices.
        ValueError: the bound is no number above 0.
    """

    def __init__(self, env: gym.Env[Any, NDArray[np.float32]], bound: float = 10.0):
        super().__init__(env)
        bound = number("bound", bound)
        if not 0 < bound <= float(np.finfo(np.float32).max):
            raise ValueError(f"bound={bound}: a number above 0 that float32 holds is needed")
        if not isinstance(env.action_space, ProductOfSimplices):
            raise TypeError(f"LogitsToSimplices wraps an environment with simplex actions, not {env.action_space}")
        self._simplices = env.action_space
        self.action_space = Box(-bound, bound, (int(np.prod(env.action_space.shape)),), np.float32)

    def action(self, action: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits (N * M * (1 + Q),) -> laws (N, M, 1 + Q).

        Raises:
            ValueError: there are more or fewer, or they are no real numbers.
        """
        logits, wanted = reals("logits", action), self._simplices.shape
        if logits.size != np.prod(wanted):
            raise ValueError(f"logits of shape {logits.shape}: this environment wants {self.action_space.shape}")
        return logits_to_laws(logits.reshape(wanted))


class CostInTuple(gym.Wrapper[Any, Any, Any, Any]):
    """Return (observation, reward, cost, terminated, truncated, info), as Safety-Gymnasium and OmniSafe want it.

    Raises:
        KeyError: the environment below does not report `info["cost"]`.
    """

    def step(self, action: Any) -> Any:
        """Step and move `info["cost"]` into the third place."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if "cost" not in info:
            raise KeyError('this environment reports no info["cost"]')
        return observation, reward, info["cost"], terminated, truncated, info
