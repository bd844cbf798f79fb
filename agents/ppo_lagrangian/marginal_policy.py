"""Actor and critics of constrained PPO that act with marginals q(x|s): one network for every state of every problem."""

import math
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.distributions import DiagGaussianDistribution
from torch import Tensor, nn

from agents.ppo_lagrangian.policy import RowEvaluation, StatePolicy, StateTable, float32_linear, look, two_layers
from wm_env.env import CovertWatermarkEnv
from wm_env.labels.labelling import label_candidates
from wm_env.labels.marginals import marginal_action

OF_CANDIDATE, OF_STATE = 4, 4
"""Numbers that the networks see of a candidate and of a state."""


class MarginalPolicy(StatePolicy):
    """A Gaussian over the logits of q(x|s), for environments behind `wm_env.labels.marginals.MarginalLogits`.

    The mean logits are ln P(x|s) + f(x, s): f = 0, the start, plays the cover. f is a small network that all
    candidates of all states share. It sees log2 P(x|s), also against the likeliest candidate and against H(X|s),
    and the mass of the likelier candidates; and of the state H(X|s), log2 of its largest probability, the largest
    probability and log2 of the number of its candidates. None of these depends on N, Q, M, B or on which
    candidates they are, so the same parameters act on other prompts, other trees and single states.

    The noise has one standard deviation, which falls geometrically over the training. Copies play in pairs with
    opposite noise: each is a draw from the policy, and the pair cancels what a critic leaves of a state's mean value.

    Args:
        observation_space, action_space, lr_schedule: as Stable-Baselines3 passes them.
        hidden: width of the two-layer networks.
        std: standard deviation of the noise on logits at the start and the end of training, nats.
        use_sde: must be False.

    Raises:
        TypeError: the spaces are not those of `MarginalLogits` around the environment.
    """

    bound_to: ClassVar[tuple[str, ...]] = ()
    """What of `CovertWatermarkEnv.identity` another problem must share with the one of the training: nothing."""

    std: Tensor
    """Present noise on the logits."""

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        lr_schedule: Any,
        hidden: int = 32,
        std: tuple[float, float] = (0.2, 0.02),
        use_sde: bool = False,
        **kwargs: Any,
    ):
        if (
            use_sde
            or not isinstance(observation_space, gym.spaces.Dict)
            or not isinstance(action_space, gym.spaces.Box)
            or observation_space["cover"].shape != action_space.shape
        ):
            raise TypeError("MarginalPolicy acts on CovertWatermarkEnv-v0 wrapped in MarginalLogits, without gSDE")
        states, cover = (gym.spaces.flatdim(observation_space[name]) for name in ("state_probs", "cover"))
        self.candidates = cover // states
        self.blocks = gym.spaces.flatdim(observation_space["block"])
        self.bound = float(action_space.high.flat[0])
        self.hidden, self.std_range = hidden, std
        super().__init__(observation_space, action_space, lr_schedule, use_sde=False, **kwargs)

    def _build(self, lr_schedule: Any) -> None:
        width = self.hidden
        self.action_dist = DiagGaussianDistribution(gym.spaces.flatdim(self.action_space))
        last = float32_linear(width, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.tilt_net = nn.Sequential(two_layers(OF_CANDIDATE + OF_STATE, width, nn.ReLU), last)
        self.value_net = nn.Sequential(two_layers(OF_STATE + self.blocks, width, nn.ReLU), float32_linear(width, 2))
        self.register_buffer("std", torch.tensor(self.std_range[0], dtype=torch.float32))
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def actor_parameters(self) -> list[nn.Parameter]:
        """What the surrogate moves."""
        return list(self.tilt_net.parameters())

    def _get_constructor_parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = super()._get_constructor_parameters()
        return parameters | {"hidden": self.hidden, "std": self.std_range}

    def anneal(self, remaining: float) -> None:
        """Set the noise for a point of the training: `remaining` falls from 1 to 0."""
        start, end = self.std_range
        self.std.fill_(end * (start / end) ** remaining)

    def noise(self) -> dict[str, float]:
        """Present standard deviations of the noise on logits, nats, by name."""
        return {"candidate_std": float(self.std)}

    def ranked_logits(self, table: StateTable) -> Tensor:
        """Means of the logits within the bound, shape (batch, N, Q); candidates from the most to the least likely."""
        log_cover, above = table.candidates[..., 0], table.candidates[..., 2]
        state = _of_state(table)
        entropy, highest = state[..., :1], state[..., 1:2]
        candidate = torch.stack([log_cover, log_cover - highest, log_cover + entropy, above], -1)
        seen = torch.cat([candidate, state[:, :, None].expand(*candidate.shape[:3], -1)], -1)
        tilt = self.tilt_net(seen)[..., 0]
        logits: Tensor = (math.log(2) * (log_cover - highest) + tilt).clamp(-self.bound, self.bound)
        return logits

    def mean_logits(self, table: StateTable) -> Tensor:
        """`ranked_logits` with the candidates in the observation's order."""
        ranked = self.ranked_logits(table)
        return torch.zeros_like(ranked).scatter(-1, table.order, ranked)

    def play(self, observation: dict[str, Tensor], env: CovertWatermarkEnv) -> NDArray[np.float32]:
        """The laws (N, M, 1 + Q) of the mean logits for the present observation of `env`, given with a batch of 1."""
        block, space = env.problem.tree.blocks[len(env.laws)], env.action_space
        logits = self._logits(observation, space.candidates)
        cover = torch.from_numpy(block.cover)
        return marginal_action(logits, cover, label_candidates(block, space.labels), space.shape)

    def _logits(self, observation: dict[str, Tensor], candidates: int) -> Tensor:
        """Mean logits (N, Q) for an observation of any problem, with a batch of 1; the actor ignores the block."""
        seen = {name: observation[name] for name in ("state_probs", "cover")} | {
            "block": observation["state_probs"][:, :1]
        }
        return self.mean_logits(look(seen, candidates))[0].cpu()

    def state_values(self, table: StateTable) -> Tensor:
        """Expected rate (bits) and cost from here on, per state and unit of its probability, shape (batch, N, 2)."""
        values: Tensor = self.value_net(torch.cat([_of_state(table), table.block], -1))
        return values

    def act(self, observation: dict[str, Tensor], generator: torch.Generator) -> tuple[Tensor, RowEvaluation]:
        """Draw logits (batch, N Q) with an explicit generator; the second half of the batch has the opposite noise."""
        table = self.look(observation)
        mean = self.mean_logits(table)
        drawn = torch.randn((len(mean) + 1) // 2, *mean.shape[1:], generator=generator, dtype=torch.float32)
        noise = torch.cat([drawn, -drawn])[: len(mean)].to(mean.device)
        actions = mean + self.std * noise
        return actions.flatten(1), RowEvaluation(self._log_prob(table, mean, actions), self.state_values(table))

    def evaluate_rows(self, observation: dict[str, Tensor], actions: Tensor) -> RowEvaluation:
        """Log-densities by candidate, shape (batch, N, Q), and values of stored actions."""
        table = self.look(observation)
        mean = self.mean_logits(table)
        return RowEvaluation(self._log_prob(table, mean, actions.view_as(mean)), self.state_values(table))

    def _log_prob(self, table: StateTable, mean: Tensor, actions: Tensor) -> Tensor:
        density = -((actions - mean) / self.std).square() / 2 - self.std.log() - math.log(2 * math.pi) / 2
        # `order` lists the present candidates first, so presence by place is presence by rank put back.
        present = torch.zeros_like(table.present).scatter(-1, table.order, table.present)
        log_prob: Tensor = density * present
        return log_prob

    def get_distribution(self, obs: dict[str, Tensor]) -> DiagGaussianDistribution:
        """The Gaussian over all logits, flat."""
        mean = self.mean_logits(self.look(obs)).flatten(1)
        return self.action_dist.proba_distribution(mean, self.std.log().expand_as(mean))


def _of_state(table: StateTable) -> Tensor:
    """H(X|s) in bits, log2 of the largest probability, that probability, log2 of the number of candidates."""
    log_cover, cover = table.candidates[..., 0], table.candidates[..., 1]
    count = table.present.sum(-1).clamp_min(1).to(cover.dtype)
    return torch.stack([-(cover * log_cover).sum(-1), log_cover[..., 0], cover[..., 0], count.log2()], -1)
