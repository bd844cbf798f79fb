"""Constrained PPO as the training harness sees it: `PPOLagrangian`, one rollout an iteration."""

import copy
import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import LinearSchedule
from torch import Tensor

from agents.common.checkpoints import COUNT, TensorSpec, adam, checked, count, like, under
from agents.common.evaluation import Evaluation, law_summary
from agents.common.learner import Learner
from agents.common.runs import RunFolder
from agents.common.settings import RunSettings
from agents.ppo_lagrangian.algorithm import PPOLagrangian
from agents.ppo_lagrangian.callbacks import evaluate_deterministic
from agents.ppo_lagrangian.marginal_env import MarginalVecEnv
from agents.ppo_lagrangian.marginal_policy import MarginalPolicy
from agents.ppo_lagrangian.policy import LawPolicy
from agents.ppo_lagrangian.settings import PPOSettings
from agents.ppo_lagrangian.text_env import TextVecEnv
from agents.ppo_lagrangian.vec_env import LogitVecEnv, SharedVecEnv
from wm_env.common.command import say
from wm_env.criteria.costs import TOTAL_VARIATION
from wm_env.criteria.objectives import Objective
from wm_env.env import CovertWatermarkEnv
from wm_env.law import save_law
from wm_env.problem import Problem, open_tree, split_prompts
from wm_env.texts.contexts import TreeContexts
from wm_env.texts.env import TextTask
from wm_env.tree import save_tree, subset


