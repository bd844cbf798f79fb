"""Actor and critics of constrained PPO: networks that are shared by all states, so that their size knows no N.

The actor is a Gaussian over logits: a logistic-normal law once `wm_env.wrappers.LogitsToSimplices` has applied the
softmax. The action that is stored is the logit. Of the alternatives, a Dirichlet ties its variance to its mean and has
an unbounded density at the edge of the simplex, where the optimum lies; a softmaxed action with the Gaussian's density
is wrong. Three things keep exploration workable although an action has thousands of entries: two noise levels for the
two kinds of entries instead of one for each entry; networks shared over states, so that every state is a sample of the
same few parameters; and log-probabilities by row (s, u), so that ratio, clip and credit belong to rows. The noise
is annealed, not learned: noise costs total variation, so once the limit binds a learned one dies before the labels have
found their meaning.
"""

import math
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import preprocess_obs
from torch import Tensor, nn

from wm_env.env import CovertWatermarkEnv
from wm_env.wrappers import logits_to_laws

FEATURES = 3
"""Numbers known about one candidate: log2 P(x|s), P(x|s), and the mass of the likelier candidates."""


class StateTable(NamedTuple):
    """Observations as the networks see them: the candidates of every state from the most to the least likely.

    Attributes:
        state_probs: Z(s), shape (batch, N).
        candidates: features of the candidates, shape (batch, N, Q, FEATURES), zero where a state has no such candidate.
        present: whether it has, shape (batch, N, Q).
        order: the place of the k-th likeliest candidate in the observation, shape (batch, N, Q).
        block: one-hot number of the block, shape (batch, N, B).
    """

    state_probs: Tensor
    candidates: Tensor
    present: Tensor
    order: Tensor
    block: Tensor


class RowEvaluation(NamedTuple):
    """What an update needs to know about stored actions.

    Attributes:
        log_prob: log-density of the logits of P(u|s) and W(.|u,s) for one s and one u, shape (batch, N, M), nats.
            Logits that the environment ignores, of padded states and candidates, do not count.
        values: value to go of each state per unit of its probability, shape (batch, N, 2): rate in bits, then cost.
    """

    log_prob: Tensor
    values: Tensor


