"""Constrained PPO as an agent of train.py: run folder, metrics, checkpoints and signals around `PPOLagrangian`."""

import dataclasses
import math
import sys
import time
from typing import Any

import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import LinearSchedule
from tqdm import tqdm

from agents.common.checkpoints import COUNT, About, Entry, StoredBest, adam, checked, count, like, read_about, under
from agents.common.evaluation import Evaluation, law_metrics, progress, summary
from agents.common.interrupts import InterruptedRunError, Interrupts
from agents.common.log import Begun, TrainingLog
from agents.common.progress import say
from agents.common.runs import RunFolder, end_of_resumed, load_checkpoint, save_checkpoint
from agents.common.settings import RunSettings
from agents.ppo_lagrangian.algorithm import PPOLagrangian
from agents.ppo_lagrangian.callbacks import BestPolicy, LawEvaluation, evaluate_deterministic
from agents.ppo_lagrangian.policy import LawPolicy
from agents.ppo_lagrangian.vec_env import LogitVecEnv
from agents.training.loop import TrainingFailedError
from wm_env.common.command import is_terminal
from wm_env.env import CovertWatermarkEnv
from wm_env.law import save_law
from wm_env.problem import Problem, open_tree, split_prompts
from wm_env.tree import save_tree, subset

MINIBATCH = 16
"""Blocks of a minibatch, if a rollout has as many."""


