"""Exact evaluation while constrained PPO trains: what the deterministic policy is worth, and which one was best."""

import copy
from typing import Any

import gymnasium as gym
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HParam
from torch import Tensor

from agents.common.checkpoints import Best
from agents.common.evaluation import Evaluation, evaluate_law, law_metrics
from agents.ppo_lagrangian.algorithm import PPOLagrangian
from wm_env.env import CovertWatermarkEnv


def evaluate_deterministic(model: PPOLagrangian, env: CovertWatermarkEnv) -> Evaluation:
    """The law of the deterministic policy on `env`, which is reset, with what it is worth."""
    laws = [(block.p_label, block.p_candidate) for block in model.joint_law(env).blocks]
    return evaluate_law(env.problem, env.objective, lambda number, _: laws[number])


class LawEvaluation(BaseCallback):
    """Evaluate the law of the deterministic policy: before the first rollout, every `every` rollouts, and at the end.

    No sampling is needed: the environment is exact and so are rate and cost. Logs the tags eval/* and law/*, and
    the hyper-parameters for TensorBoard's HParams page.

    Args:
        env: where to evaluate, a CovertWatermarkEnv, wrapped or not; never the training environment itself. Its epsilon
            decides what is feasible.
        every: rollouts between two evaluations.

    Attributes:
        latest: the last evaluation.
        best: the best evaluation that met the limit, None if none has.
        parameters: of its policy, by name.
    """

    model: PPOLagrangian

    def __init__(self, env: gym.Env[Any, Any], every: int = 25, verbose: int = 0):
        super().__init__(verbose)
        raw = env.unwrapped
        if not isinstance(raw, CovertWatermarkEnv):
            raise TypeError(f"a CovertWatermarkEnv-v0 is needed, not {raw}")
        self.env, self.every = raw, every
        self.rollouts = 0
        self.latest: Evaluation | None = None
        self.best: Best | None = None
        self.parameters: dict[str, Tensor] = {}

    def restore_best(self) -> None:
        """Give the model the parameters of the best policy, if any evaluation met the limit."""
        if self.best is not None:
            self.model.policy.load_state_dict(self.parameters)

    def _on_training_start(self) -> None:
        model = self.model
        names = (
            "learning_rate",
            "n_steps",
            "batch_size",
            "n_epochs",
            "gae_lambda",
            "target_kl",
            "dual_step",
            "epsilon",
        )
        settings = {name: value for name in names if isinstance(value := getattr(model, name), int | float)}
        exclude = ("stdout", "log", "json", "csv")
        self.logger.record(
            "hparams",
            HParam(settings, {"eval/best_feasible_rate": 0.0, "eval/rate": 0.0, "eval/cost": 0.0}),
            exclude=exclude,
        )

    def _on_rollout_start(self) -> None:
        if self.rollouts % self.every == 0:
            self.evaluate()
        self.rollouts += 1

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.evaluate()

    def evaluate(self) -> None:
        """Measure, remember the best and report."""
        self.latest = found = evaluate_deterministic(self.model, self.env)
        if found.feasible and (self.best is None or found.rate > self.best.rate):
            self.best = Best(self.rollouts, found.rate)
            self.parameters = copy.deepcopy(dict(self.model.policy.state_dict()))
        metrics = law_metrics(found, self.env.problem, self.env.objective)
        if self.best is not None:
            metrics["eval/best_feasible_rate"] = self.best.rate
        for name, value in metrics.items():
            self.logger.record(name, value)
        self.logger.dump(self.num_timesteps)
