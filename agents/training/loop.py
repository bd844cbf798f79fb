"""The training loop of the primal-dual learner: steps, exact evaluations, the best iterate, checkpoints, signals."""

import copy
import dataclasses
import math
import sys
import time
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor
from tqdm import tqdm

from agents.common.checkpoints import About, StoredBest, checked, count, like, read_about, under
from agents.common.evaluation import Evaluation, evaluate_policy, law_metrics, progress
from agents.common.interrupts import InterruptedRunError, Interrupts
from agents.common.log import Begun, TrainingLog
from agents.common.policies import SoftmaxPolicy
from agents.common.progress import say
from agents.common.runs import RunFolder, end_of_resumed, load_checkpoint, save_checkpoint
from agents.common.settings import RunSettings
from agents.primal_dual.algorithm import AutogradLagrangian, Gradient, PrimalDual, initial_policy
from agents.primal_dual.closed_form import ClosedFormLagrangian
from wm_env.common.command import is_terminal
from wm_env.law import save_law
from wm_env.problem import Objective, Problem


class TrainingFailedError(RuntimeError):
    """Training cannot go on: the law is no longer a law."""


@dataclass(frozen=True)
class Best:
    """The parameters of the evaluation with the highest rate of all that meet the cost limit.

    The subgradient of the total variation makes the iterates swing around the limit with the size of a step, so about
    every second one costs slightly too much; the best that does not is what a run is for.

    Attributes:
        iteration: when it was evaluated.
        rate: its sum_b gamma^b r_b, in bits.
        parameters: its policy, by parameter name.
    """

    iteration: int
    rate: float
    parameters: dict[str, Tensor]


def train_primal_dual(
    folder: RunFolder, problem: Problem, objective: Objective, settings: RunSettings, resume: bool
) -> Evaluation:
    """Run Algorithm 1 to its last iteration and save the best law that meets the limit, or the last law if none does.

    Raises:
        InterruptedRunError: a signal came; the checkpoint and the best law so far were saved first.
        TrainingFailedError: NaN or infinity in the law.
        OSError: a file could not be written.
        ValueError: the checkpoint is damaged or does not fit the problem.
    """
    learner = make_learner(problem, objective, settings)
    best, begun = _restore(folder, learner) if resume else (None, None)
    if resume:
        settings = dataclasses.replace(
            settings, iterations=end_of_resumed(folder, learner.iteration, settings.iterations)
        )
    total, every = settings.iterations, settings.learner.evaluate_every
    with (
        TrainingLog(folder, begun) as log,
        Interrupts() as interrupts,
        tqdm(total=total, initial=learner.iteration, unit="it", disable=not is_terminal(sys.stderr)) as bar,
    ):
        look = _Look(problem, objective, log, bar)
        if not resume:
            best = look(learner, best)
        while learner.iteration < total:
            learner.step()
            bar.update()
            if learner.iteration % every == 0 or learner.iteration == total:
                best = look(learner, best)
                _save_checkpoint(folder, learner, best, log)
            if interrupts.received is not None:
                _save_checkpoint(folder, learner, best, log)
                save_law(evaluate_policy(problem, objective, _chosen(learner, best)).law, folder.law)
                raise InterruptedRunError(
                    interrupts.received,
                    f"stopped after iteration {learner.iteration} of {total}; "
                    f"go on with: python train.py --run {folder.path} --resume",
                )
        evaluation = evaluate_policy(problem, objective, _chosen(learner, best))
        save_law(evaluation.law, folder.law)
        log.add_laws(total, evaluation.law)
        log.add_settings(settings.to_json(), law_metrics(evaluation, problem, objective))
        return evaluation


def make_learner(problem: Problem, objective: Objective, settings: RunSettings) -> PrimalDual:
    """The learner of the settings before its first step, in float32."""
    policy = initial_policy(problem, settings.labels, settings.learner.policy, settings.seed).to(settings.device)
    gradient: Gradient
    if settings.gradient == "autograd":
        gradient = AutogradLagrangian(problem, objective, torch.float32, settings.device)
    else:
        gradient = ClosedFormLagrangian(problem, objective, settings.labels, torch.float32, settings.device)
    return PrimalDual(policy, gradient, settings.epsilon, settings.learner, settings.iterations)