def train_ppo(folder: RunFolder, problem: Problem, settings: RunSettings, resume: bool) -> Evaluation:
    """Train for `iterations` rollouts and save the best law that meets the limit, or the last law if none does.

    Raises:
        InterruptedRunError: a signal came; checkpoint and law were saved first.
        TrainingFailedError: NaN or infinity in the policy or its loss.
        OSError: a file could not be written.
        ValueError: the checkpoint is damaged or does not fit the problem.
    """
    arguments = env_arguments(folder, problem, settings)
    env = CovertWatermarkEnv(**arguments)
    model = make_model(arguments, settings)
    model.set_logger(Logger(folder=None, output_formats=[]))  # `configure` would make a folder
    best, begun = _restore(folder, model) if resume else (None, None)
    rollout = model.n_steps * model.n_envs
    if resume:
        end = end_of_resumed(folder, model.num_timesteps // rollout, settings.iterations)
        settings = dataclasses.replace(settings, iterations=end)
    total = settings.iterations * rollout
    with (
        TrainingLog(folder, begun) as log,
        Interrupts() as interrupts,
        tqdm(total=total, initial=model.num_timesteps, unit="step", disable=not is_terminal(sys.stderr)) as bar,
    ):
        recorder = _Recorder(env, problem, folder, settings, log, interrupts, bar)
        recorder.best, recorder.rollouts = best, model.num_timesteps // rollout
        recorder.init_callback(model)
        if model.num_timesteps < total:
            # With a log interval that is never reached the recorder finds the rollout's numbers in the logger.
            try:
                model.learn(
                    total - model.num_timesteps, recorder, log_interval=sys.maxsize, reset_num_timesteps=not resume
                )
            except FloatingPointError:
                raise TrainingFailedError(
                    f"the policy or its loss is not finite after step {model.num_timesteps}: "
                    "start a new run with lower --ppo.learning-rate or --ppo.dual-step"
                ) from None
        evaluation = recorder.finish()
        if settings.split == "train":
            _save_held_out(folder, problem, model, settings)
        log.add_laws(model.num_timesteps, evaluation.law)
        log.add_settings(settings.to_json(), law_metrics(evaluation, problem, env.objective))
        return evaluation


def _save_held_out(folder: RunFolder, problem: Problem, model: PPOLagrangian, settings: RunSettings) -> None:
    """The law for the prompts that training did not see, with their tree, in the folder held-out/ of the run."""
    whole = open_tree(settings.tree)
    rows = split_prompts(whole, "test")
    beside = RunFolder(folder.path / "held-out")
    tree = subset(whole, rows, settings.candidates, settings.blocks)
    unseen = Problem(tree, settings.epsilon, settings.gamma, settings.labels)
    save_tree(unseen.tree, beside.tree)
    env = CovertWatermarkEnv(**env_arguments(beside, problem, settings) | {"prompts": len(rows)})
    held_out = evaluate_deterministic(model, env, unseen)
    save_law(held_out.law, beside.law)
    say(f"{beside.law}: {summary(held_out, unseen, env.objective)}")


def env_arguments(folder: RunFolder, problem: Problem, settings: RunSettings) -> dict[str, Any]:
    """Arguments of the environment that a run trains on: the run's own tree."""
    return {
        "tree": str(folder.tree),
        "prompts": len(problem.tree.prior),
        "candidates": problem.tree.meta.candidates,
        "labels": settings.labels,
        "epsilon": settings.epsilon,
        "gamma": settings.gamma,
        "objective": settings.objective,
        "message_bits": settings.coded_bits,
    }


def make_model(arguments: dict[str, Any], settings: RunSettings) -> PPOLagrangian:
    """The learner of the settings before its first rollout."""
    constants = settings.ppo
    env = LogitVecEnv(constants.copies, **arguments)
    blocks = env.env_method("identity")[0]["blocks"]
    return PPOLagrangian(
        LawPolicy,
        env,
        n_steps=blocks,
        batch_size=min(MINIBATCH, blocks * constants.copies),
        learning_rate=LinearSchedule(constants.learning_rate, 0.0, 1.0),
        dual_step=constants.dual_step,
        target_kl=constants.target_kl,
        seed=settings.seed,
        device=settings.device,
    )


class _Recorder(LawEvaluation):
    """Evaluations of a run: a row of metrics, a line of progress, a checkpoint; between rollouts, a wish to stop."""

    def __init__(
        self,
        env: CovertWatermarkEnv,
        problem: Problem,
        folder: RunFolder,
        settings: RunSettings,
        log: TrainingLog,
        interrupts: Interrupts,
        bar: Any,
    ) -> None:
        super().__init__(env, settings.ppo.evaluate_every)
        self.problem, self.folder, self.settings, self.log = problem, folder, settings, log
        self.interrupts, self.bar = interrupts, bar
        self.since: tuple[float, int] | None = None

    def report(self, metrics: dict[str, float]) -> None:
        """Write the numbers of the last rollout and of this evaluation."""
        seen = {
            name: float(value)
            for name, value in self.logger.name_to_value.items()
            if name.startswith(("rollout/", "train/"))
        }
        metrics = {"eval/best_feasible_rate": math.nan, **seen, **metrics, "time/fps": self._steps_per_second()}
        self.log.add(self.num_timesteps, metrics)
        self.bar.update(self.num_timesteps - self.bar.n)
        line = progress(metrics, self.settings.epsilon, self.model.multiplier)
        if self.bar.disable:
            say(f"step {self.num_timesteps} of {self.bar.total}: {line}")
        else:
            self.bar.set_postfix_str(line)
        _save_checkpoint(self.folder, self.model, self.best, self.log)
        self.since = time.perf_counter(), self.num_timesteps

    def finish(self) -> Evaluation:
        """Give the model its best parameters and save their law."""
        self.restore_best()
        evaluation = evaluate_deterministic(self.model, self.env, self.problem)
        save_law(evaluation.law, self.folder.law)
        return evaluation

    def _on_training_start(self) -> None:
        # A resumed run was evaluated where it stopped, if an evaluation was due there.
        self.skip = self.num_timesteps if self.num_timesteps > 0 else None

    def _on_rollout_start(self) -> None:
        self._check_finite()
        if self.num_timesteps == self.skip:
            self.rollouts += 1
        else:
            super()._on_rollout_start()
        if self.interrupts.received is not None:
            _save_checkpoint(self.folder, self.model, self.best, self.log)
            self.finish()
            raise InterruptedRunError(
                self.interrupts.received,
                f"stopped after step {self.num_timesteps} of {self.bar.total}; "
                f"go on with: python train.py --run {self.folder.path} --resume",
            )

    def _on_training_end(self) -> None:
        self._check_finite()
        super()._on_training_end()

    def _check_finite(self) -> None:
        """The loss of a step is checked before the step, so the last one of a rollout may leave anything."""
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.model.policy.parameters()):
            raise FloatingPointError("a parameter of the policy is not finite")

    def _steps_per_second(self) -> float:
        if self.since is None:
            return 0.0
        speed: float = (self.num_timesteps - self.since[1]) / (time.perf_counter() - self.since[0])
        return speed


