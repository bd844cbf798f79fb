"""Acting with marginals: the law of the text in every state, with labels that are fixed beforehand."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from torch import Tensor

from wm_env.common.checks import number, reals
from wm_env.criteria.objectives import Objective
from wm_env.env import CovertWatermarkEnv
from wm_env.labels.labelling import label_candidates, label_law
from wm_env.problem import Problem
from wm_env.spaces import ProductOfSimplices, join_laws


def marginal_action(logits: Tensor, cover: Tensor, label: Tensor, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The action of `CovertWatermarkEnv` that plays q(x|s) = softmax of the logits over the candidates of a state.

    Args:
        logits: shape (n, Q) or more rows, of which those of padded states are ignored.
        cover: P(x|s) of the block that is to be played, shape (n, Q).
        label: f(x) of `wm_env.labels.labelling.label_candidates`, shape (n, Q).
        shape: (N, M, 1 + Q) of the action space, and of the result, where rows of padded states hold uniform laws.

    Raises:
        ValueError: a logit is NaN, or infinite for a whole state.
    """
    marginal = logits[: len(cover)].double().masked_fill(cover <= 0, -torch.inf).softmax(1)
    if bool(marginal.isnan().any()):
        raise ValueError("logits: finite numbers are needed; has the policy diverged?")
    _, labels, entries = shape
    p_label, p_candidate = label_law(marginal, label, cover, labels)
    action = np.empty(shape, dtype=np.float32)
    action[..., 0], action[..., 1:] = 1 / labels, 1 / (entries - 1)
    action[: len(cover)] = join_laws(p_label.numpy(), p_candidate.numpy())
    return action


class MarginalLogits(gym.ActionWrapper[Any, NDArray[np.float32], NDArray[np.float32]], gym.utils.RecordConstructorArgs):
    """Take logits of the marginals q(x|s) instead of laws; labels come from `wm_env.labels.labelling`.

    The action becomes a flat `Box(-bound, bound, (N Q,))`, the logit of candidate x of state s at s Q + x. It plays
    U = f(X) with the labelling f of the present block. Store the logits, not the laws: softmax maps the hyperplane of
    logits with sum 0 onto the laws without a zero and changes volumes by the factor Q q_1 ... q_Q, which depends on the
    sampled action only and cancels in PPO's ratios.

    Args:
        env: a CovertWatermarkEnv with the gp objective, wrapped or not.
        bound: largest absolute logit.

    Raises:
        TypeError: another environment.
        ValueError: the coded objective, or a bound that is no number above 0.
    """

    def __init__(self, env: gym.Env[Any, NDArray[np.float32]], bound: float = 20.0):
        gym.utils.RecordConstructorArgs.__init__(self, bound=bound)
        gym.ActionWrapper.__init__(self, env)
        raw = env.unwrapped
        if not isinstance(raw, CovertWatermarkEnv) or not isinstance(env.action_space, ProductOfSimplices):
            raise TypeError(f"MarginalLogits wraps CovertWatermarkEnv-v0, not {env}")
        if type(raw.objective) is not Objective:
            raise ValueError(
                f"objective={raw.objective.name!r}: marginals with a labelling are for objective='gp'; use laws"
            )
        if number("bound", bound) <= 0:
            raise ValueError(f"bound={bound}: a number above 0 is needed")
        self._raw, self._space = raw, env.action_space
        self._labelled: tuple[Problem, list[Tensor]] | None = None
        self.action_space = Box(-bound, bound, (self._space.states * self._space.candidates,), np.float32)

    def action(self, action: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits (N Q,) -> laws (N, M, 1 + Q) of the present block.

        Raises:
            ValueError: there are more or fewer, or they are no finite numbers.
        """
        logits = reals("logits", action)
        if logits.shape != self.action_space.shape:
            raise ValueError(f"logits of shape {logits.shape}: this environment wants {self.action_space.shape}")
        problem = self._raw.problem
        if self._labelled is None or self._labelled[0] is not problem:
            self._labelled = problem, [label_candidates(block, self._space.labels) for block in problem.tree.blocks]
        number = min(len(self._raw.laws), len(problem.blocks) - 1)
        shaped = torch.from_numpy(logits.reshape(self._space.states, self._space.candidates))
        return marginal_action(shaped, problem.blocks[number].cover, self._labelled[1][number], self._space.shape)