class _Look:
    """An exact evaluation of the present policy: a row of metrics, a line of progress, perhaps a new best."""

    def __init__(self, problem: Problem, objective: Objective, log: TrainingLog, bar: "tqdm[NoReturn]") -> None:
        self.problem, self.objective, self.log, self.bar = problem, objective, log, bar
        self.since: tuple[float, int] | None = None

    def __call__(self, learner: PrimalDual, best: Best | None) -> Best | None:
        """The best of `best` and the present policy.

        Raises:
            TrainingFailedError: NaN or infinity in the law.
        """
        speed = self._iterations_per_second(learner.iteration)
        seen = learner.gradient(learner.policy, learner.multiplier)
        evaluation = evaluate_policy(self.problem, self.objective, learner.policy)
        if not math.isfinite(evaluation.rate + evaluation.cost):
            raise TrainingFailedError(
                f"the law of iteration {learner.iteration} is not finite: start a new run with lower "
                "--learner.learning-rate, --learner.dual-step or --learner.first-multiplier"
            )
        if evaluation.feasible and (best is None or evaluation.rate > best.rate):
            parameters = {name: value.detach().clone() for name, value in learner.policy.named_parameters()}
            best = Best(learner.iteration, evaluation.rate, parameters)
        tokens = len(evaluation.measures) * self.problem.tree.block_length
        metrics = {
            "rollout/ep_rew_mean": float(seen.rate),
            "rollout/ep_cost_mean": float(seen.cost),
            "rollout/cost_violation": float(seen.cost) - self.problem.epsilon,
            "rollout/rate_bits_per_token": sum(float(measured.rate) for measured in evaluation.measures) / tokens,
            "train/lagrange_multiplier": float(learner.multiplier),
            "train/gradient_norm": float(learner.gradient_norm()),
            **law_metrics(evaluation, self.problem, self.objective),
            "eval/best_feasible_rate": best.rate if best is not None else math.nan,
            "time/iterations_per_second": speed,
        }
        self.log.add(learner.iteration, metrics)
        self._report(learner.iteration, metrics)
        self.since = time.perf_counter(), learner.iteration
        return best

    def _iterations_per_second(self, iteration: int) -> float:
        if self.since is None:
            return 0.0
        return (iteration - self.since[1]) / (time.perf_counter() - self.since[0])

    def _report(self, iteration: int, metrics: dict[str, float]) -> None:
        numbers = progress(metrics, self.problem.epsilon, metrics["train/lagrange_multiplier"])
        if self.bar.disable:
            say(f"iteration {iteration} of {self.bar.total}: {numbers}")
        else:
            self.bar.set_postfix_str(numbers)


def _chosen(learner: PrimalDual, best: Best | None) -> SoftmaxPolicy:
    """A copy of the policy with the best parameters; with the present ones if no evaluation met the limit."""
    policy = copy.deepcopy(learner.policy)
    if best is not None:
        policy.load_state_dict(best.parameters)
    return policy


def _save_checkpoint(folder: RunFolder, learner: PrimalDual, best: Best | None, log: TrainingLog) -> None:
    tensors = learner.state()
    stored = None
    if best is not None:
        tensors |= {f"best.{name}": value for name, value in best.parameters.items()}
        stored = StoredBest(best.iteration, best.rate)
    save_checkpoint(folder, tensors, dataclasses.asdict(About(log.fingerprint, stored)))


def _restore(folder: RunFolder, learner: PrimalDual) -> tuple[Best | None, Begun]:
    """Put a learner where the checkpoint was taken; returns the best so far and the metrics to go on from.

    Raises:
        ValueError: an entry of the checkpoint is wrong; the learner is as it was.
    """
    tensors, meta = load_checkpoint(folder)
    about = read_about(meta, count(tensors, "iteration", folder.checkpoint), folder.checkpoint)
    of_best = {name: tensors.pop(name) for name in list(tensors) if name.startswith("best.")}
    parameters = dict(learner.policy.named_parameters())
    of_best = checked(of_best, like(parameters, "best") if about.best is not None else {}, folder.checkpoint)
    learner.restore(tensors, folder.checkpoint)
    best = None
    if about.best is not None:
        device = learner.multiplier.device
        moved = {name: value.to(device) for name, value in under("best", of_best).items()}
        best = Best(about.best.at, about.best.rate, moved)
    return best, Begun(learner.iteration, about.metrics)
