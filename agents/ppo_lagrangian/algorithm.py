"""PPO-Lagrangian: constrained proximal policy optimisation on Stable-Baselines3."""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import explained_variance, obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from agents.common.multiplier import dual_ascent
from agents.ppo_lagrangian.buffer import RowSamples, StateRolloutBuffer
from agents.ppo_lagrangian.marginal_policy import MarginalPolicy
from agents.ppo_lagrangian.policy import LawPolicy
from wm_env.common.foreign.devices import usable_device
from wm_env.env import CovertWatermarkEnv
from wm_env.law import JointLaw

Self = TypeVar("Self", bound="PPOLagrangian")


class PPOLagrangian(PPO):
    """Maximise E[sum_b gamma^b r_b] subject to E[sum_b gamma^b c_b] <= epsilon on `CovertWatermarkEnv-v0`.

    Every rollout consists of whole episodes that start afresh. From it come the advantages A_r and A_c of rate (bits)
    and cost by state (`agents.ppo_lagrangian.buffer.tree_advantages`), and one step of the multiplier on the mean C of
    its episodes' sum_b gamma^b c_b:

        integral <- [integral + dual_step (C - epsilon)]_+,    beta = [integral + dual_gain (C - epsilon)]_+.

    The first is dual ascent (`agents.common.multiplier.dual_ascent`), the second damps it. With

        A(s) = (A_r(s) - beta A_c(s)) / (1 + beta),    a(s) = A(s) / Z(s),

    a centred and scaled to variance 1 under Z over the rollout, the policy maximises

        mean under Z of  sum_j min(rho(s,j) a(s), clip(rho(s,j), 1 - clip, 1 + clip) a(s)),

    rho(s,j) the probability ratio of one row of what was sampled in state s: a row of logits for each label
    (`LawPolicy`) or one logit for each candidate (`MarginalPolicy`). At rho = 1 its gradient is that of the usual
    surrogate with the product of all rho, but neither the clip nor the credit suffers from the number of rows.
    Minibatches are of states, whatever block and copy they are from. An epoch is the last of its rollout once the mean
    KL divergence by row, weighted by Z, exceeds 1.5 target_kl. Both critics minimise the mean under Z of (v(s) -
    return(s) / Z(s))^2.

    A run is a function of its settings: noise, minibatches and episodes of a rollout are drawn from
    (seed, num_timesteps), so a model that was saved, loaded and trained on continues bit for bit as if nothing had
    happened, as long as `learn` is told the same final number of steps, on which noise and schedules depend.

    Args:
        policy: `MarginalPolicy`, `LawPolicy` or a subclass.
        env: for `MarginalPolicy` environments wrapped in `wm_env.labels.marginals.MarginalLogits` and `CreditByState`,
            or `agents.ppo_lagrangian.marginal_env.MarginalVecEnv`; for `LawPolicy` `LogitsToSimplices` and
            `CreditByState`, or `agents.ppo_lagrangian.vec_env.LogitVecEnv`.
        epsilon: the limit; by default the environment's.
        dual_step: eta_beta, bits per unit of cost and unit of violation.
        dual_gain: the same for the term that forgets.
        initial_multiplier: beta before the first rollout, bits per unit of cost.
        n_steps: blocks per environment and rollout; a multiple of the environment's blocks.
        batch_size: states per minibatch, about.
        target_kl: nats per row.
        learning_rate, n_epochs, gae_lambda, clip_range, vf_coef, max_grad_norm and the rest: as in PPO. gamma is the
            environment's.

    Raises:
        ValueError: n_steps that cut episodes, a limit below 0, or a device that cannot be used.
    """

    policy: LawPolicy | MarginalPolicy
    rollout_buffer: StateRolloutBuffer
    num_timesteps: int

    def __init__(
        self,
        policy: type[LawPolicy] | type[MarginalPolicy] | str,
        env: GymEnv | None,
        epsilon: float | None = None,
        dual_step: float = 0.2,
        dual_gain: float = 0.0,
        initial_multiplier: float = 0.0,
        learning_rate: Any = 0.01,
        n_steps: int = 2,
        batch_size: int = 1024,
        n_epochs: int = 5,
        gae_lambda: float = 1.0,
        clip_range: Any = 0.2,
        target_kl: float | None = 0.1,
        seed: int | None = None,
        device: str | torch.device = "auto",
        _init_setup_model: bool = True,
        **kwargs: Any,
    ):
        self.dual_step, self.dual_gain = dual_step, dual_gain
        self.integral = self.multiplier = initial_multiplier
        self.identity: dict[str, Any] = {}
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            n_steps=n_steps,
            batch_size=n_steps,
            normalize_advantage=False,
            n_epochs=n_epochs,
            gae_lambda=gae_lambda,
            clip_range=clip_range,
            target_kl=target_kl,
            rollout_buffer_class=StateRolloutBuffer,
            seed=seed if seed is not None else int(np.random.SeedSequence().generate_state(1)[0]),
            device=device if device == "auto" else usable_device(device),
            _init_setup_model=False,
            **kwargs,
        )
        # Stable-Baselines3 would count blocks, and warn. How it normalises advantages has no part in `train`, and would
        # need two blocks.
        self.batch_size = batch_size
        if self.env is not None:
            self.identity = self.env.env_method("identity")[0]
            self.gamma = self.identity["gamma"]
        self.epsilon = float(self.identity.get("epsilon", 0.0) if epsilon is None else epsilon)
        if _init_setup_model:
            self._check_settings()
            self._setup_model()

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: StateRolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """Play whole episodes, estimate advantages, move the multiplier.

        False if a callback wants to stop: then the rollout has not been, and its steps do not count.
        """
        self.policy.set_training_mode(False)
        begin = self.num_timesteps
        self.policy.anneal(max(0.0, 1 - begin / self._total_timesteps))
        rollout_buffer.reset()
        env_seed, noise_seed = np.random.SeedSequence([self.seed, self.num_timesteps]).generate_state(2).tolist()
        env.seed(env_seed)
        self._last_obs = env.reset()
        self._last_episode_starts = np.ones(env.num_envs, dtype=bool)
        noise = torch.Generator().manual_seed(noise_seed)
        rewards_seen, episode_costs = 0.0, []
        callback.on_rollout_start()
        for _ in range(n_rollout_steps):
            observation = obs_as_tensor(self._last_obs, self.device)
            with torch.no_grad():
                logits, rows = self.policy.act(observation, noise)
            state_values = observation["state_probs"][..., None] * rows.values
            actions = logits.cpu().numpy()
            clipped = np.clip(actions, self.action_space.low, self.action_space.high)
            new_obs, rewards, dones, infos = env.step(clipped)
            self.num_timesteps += env.num_envs
            callback.update_locals(locals())
            if not callback.on_step():
                self.num_timesteps = begin
                return False
            rollout_buffer.add_rows(infos, state_values, rows.log_prob)
            values, log_prob = state_values[..., 0].sum(-1), rows.log_prob.sum((-1, -2))
            rollout_buffer.add(self._last_obs, actions, rewards, self._last_episode_starts, values, log_prob)
            self._last_obs, self._last_episode_starts = new_obs, dones
            rewards_seen += float(rewards.sum())
            episode_costs += [info["cost_so_far"] for info, done in zip(infos, dones, strict=True) if done]
        nothing = torch.zeros(env.num_envs, dtype=torch.float32)
        rollout_buffer.compute_returns_and_advantage(last_values=nothing, dones=dones)
        rollout_buffer.compute_state_advantages()
        self._ascend(rewards_seen / len(episode_costs), float(np.mean(episode_costs)))
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _ascend(self, episode_reward: float, episode_cost: float) -> None:
        """The multiplier's step on the mean cost of the rollout's episodes."""
        integral = torch.tensor(self.integral, dtype=torch.float64)
        cost = torch.tensor(episode_cost, dtype=torch.float32)
        moved = dual_ascent(integral, cost, self.epsilon, self.dual_step)
        self.integral = float(moved)
        self.multiplier = float(dual_ascent(moved, cost, self.epsilon, self.dual_gain))
        tokens = self.identity["blocks"] * self.identity["block_length"]
        self.logger.record("rollout/ep_rew_mean", episode_reward)
        self.logger.record("rollout/ep_len_mean", self.identity["blocks"])
        self.logger.record("rollout/ep_cost_mean", episode_cost)
        self.logger.record("rollout/cost_violation", episode_cost - self.epsilon)
        self.logger.record("rollout/rate_bits_per_token", episode_reward / tokens)
        self.logger.record("train/lagrange_multiplier", self.multiplier)

    def train(self) -> None:
        """Update actor and critics on the rollout."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        clip = self.clip_range(self._current_progress_remaining)
        buffer = self.rollout_buffer
        combined = combine(torch.from_numpy(buffer.state_advantages), self.multiplier)
        centre, scale = weighted_moments(combined, torch.from_numpy(buffer.observations["state_probs"]))
        rng = np.random.default_rng([self.seed, self.num_timesteps])
        steps: list[Losses] = []
        for _ in range(self.n_epochs):
            epoch = [self._step(samples, centre, scale, clip) for samples in buffer.minibatches(self.batch_size, rng)]
            steps += epoch
            self._n_updates += 1
            if self.target_kl is not None and np.mean([step.kl_per_row for step in epoch]) > 1.5 * self.target_kl:
                break
        self._record(steps, clip)

    def _step(self, samples: RowSamples, centre: Tensor, scale: Tensor, clip: float) -> "Losses":
        """One gradient step on a minibatch."""
        state_probs = samples.observations["state_probs"]
        rows = self.policy.evaluate_rows(samples.observations, samples.actions)
        combined = combine(samples.advantages, self.multiplier)
        advantages = (per_state(combined, state_probs) - centre) / scale
        weight = state_probs / state_probs.mean()
        surrogate = row_surrogate(rows.log_prob, samples.log_prob, advantages, weight, clip)
        errors = (rows.values - per_state(samples.returns, state_probs[..., None])).square()
        value_loss, cost_value_loss = (weight[..., None] * errors).sum(1).mean(0)
        loss = self.vf_coef * (value_loss + cost_value_loss) - surrogate.objective
        if not torch.isfinite(loss):
            raise FloatingPointError("the loss of PPO-Lagrangian is not finite: lower learning_rate")
        self.policy.optimizer.zero_grad()
        loss.backward()
        # Apart, so that a large error of a critic does not slow the actor down.
        for parameters in (self.policy.actor_parameters(), self.policy.critic_parameters()):
            torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
        self.policy.optimizer.step()
        return Losses(
            -surrogate.objective.item(),
            value_loss.item(),
            cost_value_loss.item(),
            surrogate.kl_per_row,
            surrogate.kl_total,
            surrogate.clip_fraction,
        )

    def _record(self, steps: list["Losses"], clip: float) -> None:
        for name, values in zip(Losses._fields, zip(*steps, strict=True), strict=True):
            self.logger.record(f"train/{name}", float(np.mean(values)))
        buffer = self.rollout_buffer
        for tag, channel in (("train/explained_variance", 0), ("train/cost_explained_variance", 1)):
            values = buffer.state_values[..., channel].sum(-1).flatten()
            returns = values + buffer.state_advantages[..., channel].sum(-1).flatten()
            self.logger.record(tag, explained_variance(values, returns))
        for name, value in self.policy.noise().items():
            self.logger.record(f"train/{name}", value)
        self.logger.record("train/clip_range", clip)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def joint_law(self, env: gym.Env[Any, Any], options: dict[str, Any] | None = None) -> JointLaw:
        """The law of the deterministic policy (the mean logits) on an environment, which is reset and played through.

        Its prompts may be others than those of the training, and their number too.

        Args:
            env: a CovertWatermarkEnv, wrapped or not.
            options: of its reset.

        Raises:
            ValueError: another number of labels, candidates or blocks than in training.
        """
        raw = env.unwrapped
        if not isinstance(raw, CovertWatermarkEnv):
            raise ValueError(f"a CovertWatermarkEnv-v0 is needed, not {raw}")
        check_same(self.identity, raw.identity(), self.policy.bound_to)
        observation, _ = raw.reset(options=options)
        for _ in raw.problem.blocks:
            seen = {name: torch.as_tensor(value, device=self.device)[None] for name, value in observation.items()}
            with torch.no_grad():
                observation, *_ = raw.step(self.policy.play(seen, raw))
        return raw.joint_law()

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Go on with another instance of the same problem.

        Raises:
            ValueError: another problem: its tree, sizes, objective, message bits, epsilon or discount differ.
        """
        wrapped = self._wrap_env(env, self.verbose)
        check_same(self.identity, wrapped.env_method("identity")[0])
        super().set_env(wrapped, force_reset)

    @classmethod
    def load(cls: type[Self], path: Any, env: GymEnv | None = None, **kwargs: Any) -> Self:
        """Read a model that `save` wrote. The file holds pickles, as all of Stable-Baselines3's do: trust its source.

        Raises:
            ValueError: `env` is another problem than the model's.
        """
        if env is not None:
            data, _, _ = load_from_zip_file(path, device="cpu")
            env = cls._wrap_env(env, 0)
            check_same((data or {}).get("identity", {}), env.env_method("identity")[0])
        model: Self = super().load(path, env=env, **kwargs)
        return model

    def _check_settings(self) -> None:
        blocks = self.identity.get("blocks", 1)
        if self.n_steps % blocks:
            raise ValueError(f"n_steps={self.n_steps}: a multiple of the {blocks} blocks of an episode is needed")
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon={self.epsilon}: a limit of 0 or more is needed")