def _save_checkpoint(folder: RunFolder, model: PPOLagrangian, best: BestPolicy | None, log: TrainingLog) -> None:
    """Everything that the rest of the run depends on; random numbers come from the seed and the step."""
    tensors = {
        "multiplier": torch.tensor(model.multiplier, dtype=torch.float64),
        "num_timesteps": torch.tensor(model.num_timesteps),
        "n_updates": torch.tensor(model._n_updates),
    }
    tensors |= {f"policy.{name}": value for name, value in model.policy.state_dict().items()}
    for number, state in model.policy.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in state.items()}
    stored = None
    if best is not None:
        tensors |= {f"best.{name}": value for name, value in best.parameters.items()}
        stored = StoredBest(best.timesteps, best.rate)
    save_checkpoint(folder, tensors, dataclasses.asdict(About(log.fingerprint, stored)))


def _restore(folder: RunFolder, model: PPOLagrangian) -> tuple[BestPolicy | None, Begun]:
    """Put a model where the checkpoint was taken; returns the best so far and the metrics to go on from.

    Raises:
        ValueError: an entry of the checkpoint is wrong; the model is as it was.
    """
    tensors, meta = load_checkpoint(folder)
    timesteps = count(tensors, "num_timesteps", folder.checkpoint)
    about = read_about(meta, timesteps, folder.checkpoint)
    updates = count(tensors, "n_updates", folder.checkpoint)
    entries = _entries(model, timesteps, updates)
    if about.best is not None:
        entries |= like(model.policy.state_dict(), "best")
    saved = checked(tensors, entries, folder.checkpoint)
    optimizer = model.policy.optimizer.state_dict()
    for name, value in under("optimizer", saved).items():
        place, field = name.split(".")
        optimizer["state"].setdefault(int(place), {})[field] = value
    model.multiplier, model.num_timesteps, model._n_updates = float(saved["multiplier"]), timesteps, updates
    model.policy.load_state_dict(under("policy", saved))
    model.policy.optimizer.load_state_dict(optimizer)
    best = BestPolicy(about.best.at, about.best.rate, under("best", saved)) if about.best is not None else None
    return best, Begun(timesteps, about.metrics)


def _entries(model: PPOLagrangian, timesteps: int, updates: int) -> dict[str, Entry]:
    """What a checkpoint of so many steps holds beside the best policy; before the first there is nothing of Adam.

    A rollout has up to `n_epochs` epochs, and an epoch up to as many steps of Adam as a rollout has blocks.
    """
    blocks = model.n_steps * model.n_envs
    rollouts = timesteps // blocks
    entries = like(model.policy.state_dict(), "policy") | {
        "multiplier": Entry((), torch.float64, lowest=0),
        "num_timesteps": COUNT._replace(lowest=rollouts * blocks, highest=rollouts * blocks),
        "n_updates": COUNT._replace(lowest=rollouts, highest=rollouts * model.n_epochs),
    }
    if timesteps > 0:
        for place, parameter in enumerate(model.policy.parameters()):
            entries |= adam(parameter, f"optimizer.{place}", (updates, updates * blocks))
    return entries
