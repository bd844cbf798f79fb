"""The rollout buffer of constrained PPO: rewards, costs, values and advantages by state."""

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictRolloutBuffer
from torch import Tensor

from wm_env.credit import COST, PARENT, RATE

Floats32 = NDArray[np.float32]


class RowSamples(NamedTuple):
    """A minibatch.

    Attributes:
        observations: tensors with a leading axis (batch).
        actions: logits, shape (batch, N * M * (1 + Q)).
        log_prob: by row when the action was taken, shape (batch, N, M), nats.
        advantages: of rate (bits) and cost, by state, shape (batch, N, 2); sums over states are the usual advantages.
        returns: of rate and cost, by state, shape (batch, N, 2).
    """

    observations: dict[str, Tensor]
    actions: Tensor
    log_prob: Tensor
    advantages: Tensor
    returns: Tensor


class StateRolloutBuffer(DictRolloutBuffer):
    """Whole episodes of several environments, with what each state contributed.

    Stable-Baselines3's own arrays (rewards, values, advantages, returns) are filled as ever: they are the sums over
    states of the reward's.
    """

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        states = self.obs_shape["state_probs"][0]
        labels = self.action_dim // (states + self.obs_shape["cover"][0])
        shape = (self.buffer_size, self.n_envs, states)
        self.row_log_prob = np.zeros((*shape, labels), dtype=np.float32)
        self.state_rewards = np.zeros((*shape, 2), dtype=np.float32)
        self.state_values = np.zeros((*shape, 2), dtype=np.float32)
        self.parent = np.full(shape, -1)
        self.state_advantages = np.zeros((*shape, 2), dtype=np.float32)

    def add_rows(self, infos: list[dict[str, Any]], state_values: Tensor, row_log_prob: Tensor) -> None:
        """Add what `add` has no place for, before it is called for the same step.

        Args:
            infos: of all environments, each with the arrays of `wm_env.credit.CreditByState`.
            state_values: Z(s) v(s) of rate and cost, shape (environments, N, 2).
            row_log_prob: shape (environments, N, M).

        Raises:
            KeyError: an info lacks the arrays.
        """
        if RATE not in infos[0]:
            raise KeyError(f'info["{RATE}"] is missing: wrap the environment in wm_env.credit.CreditByState')
        self.state_rewards[self.pos, :, :, 0] = [info[RATE] for info in infos]
        self.state_rewards[self.pos, :, :, 1] = [info[COST] for info in infos]
        self.parent[self.pos] = [info[PARENT] for info in infos]
        self.state_values[self.pos] = state_values.cpu().numpy()
        self.row_log_prob[self.pos] = row_log_prob.cpu().numpy()

    def compute_state_advantages(self) -> None:
        """Generalised advantage estimation along the tree; see `tree_advantages`."""
        self.state_advantages = tree_advantages(
            self.state_rewards, self.state_values, self.parent, self.gamma, self.gae_lambda
        )

    def minibatches(self, batch_size: int, rng: np.random.Generator) -> Generator[RowSamples, None, None]:
        """All samples once in random order; the last minibatch may be smaller."""
        total = self.buffer_size * self.n_envs
        for rows in np.array_split(rng.permutation(total), max(1, round(total / batch_size))):
            step, copy = np.divmod(rows, self.n_envs)
            observations = {name: self.to_torch(values[step, copy]) for name, values in self.observations.items()}
            yield RowSamples(
                observations,
                self.to_torch(self.actions[step, copy]),
                self.to_torch(self.row_log_prob[step, copy]),
                self.to_torch(self.state_advantages[step, copy]),
                self.to_torch(self.state_advantages[step, copy] + self.state_values[step, copy]),
            )


def tree_advantages(
    rewards: Floats32, values: Floats32, parent: NDArray[np.int64], gamma: float, lam: float
) -> Floats32:
    """Generalised advantage estimation of every state, its future being the states that follow from it.

        delta_t(s) = r_t(s) + gamma sum_{s' follows s} V_{t+1}(s') - V_t(s)
        A_t(s) = delta_t(s) + gamma lambda sum_{s' follows s} A_{t+1}(s')

    Summed over states these are the advantages of Schulman et al. (2016). A state is thus not credited with what
    happens in other parts of the tree.

    Args:
        rewards: what each state contributed, shape (T, environments, N, channels).
        values: V_t(s) = Z_t(s) v(s), same shape.
        parent: for every state of step t + 1 the state of step t that it follows from, shape (T, environments, N); -1
            where an episode ends. Nothing is bootstrapped after the last step.
        gamma, lam: discount and lambda.
    """
    steps, copies, states, channels = rewards.shape
    advantages = np.zeros_like(rewards)
    row = np.arange(copies)[:, None]
    for step in reversed(range(steps)):
        future = np.zeros((copies, states + 1, channels), dtype=rewards.dtype)
        if step + 1 < steps:
            # Index -1 is the extra last row, which is dropped.
            np.add.at(future, (row, parent[step]), gamma * (values[step + 1] + lam * advantages[step + 1]))
        advantages[step] = rewards[step] + future[:, :states] - values[step]
    return advantages
