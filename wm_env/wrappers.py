"""Wrappers for policies that do not speak in simplices, and for costs that must not get lost."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from scipy.special import softmax

from wm_env.common.checks import number, reals
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


class LogitsToSimplices(
    gym.ActionWrapper[Any, NDArray[np.float32], NDArray[np.float32]], gym.utils.RecordConstructorArgs
):
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
        gym.utils.RecordConstructorArgs.__init__(self, bound=bound)
        gym.ActionWrapper.__init__(self, env)
        self.action_space, self._shape = _logits_of(env.action_space, bound)

    def action(self, action: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits (N * M * (1 + Q),) -> laws (N, M, 1 + Q).

        Raises:
            ValueError: there are more or fewer, or they are no real numbers.
        """
        return logits_to_laws(_shaped(action, self.action_space, self._shape))


class VectorLogitsToSimplices(gym.vector.VectorActionWrapper, gym.utils.RecordConstructorArgs):
    """`LogitsToSimplices` for a vector environment: logits (copies, N * M * (1 + Q)) of all copies at once.

    Arguments and errors as of `LogitsToSimplices`; `env` is what `gymnasium.make_vec` returns for this environment.
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], bound: float = 10.0):
        gym.utils.RecordConstructorArgs.__init__(self, bound=bound)
        gym.vector.VectorActionWrapper.__init__(self, env)
        self.single_action_space, shape = _logits_of(env.single_action_space, bound)
        self.action_space = batch_space(self.single_action_space, env.num_envs)
        self._shape = (env.num_envs, *shape)

    def actions(self, actions: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits (copies, N * M * (1 + Q)) -> laws (copies, N, M, 1 + Q).

        Raises:
            ValueError: there are more or fewer, or they are no real numbers.
        """
        return logits_to_laws(_shaped(actions, self.action_space, self._shape))


def _logits_of(simplices: gym.Space[Any], bound: float) -> tuple[gym.Space[Any], tuple[int, ...]]:
    """The space of the logits of one action, and the shape of its laws."""
    bound = number("bound", bound)
    if not 0 < bound <= float(np.finfo(np.float32).max):
        raise ValueError(f"bound={bound}: a number above 0 that float32 holds is needed")
    if not isinstance(simplices, ProductOfSimplices):
        raise TypeError(f"LogitsToSimplices wraps an environment with simplex actions, not {simplices}")
    return Box(-bound, bound, (int(np.prod(simplices.shape)),), np.float32), simplices.shape


def _shaped(given: Any, space: gym.Space[Any], laws: tuple[int, ...]) -> NDArray[Any]:
    """Logits in the shape of the laws they stand for."""
    logits = reals("logits", given)
    if logits.size != np.prod(laws):
        raise ValueError(f"logits of shape {logits.shape}: this environment wants {space.shape}")
    return logits.reshape(laws)


class CostInTuple(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Return (observation, reward, cost, terminated, truncated, info), as Safety-Gymnasium and OmniSafe want it.

    Raises:
        KeyError: the environment below does not report `info["cost"]`.
    """

    def __init__(self, env: gym.Env[Any, Any]):
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def step(self, action: Any) -> Any:
        """Step and move `info["cost"]` into the third place."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if "cost" not in info:
            raise KeyError('this environment reports no info["cost"]')
        return observation, reward, info["cost"], terminated, truncated, info
