"""The training harness of all agents: exact evaluations, the best law, metrics, checkpoints, signals."""

import dataclasses
import math
import time

from torch import Tensor

from agents.common.checkpoints import Best, CheckpointHeader, check_best, checked, like, under
from agents.common.evaluation import Evaluation, law_metrics, progress_line
from agents.common.interrupts import InterruptedRunError, Interrupts
from agents.common.learner import Learner
from agents.common.log import Begun, TrainingLog, flat_values
from agents.common.runs import RunFolder, end_of_resumed, load_checkpoint, save_checkpoint, settings_fingerprint
from agents.common.settings import RunSettings
from agents.common.tracking import open_tracker
from agents.training.result import results, summary_of
from wm_env.common.command import WorkFailedError, say
from wm_env.common.files import write_json
from wm_env.common.foreign.folders import HeldFolder, held_folder
from wm_env.common.progress import ProgressBar
from wm_env.criteria.objectives import Objective
from wm_env.law import save_law
from wm_env.problem import Problem


class TrainingFailedError(WorkFailedError):
    """Training cannot go on: the law is no longer a law."""


def fit(
    folder: RunFolder,
    problem: Problem,
    objective: Objective,
    settings: RunSettings,
    learner: Learner,
    resume: bool,
    track: str | None = None,
) -> Evaluation:
    """Train to the last iteration; save the best law that meets the limit, or the last law if none does.

    `resume` goes on from the checkpoint; `track`, a name in `agents.common.tracking`, gets the numbers too.

    Raises:
        InterruptedRunError: a signal came; the checkpoint and the best law so far were saved first.
        TrainingFailedError: NaN or infinity in the law or in the parameters; or the law, which was saved, is over the
            limit and has less rate and more cost than at the start.
        WorkFailedError: the folder was removed or renamed.
        OSError: a file could not be written.
        ValueError: the checkpoint is damaged or does not fit the problem, or the tracker cannot begin.
    """
    start = time.perf_counter()
    made_with = settings_fingerprint(folder)
    progressed = _restore(folder, learner) if resume else _Progress()
    if resume:
        end = end_of_resumed(folder, learner.iteration, settings.iterations)
        settings = dataclasses.replace(settings, iterations=end)
    total = settings.iterations if learner.iterates else 0
    flat = flat_values(settings.to_json())
    tracker = None if track is None else open_tracker(track, folder.path, learner.iteration, flat)
    with (
        held_folder(folder.path) as held,
        TrainingLog(folder, progressed.begun, _limits(problem, objective), tracker) as log,
        Interrupts() as interrupts,
        ProgressBar(total, "it", learner.iteration, every=math.inf) as shown,
    ):
        harness = _Harness(
            folder, problem, objective, total, learner, log, interrupts, shown, progressed, held, made_with
        )
        try:
            learner.learn(total, harness.pause)
        except FloatingPointError as error:
            raise harness.failure(f"{error} after iteration {learner.iteration}") from None
        reached = learner.iteration
        evaluation = harness.save_best()
        if harness.best is None and _is_worse(evaluation, log):
            raise harness.failure("the law has less rate and more cost than at the start: the training has diverged")
        held.check()
        learner.finish(folder)
        result = results(evaluation, problem, objective)
        seconds = time.perf_counter() - start
        write_json(folder.summary, summary_of(settings, harness.best, reached, result, seconds))
        log.add_laws(reached, evaluation.law)
        log.add_result(
            reached, settings.to_json(), {name: value for name, value in result.items() if value is not None}
        )
        held.check()
        return evaluation


@dataclasses.dataclass(frozen=True)
class _Progress:
    """How far a run has come before this process.

    Attributes:
        best: the best evaluation, None if none met the limit.
        parameters: of the best, by name.
        begun: what the log goes on from, None at the start.
    """

    best: Best | None = None
    parameters: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    begun: Begun | None = None