class Losses(NamedTuple):
    """What one gradient step saw, by its tags in TensorBoard; see `PPOLagrangian`."""

    policy_gradient_loss: float
    value_loss: float
    cost_value_loss: float
    kl_per_row: float
    kl_total: float
    clip_fraction: float


class Surrogate(NamedTuple):
    """The clipped objective of a minibatch.

    Attributes:
        objective: to be maximised, a scalar tensor.
        kl_per_row: mean KL divergence from the old policy by row (s, u), nats, states weighted by Z.
        kl_total: of all rows of a state together, nats, mean over the states of the minibatch.
        clip_fraction: share of the rows whose ratio is clipped, states weighted by Z.
    """

    objective: Tensor
    kl_per_row: float
    kl_total: float
    clip_fraction: float


def combine(advantages: Tensor, multiplier: float) -> Tensor:
    """(A_r - beta A_c) / (1 + beta), from (..., 2) to (...)."""
    return (advantages[..., 0] - multiplier * advantages[..., 1]) / (1 + multiplier)


def per_state(totals: Tensor, state_probs: Tensor) -> Tensor:
    """totals / Z(s), 0 where Z is 0."""
    return torch.where(state_probs > 0, totals / state_probs.clamp_min(torch.finfo(totals.dtype).tiny), 0)


