"""Actor and critics of constrained PPO: networks that are shared by all states, so that their size knows no N.

The actor is a Gaussian over logits: a logistic-normal law once `wm_env.wrappers.LogitsToSimplices` has applied the
softmax. The action that is stored is the logit. Of the alternatives, a Dirichlet ties its variance to its mean and has
an unbounded density at the edge of the simplex, where the optimum lies; a softmaxed action with the Gaussian's density
is wrong. Three things keep exploration workable although an action has thousands of entries: one noise level for each
kind of entry, not one for each entry; networks shared over states, so that every state is a sample of the same few
parameters; and log-probabilities by row (s, u), so that ratio, clip and credit belong to rows and not to the whole.
"""

import math
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import preprocess_obs
from torch import Tensor, nn

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


class LawPolicy(ActorCriticPolicy):
    """Actor, reward critic and cost critic for a `CovertWatermarkEnv` with logit actions.

    Per state s and candidate rank k a small network gives h(s,k). The mean logit of W for label u and the candidate of
    rank k is ln P(x|s) + T(u,k) + e(u) . h(s,k), with a table T and an embedding e that all states share, so that a
    label can come to mean a rank everywhere. The mean logit of P(u|s) is b(u) + sum_k W(k|u,s) v . h(s,k): a label may
    become as likely as what it leads to deserves. At the start e, b and v are 0 and T is noise, so labels mean next to
    nothing and the text follows the cover. The networks see of a state its sorted cover, and the block; permuting
    states permutes the rows of the action.

    Args:
        observation_space, action_space, lr_schedule: as Stable-Baselines3 passes them.
        hidden: width of the two-layer networks.
        table_spread: standard deviation of the initial T.
        label_std, candidate_std: initial standard deviation of the noise on logits of P(u|s) and of W(x|u,s); learned.
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
        table_spread: float = 0.5,
        label_std: float = 0.2,
        candidate_std: float = 0.4,
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
        self.candidate_net = _two_layers(FEATURES + self.blocks, width)
        self.table = nn.Parameter(self.table_spread * torch.randn(labels, ranks))
        self.label_embedding = nn.Parameter(torch.zeros(labels, width))
        self.label_bias = nn.Parameter(torch.zeros(labels))
        self.worth = nn.Parameter(torch.zeros(width))
        self.log_std = nn.Parameter(torch.tensor([self.label_std, self.candidate_std]).log())
        self.value_net = nn.Sequential(_two_layers(2 * ranks + self.blocks, width), nn.Linear(width, 2))
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def critic_parameters(self) -> list[nn.Parameter]:
        """What the value losses move."""
        return list(self.value_net.parameters())

    def actor_parameters(self) -> list[nn.Parameter]:
        """What the surrogate moves."""
        return [value for name, value in self.named_parameters() if not name.startswith("value_net.")]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = super()._get_constructor_parameters()
        names = ("hidden", "table_spread", "label_std", "candidate_std")
        return parameters | {name: getattr(self, name) for name in names}

    def look(self, observation: dict[str, Tensor]) -> StateTable:
        """Sort what an observation says about each state; any number of states."""
        seen = preprocess_obs(observation, self.observation_space)
        state_probs = seen["state_probs"]
        cover, order = seen["cover"].unflatten(-1, (-1, self.candidates)).sort(dim=-1, descending=True, stable=True)
        present = cover > 0
        log_cover = torch.where(present, cover, 1).log2()
        above = cover.cumsum(-1) - cover
        features = torch.stack([log_cover, cover, above * present], -1)
        block = seen["block"].flatten(1)[:, None, :].expand(-1, state_probs.shape[1], -1)
        return StateTable(state_probs, features, present, order, block)

    def mean_logits(self, table: StateTable) -> Tensor:
        """Means of the logits, shape (batch, N, M, 1 + Q), within the bound; candidates in the observation's order."""
        block = table.block[:, :, None, :].expand(-1, -1, self.candidates, -1)
        hidden = self.candidate_net(torch.cat([table.candidates, block], -1))
        own = math.log(2) * table.candidates[:, :, None, :, 0]
        ranked = own + self.table + torch.einsum("ud,nskd->nsuk", self.label_embedding, hidden)
        leads_to = ranked.masked_fill(~table.present[:, :, None, :], -torch.inf).nan_to_num(neginf=-1e9).softmax(-1)
        of_label = self.label_bias + (leads_to * (hidden @ self.worth)[:, :, None, :]).sum(-1)
        place = table.order[:, :, None, :].expand_as(ranked)
        of_candidate = torch.zeros_like(ranked).scatter(-1, place, ranked)
        logits = torch.cat([of_label[..., None], of_candidate], -1)
        return self.bound * torch.tanh(logits / self.bound)

    def state_values(self, table: StateTable) -> Tensor:
        """Expected rate (bits) and cost from here on, per state and unit of its probability, shape (batch, N, 2)."""
        log_cover, present = table.candidates[..., 0], table.present.float()
        values: Tensor = self.value_net(torch.cat([log_cover, present, table.block], -1))
        return values

    def act(self, observation: dict[str, Tensor], generator: torch.Generator) -> tuple[Tensor, RowEvaluation]:
        """Draw logits (batch, N * M * (1 + Q)) with an explicit generator."""
        table = self.look(observation)
        mean = self.mean_logits(table)
        noise = torch.randn(mean.shape, generator=generator).to(mean.device)
        actions = mean + noise * self._std()
        return actions.flatten(1), RowEvaluation(self._row_log_prob(table, mean, actions), self.state_values(table))

    def evaluate_rows(self, observation: dict[str, Tensor], actions: Tensor) -> RowEvaluation:
        """Log-densities and values of stored actions."""
        table = self.look(observation)
        mean = self.mean_logits(table)
        return RowEvaluation(self._row_log_prob(table, mean, actions.view_as(mean)), self.state_values(table))

    def _std(self) -> Tensor:
        """Noise of the 1 + Q logits of a row."""
        label, candidate = self.log_std.exp()
        return torch.cat([label.view(1), candidate.expand(self.candidates)])

    def _row_log_prob(self, table: StateTable, mean: Tensor, actions: Tensor) -> Tensor:
        deviation = (actions - mean) / self._std()
        density = -deviation.square() / 2 - self._std().log() - math.log(2 * math.pi) / 2
        # `order` lists the present candidates first, so presence by place is presence by rank put back.
        present = torch.zeros_like(table.present).scatter(-1, table.order, table.present)
        counted = nn.functional.pad(present, (1, 0), value=True) & present.any(-1, keepdim=True)
        log_prob: Tensor = (density * counted[:, :, None, :]).sum(-1)
        return log_prob

    def forward(self, obs: dict[str, Tensor], deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Stable-Baselines3's interface: actions, values of the reward, joint log-density of all logits."""
        distribution = self.get_distribution(obs)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, self.predict_values(obs), distribution.log_prob(actions)

    def evaluate_actions(self, obs: dict[str, Tensor], actions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Stable-Baselines3's interface: values of the reward, joint log-density, entropy of all logits."""
        distribution = self.get_distribution(obs)
        return self.predict_values(obs), distribution.log_prob(actions), distribution.entropy()

    def get_distribution(self, obs: dict[str, Tensor]) -> DiagGaussianDistribution:
        """The Gaussian over all logits, flat."""
        mean = self.mean_logits(self.look(obs))
        log_std = self._std().log().expand_as(mean)
        return self.action_dist.proba_distribution(mean.flatten(1), log_std.flatten(1))

    def predict_values(self, obs: dict[str, Tensor]) -> Tensor:
        """Expected rate from here on in bits, shape (batch, 1): sum_s Z(s) v(s)."""
        table = self.look(obs)
        return (table.state_probs * self.state_values(table)[..., 0]).sum(-1, keepdim=True)

    def predict_cost_values(self, obs: dict[str, Tensor]) -> Tensor:
        """Expected cost from here on, shape (batch, 1)."""
        table = self.look(obs)
        return (table.state_probs * self.state_values(table)[..., 1]).sum(-1, keepdim=True)


def _two_layers(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