@dataclasses.dataclass
class _Harness:
    """What happens between two iterations of a learner."""

    folder: RunFolder
    problem: Problem
    objective: Objective
    total: int
    learner: Learner
    log: TrainingLog
    interrupts: Interrupts
    shown: ProgressBar
    progressed: dataclasses.InitVar[_Progress]
    held: HeldFolder
    made_with: str
    since: tuple[float, int] | None = None

    def __post_init__(self, progressed: _Progress) -> None:
        self.best, self.parameters = progressed.best, progressed.parameters

    def pause(self) -> None:
        """Evaluate if it is time, then stop if a signal came.

        Raises:
            InterruptedRunError: a signal came.
            TrainingFailedError: NaN or infinity in the law.
            WorkFailedError: the folder was removed or renamed.
        """
        now = self.learner.iteration
        self.shown.update(now)
        due = now % self.learner.evaluate_every == 0 or now == self.total
        # A resumed run was evaluated where it stopped, if an evaluation was due there.
        if due and now != self.log.last:
            self.held.check()
            self._evaluate()
            self._save_checkpoint()
        if (number := self.interrupts.received) is not None:
            self._save_checkpoint()
            self.save_best()
            raise InterruptedRunError(
                number,
                f"stopped after iteration {now} of {self.total}; "
                f"go on with: python train.py --run {self.folder.path} --resume",
            )

    def save_best(self) -> Evaluation:
        """Give the learner the best parameters, if any evaluation met the limit, and save the law of the learner."""
        if self.best is not None:
            self.learner.load(self.parameters)
        evaluation = self.learner.evaluate()
        self.held.check()
        save_law(evaluation.law, self.folder.law)
        return evaluation

    def failure(self, what: str) -> TrainingFailedError:
        """The error of a training that cannot go on."""
        return TrainingFailedError(f"{what}: start a new run with a lower {self.learner.advice}")

    def _evaluate(self) -> None:
        """An exact evaluation of the present law: a row of metrics, a line of progress, perhaps a new best."""
        learner = self.learner
        speed = self._iterations_per_second()
        evaluation = learner.evaluate()
        if not math.isfinite(evaluation.rate + evaluation.cost):
            raise self.failure(f"the law of iteration {learner.iteration} is not finite")
        if evaluation.feasible and (self.best is None or evaluation.rate > self.best.rate):
            self.best, self.parameters = Best(learner.iteration, evaluation.rate), learner.parameters()
        metrics = {
            **learner.metrics(evaluation),
            **law_metrics(evaluation, self.problem, self.objective),
            "eval/best_feasible_rate": math.nan if self.best is None else self.best.rate,
            "time/iterations_per_second": speed,
        }
        self.log.add(learner.iteration, metrics)
        line = progress_line(metrics, self.problem.epsilon, learner.multiplier)
        if self.shown.is_bar:
            self.shown.update(learner.iteration, note=lambda: line)
        elif self.total:
            say(f"iteration {learner.iteration} of {self.total}: {line}")
        self.since = time.perf_counter(), learner.iteration

    def _iterations_per_second(self) -> float:
        if self.since is None:
            return 0.0
        return (self.learner.iteration - self.since[1]) / (time.perf_counter() - self.since[0])

    def _save_checkpoint(self) -> None:
        self.held.check()
        if tensors := self.learner.state():
            tensors |= {f"best.{name}": value for name, value in self.parameters.items()}
            about = CheckpointHeader(self.made_with, self.log.fingerprint, self.best)
            save_checkpoint(self.folder, tensors, about)


def _is_worse(evaluation: Evaluation, log: TrainingLog) -> bool:
    """Whether a law has less rate and more cost than that of the first evaluation."""
    first = log.first
    return evaluation.rate < first["eval/rate"] and evaluation.cost > first["eval/cost"]


def _limits(problem: Problem, objective: Objective) -> dict[str, float]:
    return {"rate": objective.bound(problem).rate, "cost": problem.epsilon}


def _restore(folder: RunFolder, learner: Learner) -> _Progress:
    """Put a learner where the checkpoint was taken; ValueError if an entry of it is wrong."""
    source = folder.checkpoint
    tensors, about = load_checkpoint(folder)
    of_best = {name: tensors.pop(name) for name in list(tensors) if name.startswith("best.")}
    fresh = learner.parameters()
    learner.restore(tensors, source)
    check_best(about.best, learner.iteration, source)
    of_best = checked(of_best, like(fresh, "best") if about.best is not None else {}, source)
    parameters = {name: value.to(fresh[name].device) for name, value in under("best", of_best).items()}
    return _Progress(about.best, parameters, Begun(learner.iteration, about.metrics))