def weighted_moments(combined: Tensor, state_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of A(s) / Z(s) with weights Z(s), over all samples and states: two scalars.

    Args:
        combined, state_probs: A(s) and Z(s), shape (batch, N).

    The deviation has 1e-8 added, so that it can be divided by.
    """
    mass = state_probs.sum()
    centre = combined.sum() / mass
    variance = (state_probs * (per_state(combined, state_probs) - centre).square()).sum() / mass
    return centre, variance.sqrt() + 1e-8


def row_surrogate(log_prob: Tensor, old: Tensor, advantages: Tensor, state_probs: Tensor, clip: float) -> Surrogate:
    """The clipped surrogate by row.

    Args:
        log_prob, old: log-densities of rows now and then, shape (batch, N, M), nats.
        advantages, state_probs: a(s) and Z(s), shape (batch, N).
        clip: largest change of a ratio that is rewarded.
    """
    # Beyond e^20 a ratio is clipped anyway, and an infinite one would turn 0 * inf into NaN.
    log_ratio = (log_prob - old).clamp(-20, 20)
    ratio = log_ratio.exp()
    gain = advantages[..., None]
    rows = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    objective = (state_probs[..., None] * rows).sum((1, 2)).mean()
    with torch.no_grad():
        # The estimator of Schulman (2020), never negative: http://joschu.net/blog/kl-approx.html
        kl = ratio - 1 - log_ratio
        weight = state_probs[..., None] / (state_probs.sum() * log_prob.shape[-1])
        return Surrogate(
            objective,
            float((weight * kl).sum()),
            float(kl.sum((1, 2)).mean()),
            float((weight * ((ratio - 1).abs() > clip)).sum()),
        )


def check_same(trained: dict[str, Any], given: dict[str, Any], names: Iterable[str] | None = None) -> None:
    """Check that an environment is the problem that a model knows.

    Args:
        trained, given: what `CovertWatermarkEnv.identity` says of the model's environment and of this one.
        names: the entries to be compared; all of them by default.

    Raises:
        ValueError: names the first difference, with both values, or the first entry that the model does not know.
    """
    for name in given if names is None else names:
        if name not in trained:
            raise ValueError(f"this model does not say its {name}: train it again")
        if trained[name] != given[name]:
            hint = f"make the environment with {name}={trained[name]}"
            if name in ("tree", "states"):
                hint = "joint_law(env) evaluates it on other prompts"
            raise ValueError(
                f"this model was trained with {name}={trained[name]}, the environment has {name}={given[name]}; {hint}"
            )
