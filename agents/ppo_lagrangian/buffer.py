"""The rollout buffer of constrained PPO: rewards, costs, values and advantages by state."""

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictRolloutBuffer
from torch import Tensor

from wm_env.criteria.credit import COST, PARENT, RATE

Floats32 = NDArray[np.float32]


class RowSamples(NamedTuple):
    """A minibatch of states: whatever copy and block they are from, each is an observation with one state.

    Attributes:
        observations: tensors with a leading axis (batch), N = 1.
        actions: logits of the state, shape (batch, A / N).
        log_prob: by row when the action was taken, shape (batch, 1, R), nats; R is M or 1, as the policy has it.
        advantages: of rate (bits) and cost, shape (batch, 1, 2); the sums of a block are the usual advantages.
        returns: of rate and cost, shape (batch, 1, 2).
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
        shape = (self.buffer_size, self.n_envs, states)
        self.row_log_prob: Floats32 | None = None
        self.state_rewards = np.zeros((*shape, 2), dtype=np.float32)
        self.state_values = np.zeros((*shape, 2), dtype=np.float32)
        self.parent = np.full(shape, -1)
        self.state_advantages = np.zeros((*shape, 2), dtype=np.float32)

    def add_rows(self, infos: list[dict[str, Any]], state_values: Tensor, row_log_prob: Tensor) -> None:
        """Add what `add` has no place for, before it is called for the same step.

        Args:
            infos: of all environments, each with the arrays of `wm_env.criteria.credit.CreditByState`.
            state_values: Z(s) v(s) of rate and cost, shape (environments, N, 2).
            row_log_prob: shape (environments, N, R).

        Raises:
            KeyError: an info lacks the arrays.
        """
        if RATE not in infos[0]:
            raise KeyError(f'info["{RATE}"] is missing: wrap the environment in wm_env.criteria.credit.CreditByState')
        self.state_rewards[self.pos, :, :, 0] = [info[RATE] for info in infos]
        self.state_rewards[self.pos, :, :, 1] = [info[COST] for info in infos]
        self.parent[self.pos] = [info[PARENT] for info in infos]
        self.state_values[self.pos] = state_values.cpu().numpy()
        if self.row_log_prob is None:
            self.row_log_prob = np.zeros((self.buffer_size, *row_log_prob.shape), dtype=np.float32)
        self.row_log_prob[self.pos] = row_log_prob.cpu().numpy()

    def compute_state_advantages(self) -> None:
        """Generalised advantage estimation along the tree; see `tree_advantages`."""
        self.state_advantages = tree_advantages(
            self.state_rewards, self.state_values, self.parent, self.gamma, self.gae_lambda
        )

    def minibatches(self, batch_size: int, rng: np.random.Generator) -> Generator[RowSamples, None, None]:
        """All states with Z(s) > 0 once in random order, in parts of about `batch_size`."""
        assert self.row_log_prob is not None
        state_probs = self.observations["state_probs"]
        step, copy, state = np.nonzero(state_probs)
        cover = self.observations["cover"].reshape(*state_probs.shape, -1)
        actions = self.actions.reshape(*state_probs.shape, -1)
        for rows in np.array_split(rng.permutation(len(step)), max(1, round(len(step) / batch_size))):
            at = step[rows], copy[rows], state[rows]
            yield RowSamples(
                {
                    "state_probs": self.to_torch(state_probs[at][:, None]),
                    "cover": self.to_torch(cover[at]),
                    "block": self.to_torch(self.observations["block"][at[:2]]),
                },
                self.to_torch(actions[at]),
                self.to_torch(self.row_log_prob[at][:, None]),
                self.to_torch(self.state_advantages[at][:, None]),
                self.to_torch((self.state_advantages[at] + self.state_values[at])[:, None]),
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
