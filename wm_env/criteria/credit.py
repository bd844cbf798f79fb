"""Credit by state: what each state contributed to a reward and a cost, and which states follow from it.

Reward and cost are expectations over the state, so they are sums over states, and the tree leads to every state from
one state only. A learner that knows both need not guess which of a thousand rows of an action was good.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wm_env.env import CovertWatermarkEnv

RATE, COST, PARENT = "rate_by_state", "cost_by_state", "parent"
"""Keys of `info` that hold an array over states."""


def parents(child: Tensor, states: int) -> Tensor:
    """The state s that leads to each state of the next block, shape (states, ...), int64; -1 where none does.

    Args:
        child: next state of (s, x), shape (N, Q, ...), int64, -1 where there is none.
        states: number of states of the next block, or more.
    """
    row = torch.arange(len(child)).repeat_interleave(child.shape[1])
    row = row.reshape(-1, *(1 for _ in child.shape[2:])).expand(-1, *child.shape[2:])
    # Entries that lead nowhere are written to a place of their own, which is cut off.
    place = torch.where(child < 0, states, child).flatten(0, 1)
    return torch.full((states + 1, *child.shape[2:]), -1).scatter(0, place, row)[:states]


class CreditByState(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Add to the info of every step three arrays over states, padded to the N of the action space.

    * `rate_by_state`, `cost_by_state`: see `wm_env.information.measure_by_state`; they sum to reward and cost.
    * `parent`: for every state of the block that comes next, the state of this block that leads to it; -1 for padding
      and after the last block.

    Raises:
        TypeError: another environment.
    """

    def __init__(self, env: gym.Env[Any, Any]):
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        if not isinstance(env.unwrapped, CovertWatermarkEnv):
            raise TypeError(f"CreditByState wraps CovertWatermarkEnv-v0, not {env.unwrapped}")
        self._raw = env.unwrapped

    def step(self, action: Any) -> Any:
        """Step and add the arrays."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        raw, states = self._raw, self._raw.action_space.states
        number = len(raw.laws)
        rate, cost = raw.objective.measure_by_state(raw.objective(raw.laws[-1]), raw.problem.cost)
        child = raw.problem.blocks[number - 1].child
        info |= {RATE: _padded(rate, states), COST: _padded(cost, states), PARENT: parents(child, states).numpy()}
        return observation, reward, terminated, truncated, info


def _padded(values: Tensor, states: int) -> NDArray[np.float64]:
    padded = np.zeros(states)
    padded[: len(values)] = values.numpy()
    return padded