class StatePolicy(ActorCriticPolicy):
    """A Gaussian over logits with critics by state, behind Stable-Baselines3's interface."""

    candidates: int

    def look(self, observation: dict[str, Tensor]) -> StateTable:
        """Sort what an observation says about each state; any number of states."""
        return look(preprocess_obs(observation, self.observation_space), self.candidates)

    def critic_parameters(self) -> list[nn.Parameter]:
        """What the value losses move."""
        return list(self.value_net.parameters())

    def state_values(self, table: StateTable) -> Tensor:
        """Expected rate (bits) and cost from here on, per state and unit of its probability, shape (batch, N, 2)."""
        raise NotImplementedError

    def forward(self, obs: dict[str, Tensor], deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Stable-Baselines3's interface: actions, values of the reward, joint log-density of all logits."""
        distribution = self.get_distribution(obs)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, self.predict_values(obs), distribution.log_prob(actions)

    def evaluate_actions(self, obs: dict[str, Tensor], actions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Stable-Baselines3's interface: values of the reward, joint log-density, entropy of all logits."""
        distribution = self.get_distribution(obs)
        return self.predict_values(obs), distribution.log_prob(actions), distribution.entropy()

    def predict_values(self, obs: dict[str, Tensor]) -> Tensor:
        """Expected rate from here on in bits, shape (batch, 1): sum_s Z(s) v(s)."""
        table = self.look(obs)
        return (table.state_probs * self.state_values(table)[..., 0]).sum(-1, keepdim=True)


class LawPolicy(StatePolicy):
    """Actor, reward critic and cost critic for a `CovertWatermarkEnv` with logit actions.

    The mean of the action is a labelling of the candidates, a channel from X and S to U as Gelfand and Pinsker have it.
    For a state s and the candidate of rank k,

        q(x|s) proportional to P(x|s) exp(f(s,k)),    V(u|x,s) = B(u,k),

    with a small network f and a table B that all states share. The mean logits are those of the P(u|s) and W(x|u,s)
    whose joint law is q(x|s) V(u|x,s). So what an observer sees, q, and what a label means, V, are learned apart.
    B is a free table of logits after Sinkhorn balancing: sum_u B(u,k) = 1 and sum_k B(u,k) = Q/M. Without it two labels
    often settle on one rank while another rank has none, and noise never revives a label of probability near 0. At the
    start f is 0 and the logits of B are noise: labels mean next to nothing and the text follows the cover. f sees of a
    state its sorted cover, and the block; permuting states permutes the rows of the action.

    Args:
        observation_space, action_space, lr_schedule: as Stable-Baselines3 passes them.
        hidden: width of the two-layer networks.
        table_spread: standard deviation of the initial logits of B, nats.
        label_std: standard deviation of the noise on the logits of P(u|s) at the start and the end of training, nats.
        candidate_std: the same for W(x|u,s). In between both fall geometrically.
        use_sde: must be False.

    Raises:
        TypeError: the spaces are not those of `LogitsToSimplices` around the environment.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        lr_schedule: Any,
        hidden: int = 64,
        table_spread: float = 1.0,
        label_std: tuple[float, float] = (0.1, 0.03),
        candidate_std: tuple[float, float] = (0.5, 0.1),
        use_sde: bool = False,
        **kwargs: Any,
    ):
        if (
            use_sde
            or not isinstance(observation_space, gym.spaces.Dict)
            or not isinstance(action_space, gym.spaces.Box)
        ):
            raise TypeError("LawPolicy acts on CovertWatermarkEnv-v0 wrapped in LogitsToSimplices, without gSDE")
        states, cover = (gym.spaces.flatdim(observation_space[name]) for name in ("state_probs", "cover"))
        self.candidates = cover // states
        self.labels = gym.spaces.flatdim(action_space) // (states + cover)
        self.blocks = gym.spaces.flatdim(observation_space["block"])
        self.bound = float(action_space.high.flat[0])
        self.hidden, self.table_spread = hidden, table_spread
        self.label_std, self.candidate_std = label_std, candidate_std
        super().__init__(observation_space, action_space, lr_schedule, use_sde=False, **kwargs)

    def _build(self, lr_schedule: Any) -> None:
        width, labels, ranks = self.hidden, self.labels, self.candidates
        self.action_dist = DiagGaussianDistribution(gym.spaces.flatdim(self.action_space))
        last = float32_linear(width, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.tilt_net = nn.Sequential(two_layers(FEATURES + ranks + self.blocks, width, nn.Tanh), last)
        self.table = nn.Parameter(self.table_spread * torch.randn(labels, ranks, dtype=torch.float32))
        self.register_buffer("std", torch.tensor([self.label_std[0], self.candidate_std[0]], dtype=torch.float32))
        self.value_net = nn.Sequential(two_layers(2 * ranks + self.blocks, width, nn.Tanh), float32_linear(width, 2))
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def actor_parameters(self) -> list[nn.Parameter]:
        """What the surrogate moves."""
        return [value for name, value in self.named_parameters() if not name.startswith("value_net.")]

    std: Tensor
    """Present noise on logits of P(u|s) and of W(x|u,s)."""

    bound_to: ClassVar = ("labels", "candidates", "blocks")
    """What of `CovertWatermarkEnv.identity` another problem must share with the one of the training."""

    def noise(self) -> dict[str, float]:
        """Present standard deviations of the noise on logits, nats, by name."""
        return dict(zip(("label_std", "candidate_std"), self.std.tolist(), strict=True))

    def play(self, observation: dict[str, Tensor], env: CovertWatermarkEnv) -> NDArray[np.float32]:
        """The laws (N, M, 1 + Q) of the mean logits for the present observation of `env`, given with a batch of 1."""
        return logits_to_laws(self.mean_logits(self.look(observation))[0].cpu().numpy())

    def _get_constructor_parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = super()._get_constructor_parameters()
        names = ("hidden", "table_spread", "label_std", "candidate_std")
        return parameters | {name: getattr(self, name) for name in names}

    def anneal(self, remaining: float) -> None:
        """Set the noise for a point of the training: `remaining` falls from 1 to 0."""
        levels = [end * (start / end) ** remaining for start, end in (self.label_std, self.candidate_std)]
        self.std.copy_(torch.tensor(levels, dtype=torch.float32))

    def mean_logits(self, table: StateTable) -> Tensor:
        """Means of the logits, shape (batch, N, M, 1 + Q), within the bound; candidates in the observation's order."""
        state = torch.cat([table.candidates[..., 0], table.block], -1)
        state = state[:, :, None, :].expand(-1, -1, self.candidates, -1)
        tilt = self.tilt_net(torch.cat([table.candidates, state], -1))[..., 0]
        log_cover = math.log(2) * table.candidates[..., 0]
        log_q = _masked_log_softmax(log_cover + tilt, table.present)
        log_joint = log_q[:, :, None, :] + log_balanced(self.table)
        of_label = log_joint.logsumexp(-1)
        ranked = log_joint - of_label[..., None]
        of_candidate = torch.zeros_like(ranked).scatter(-1, table.order[:, :, None, :].expand_as(ranked), ranked)
        return torch.cat([of_label[..., None], of_candidate], -1).clamp(-self.bound, self.bound)

    def state_values(self, table: StateTable) -> Tensor:
        """Expected rate (bits) and cost from here on, per state and unit of its probability, shape (batch, N, 2)."""
        log_cover, present = table.candidates[..., 0], table.present.float()
        values: Tensor = self.value_net(torch.cat([log_cover, present, table.block], -1))
        return values

    def act(self, observation: dict[str, Tensor], generator: torch.Generator) -> tuple[Tensor, RowEvaluation]:
        """Draw logits (batch, N * M * (1 + Q)) with an explicit generator."""
        table = self.look(observation)
        mean = self.mean_logits(table)
        noise = torch.randn(mean.shape, generator=generator, dtype=torch.float32).to(mean.device)
        actions = mean + noise * self._std()
        return actions.flatten(1), RowEvaluation(self._row_log_prob(table, mean, actions), self.state_values(table))

    def evaluate_rows(self, observation: dict[str, Tensor], actions: Tensor) -> RowEvaluation:
        """Log-densities and values of stored actions."""
        table = self.look(observation)
        mean = self.mean_logits(table)
        return RowEvaluation(self._row_log_prob(table, mean, actions.view_as(mean)), self.state_values(table))

    def _std(self) -> Tensor:
        """Noise of the 1 + Q logits of a row."""
        return torch.cat([self.std[:1], self.std[1:].expand(self.candidates)])

    def _row_log_prob(self, table: StateTable, mean: Tensor, actions: Tensor) -> Tensor:
        deviation = (actions - mean) / self._std()
        density = -deviation.square() / 2 - self._std().log() - math.log(2 * math.pi) / 2
        # `order` lists the present candidates first, so presence by place is presence by rank put back.
        present = torch.zeros_like(table.present).scatter(-1, table.order, table.present)
        counted = nn.functional.pad(present, (1, 0), value=True) & present.any(-1, keepdim=True)
        log_prob: Tensor = (density * counted[:, :, None, :]).sum(-1)
        return log_prob

    def get_distribution(self, obs: dict[str, Tensor]) -> DiagGaussianDistribution:
        """The Gaussian over all logits, flat."""
        mean = self.mean_logits(self.look(obs))
        log_std = self._std().log().expand_as(mean)
        return self.action_dist.proba_distribution(mean.flatten(1), log_std.flatten(1))


def look(seen: dict[str, Tensor], candidates: int) -> StateTable:
    """Sort what an observation, preprocessed by Stable-Baselines3, says about states of so many candidates."""
    state_probs = seen["state_probs"]
    cover, order = seen["cover"].view(*state_probs.shape, candidates).sort(dim=-1, descending=True, stable=True)
    present = cover > 0
    log_cover = torch.where(present, cover, 1).log2()
    above = cover.cumsum(-1) - cover
    features = torch.stack([log_cover, cover, above * present], -1)
    block = seen["block"].flatten(1)[:, None, :].expand(-1, state_probs.shape[1], -1)
    return StateTable(state_probs, features, present, order, block)


def log_balanced(logits: Tensor, sweeps: int = 20) -> Tensor:
    """ln B, shape (M, Q): exp(logits) times factors of rows and columns, such that sum_u B = 1 and sum_k B = Q/M.

    Sinkhorn's iteration in the log domain. sum_u B = 1 holds exactly, the other sums up to what the sweeps leave.
    """
    excess = math.log(logits.shape[1] / logits.shape[0])
    for _ in range(sweeps):
        logits = logits.log_softmax(1) + excess
        logits = logits.log_softmax(0)
    return logits


def _masked_log_softmax(logits: Tensor, present: Tensor) -> Tensor:
    """ln softmax over the last axis among what is present; so low elsewhere that the exponential is 0."""
    # States that are only padding have nothing present: any finite row will do for them.
    return logits.masked_fill(~present, -1e4).log_softmax(-1)


def float32_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer in float32, as observations are, whatever torch's default is."""
    return nn.Linear(inputs, outputs, dtype=torch.float32)


def two_layers(inputs: int, width: int, activation: type[nn.Module]) -> nn.Sequential:
    """Two such layers, each with an activation behind it."""
    return nn.Sequential(float32_linear(inputs, width), activation(), float32_linear(width, width), activation())