class PPOLearner(Learner):
    """Constrained PPO on a problem; an iteration is a rollout of whole episodes and its epochs.

    Attributes:
        model: policy, critics, optimiser and multiplier.
        env: where the deterministic policy is evaluated.
    """

    generalises = True
    advice = "ppo.learning_rate or ppo.dual_step"

    def __init__(self, problem: Problem, objective: Objective, settings: RunSettings) -> None:
        self.settings, self.objective = settings, objective
        arguments: dict[str, Any] = {"problem": problem, "objective": objective}
        self.env = CovertWatermarkEnv(**arguments)
        self.model = make_model(arguments, settings)
        self.model.set_logger(Logger(folder=None, output_formats=[]))  # `configure` would make a folder
        self.evaluate_every = _constants(settings).evaluate_every
        self.rollout = self.model.n_steps * self.model.n_envs
        self.since: tuple[float, int] | None = None

    @property
    def iteration(self) -> int:  # type: ignore[override]
        """Rollouts so far."""
        return int(self.model.num_timesteps // self.rollout)

    @property
    def multiplier(self) -> float:  # type: ignore[override]
        """beta, bits per unit of cost."""
        return self.model.multiplier

    def learn(self, iterations: int, pause: Callable[[], None]) -> None:
        """Rollouts and epochs, as Stable-Baselines3 has them."""
        left = (iterations - self.iteration) * self.rollout
        if left <= 0:
            pause()
            return
        # With a log interval that is never reached `metrics` finds the rollout's numbers in the logger.
        new = self.model.num_timesteps == 0
        self.model.learn(left, _Pauses(pause), log_interval=sys.maxsize, reset_num_timesteps=new)

    def evaluate(self) -> Evaluation:
        """The law of the deterministic policy."""
        return evaluate_deterministic(self.model, self.env)

    def metrics(self, evaluation: Evaluation) -> dict[str, float]:
        """What `PPOLagrangian` recorded of the last rollout, and environment steps."""
        seen = self.model.logger.name_to_value
        recorded = {name: float(value) for name, value in seen.items() if name.startswith(("rollout/", "train/"))}
        steps, speed = self.model.num_timesteps, 0.0
        if self.since is not None:
            speed = (steps - self.since[1]) / (time.perf_counter() - self.since[0])
        self.since = time.perf_counter(), steps
        return recorded | {"time/total_timesteps": float(steps), "time/fps": speed}

    def act(self, observation: dict[str, Any], env: CovertWatermarkEnv) -> NDArray[np.float32]:
        """The laws of the mean logits, any number of states."""
        seen = {name: torch.as_tensor(value, device=self.model.device)[None] for name, value in observation.items()}
        with torch.no_grad():
            return self.model.policy.play(seen, env)

    def parameters(self) -> dict[str, Tensor]:
        """A copy of all networks."""
        return copy.deepcopy(dict(self.model.policy.state_dict()))

    def load(self, parameters: dict[str, Tensor]) -> None:
        """Put the networks back."""
        self.model.policy.load_state_dict(parameters)

    def state(self) -> dict[str, Tensor]:
        """Everything that the rest of the run depends on; random numbers come from the seed and the step."""
        model = self.model
        tensors = {
            "multiplier": torch.tensor(model.multiplier, dtype=torch.float64),
            "integral": torch.tensor(model.integral, dtype=torch.float64),
            "num_timesteps": torch.tensor(model.num_timesteps),
            "n_updates": torch.tensor(model._n_updates),
        }
        tensors |= {f"policy.{name}": value for name, value in model.policy.state_dict().items()}
        for number, state in model.policy.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": value for name, value in state.items()}
        return tensors

    def restore(self, tensors: dict[str, Tensor], source: object) -> None:
        """Take over what `state` returned, all or nothing."""
        model = self.model
        timesteps, updates = (count(tensors, name, source) for name in ("num_timesteps", "n_updates"))
        saved = checked(tensors, _entries(model, timesteps, updates), source)
        optimizer = model.policy.optimizer.state_dict()
        for name, value in under("optimizer", saved).items():
            place, field = name.split(".")
            optimizer["state"].setdefault(int(place), {})[field] = value
        model.multiplier, model.integral = float(saved["multiplier"]), float(saved["integral"])
        model.num_timesteps, model._n_updates = timesteps, updates
        model.policy.load_state_dict(under("policy", saved))
        model.policy.optimizer.load_state_dict(optimizer)

    def finish(self, folder: RunFolder) -> None:
        """The law for the prompts that training did not see, with their tree, in the folder held-out/ of the run."""
        settings = self.settings
        if settings.split != "train":
            return
        whole = open_tree(settings.tree)
        tree = subset(whole, split_prompts(whole, "test"), settings.candidates, settings.blocks)
        unseen = dataclasses.replace(self.env.problem, tree=tree)
        beside = RunFolder(folder.path / "held-out")
        save_tree(unseen.tree, beside.tree)
        held_out = evaluate_deterministic(self.model, CovertWatermarkEnv(problem=unseen, objective=self.objective))
        save_law(held_out.law, beside.law)
        say(f"{beside.law}: {law_summary(held_out, unseen, self.objective)}")


def make_model(arguments: dict[str, Any], settings: RunSettings) -> PPOLagrangian:
    """The learner of the settings before its first rollout, on environments with these arguments.

    It acts with marginals and fixed labels where these lose nothing: for the paper's objective, with a label for every
    candidate of a state. Elsewhere it learns what the labels mean.

    Raises:
        ValueError: texts are to be played, and the problem has another objective or cost, edits, or too few labels.
    """
    constants = _constants(settings)
    objective = arguments.get("objective")
    is_paper = objective is None or type(objective) is Objective
    marginals = is_paper and settings.labels >= CovertWatermarkEnv(**arguments).candidates
    env: SharedVecEnv
    if constants.plays == "texts":
        env = _texts(arguments["problem"], settings.labels, constants.copies, marginals)
    else:
        env = (MarginalVecEnv if marginals else LogitVecEnv)(constants.copies, **arguments)
    return PPOLagrangian(
        MarginalPolicy if marginals else LawPolicy,
        env,
        n_steps=env.env_method("identity")[0]["blocks"],
        n_epochs=constants.epochs,
        learning_rate=LinearSchedule(constants.learning_rate, 0.0, 1.0),
        dual_step=constants.dual_step,
        dual_gain=constants.dual_gain,
        target_kl=constants.target_kl,
        seed=settings.seed,
        device=settings.device,
    )


def _texts(problem: Problem, labels: int, copies: int, marginals: bool) -> TextVecEnv:
    if not marginals or problem.cost.name != TOTAL_VARIATION.name or problem.channel is not None:
        raise ValueError(
            "ppo.plays=texts: the gp objective, cost=tv, no channel and a label for every candidate are needed"
        )
    contexts = TreeContexts(problem.tree)
    task = TextTask(contexts, labels, len(problem.blocks), problem.epsilon, problem.gamma)
    return TextVecEnv(copies, task=task)


class _Pauses(BaseCallback):
    """Calls the harness before every rollout and after the last one."""

    def __init__(self, pause: Callable[[], None]) -> None:
        super().__init__()
        self.pause = pause

    def _on_rollout_start(self) -> None:
        self._pause()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._pause()

    def _pause(self) -> None:
        """Check what the last step left, since the loss is checked before a step only, and call the harness."""
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.model.policy.parameters()):
            raise FloatingPointError("the policy is not finite")
        self.pause()


def _constants(settings: RunSettings) -> PPOSettings:
    assert isinstance(settings.constants, PPOSettings)
    return settings.constants


def _entries(model: PPOLagrangian, timesteps: int, updates: int) -> dict[str, TensorSpec]:
    """What a checkpoint of so many steps holds; before the first there is nothing of Adam.

    A rollout has up to `n_epochs` epochs, and an epoch up to as many steps of Adam as a rollout has states.
    """
    blocks = model.n_steps * model.n_envs
    rollouts = timesteps // blocks
    entries = like(model.policy.state_dict(), "policy") | {
        "multiplier": TensorSpec((), torch.float64, lowest=0),
        "integral": TensorSpec((), torch.float64, lowest=0),
        "num_timesteps": COUNT._replace(lowest=rollouts * blocks, highest=rollouts * blocks),
        "n_updates": COUNT._replace(lowest=rollouts, highest=rollouts * model.n_epochs),
    }
    if timesteps > 0:
        for place, parameter in enumerate(model.policy.parameters()):
            entries |= adam(parameter, f"optimizer.{place}", (updates, updates * blocks * model.identity["states"]))
    return entries
