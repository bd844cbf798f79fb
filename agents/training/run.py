"""Training runs: from settings to a run folder with a law."""

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from agents.common.evaluation import Evaluation
from agents.common.runs import (
    RunFolder,
    check_names,
    create_run,
    discarded_on_failure,
    end_of_resumed,
    load_checkpoint,
    locked,
    read_config,
)
from agents.common.settings import AgentSettings, RunSettings
from agents.common.table import AGENTS, agent_of, run_settings_from_json
from agents.training.loop import fit
from wm_env.common.files import check_writable
from wm_env.common.foreign.devices import usable_device
from wm_env.common.foreign.torch_settings import usual_torch, with_gradients
from wm_env.common.threads import torch_threads
from wm_env.criteria.costs import cost_of
from wm_env.criteria.objectives import Objective, make_objective
from wm_env.problem import Problem, open_tree, split_prompts
from wm_env.tree import StateTree, load_tree, subset


@dataclass(frozen=True)
class Run:
    """A run that is ready to start or to go on: what can be wrong with its input has been checked.

    Attributes:
        folder: where its files are.
        settings: what it was told.
        problem: the tree cut to size, with budget and discount.
        objective: what a block law is measured by.
        resume: go on from the checkpoint.
        new: this process made the folder, so it may remove it.
    """

    folder: RunFolder
    settings: RunSettings
    problem: Problem
    objective: Objective
    resume: bool
    new: bool


@usual_torch()
def start_run(path: Path, settings: RunSettings, command: Sequence[str]) -> Run:
    """Check the settings and make the run folder; what the settings leave to the tree is recorded as a number.

    Raises:
        OSError: the folder exists already or cannot be written, or there is no such tree file.
        ValueError: settings that are out of range or do not fit the tree.
    """
    settings = _with_constants(settings)
    settings.check()
    check_names(run=str(path), tree=settings.tree)
    check_writable(path, "choose another --run")
    usable_device(settings.device)
    whole = open_tree(settings.tree)
    rows = split_prompts(whole, settings.split)
    prompts = len(rows) if settings.prompts is None else settings.prompts
    candidates = whole.meta.candidates if settings.candidates is None else settings.candidates
    if not 1 <= prompts <= len(rows):
        raise ValueError(f"prompts={prompts}: split {settings.split!r} of this tree has 1 to {len(rows)}")
    settings = dataclasses.replace(settings, prompts=prompts, candidates=candidates)
    tree = subset(whole, rows[:prompts], candidates, settings.blocks)
    problem = _problem(tree, settings)
    _check_discount(settings, problem)
    objective = objective_of(settings, problem)
    folder = create_run(path, problem.tree, settings.to_json(), command)
    return Run(folder, settings, problem, objective, resume=False, new=True)


def _problem(tree: StateTree, settings: RunSettings) -> Problem:
    """The problem of a run on its tree."""
    return Problem(
        tree,
        settings.epsilon,
        settings.gamma,
        settings.labels,
        cost_of(settings.cost),
        None if settings.channel == "none" else settings.channel,
        settings.noise,
        settings.budget,
    )


def read_settings(path: Path) -> RunSettings:
    """The settings that the run in a folder was started with.

    Raises:
        FileNotFoundError: there is no run.
        ValueError: its configuration is damaged.
    """
    folder = RunFolder(path)
    return run_settings_from_json(read_config(folder)["settings"], folder.config)


@usual_torch()
def resume_run(path: Path, started_with: RunSettings, settings: RunSettings) -> Run:
    """Open a run that was started before, to go on with it; only the number of iterations may have changed.

    A run that ended before its first checkpoint begins again.

    Raises:
        OSError: the folder cannot be written.
        ValueError: other settings than the run was started with, here or in its configuration, a damaged tree, or a run
            with nothing to resume.
    """
    for field in dataclasses.fields(RunSettings):
        before, now = getattr(started_with, field.name), getattr(settings, field.name)
        if before != now and field.name != "iterations":
            raise ValueError(f"{path} was started with {field.name}={before}, not {now}: leave it out to go on")
    folder = RunFolder(path)
    if folder.checkpoint.is_file():
        load_checkpoint(folder)
    if AGENTS[settings.agent].exact and folder.law.exists():
        raise ValueError(f"{path} was made by the {settings.agent}, which has nothing to resume: start a new run")
    settings.check()
    check_names(run=str(path), tree=settings.tree)
    check_writable(path, "choose another --run")
    usable_device(settings.device)
    problem = problem_of(folder, settings, read_config(folder)["tree_fingerprint"])
    _check_discount(settings, problem)
    for file in (folder.law, folder.checkpoint, folder.summary, folder.metrics):
        if file.is_dir():
            raise IsADirectoryError(f"{file} is a folder where a file of the run will be: remove it")
    begun = folder.checkpoint.exists()
    if not begun and folder.law.exists():
        raise FileNotFoundError(f"{folder.checkpoint} is missing: put it back, or start a new run")
    return Run(folder, settings, problem, objective_of(settings, problem), resume=begun, new=False)


def problem_of(folder: RunFolder, settings: RunSettings, fingerprint: str) -> Problem:
    """The problem of a run that was started before, on the tree in its folder.

    Raises:
        ValueError: the tree is damaged, or is not the one with the fingerprint.
    """
    tree = load_tree(folder.tree)
    if tree.fingerprint != fingerprint:
        raise ValueError(f"{folder.tree} is not the tree that this run was started with: put that one back")
    return _problem(tree, settings)


@usual_torch()
@with_gradients()
def train(run: Run, track: str | None = None) -> Evaluation:
    """Find a law with the agent of the settings and write it to the run folder; `track` as in `agents.common.tracking`.

    A new run that fails before it has a checkpoint or a law is removed.

    Raises:
        agents.common.interrupts.InterruptedRunError: a signal came; the state was saved first.
        agents.training.loop.TrainingFailedError: the learner diverged.
        OSError: a file could not be written, or another process trains in this folder.
        ValueError: the checkpoint is damaged, the planner needs more labels, or the tracker cannot begin.
    """
    with locked(run.folder), discarded_on_failure(run.folder) if run.new else nullcontext():
        if not run.resume:
            end_of_resumed(run.folder, 0, run.settings.iterations)
        with torch_threads(run.settings.threads):
            learner = agent_of(run.settings.agent).learner(run.problem, run.objective, run.settings)
            return fit(run.folder, run.problem, run.objective, run.settings, learner, run.resume, track)


def _with_constants(settings: RunSettings) -> RunSettings:
    """The settings with the usual constants of their agent, if they have none."""
    usual = agent_of(settings.agent).constants
    if type(settings.constants) is AgentSettings:
        return dataclasses.replace(settings, constants=usual)
    if type(settings.constants) is not type(usual):
        raise ValueError(f"constants={settings.constants}: {type(usual).__name__} are needed for {settings.agent}")
    return settings


def objective_of(settings: RunSettings, problem: Problem) -> Objective:
    """The objective of a run."""
    return make_objective(settings.objective, problem.tree.block_length, settings.labels, settings.bits_of_message)


def _check_discount(settings: RunSettings, problem: Problem) -> None:
    blocks = len(problem.blocks)
    if not AGENTS[settings.agent].exact and settings.gamma**blocks < torch.finfo(torch.float32).tiny:
        raise ValueError(
            f"gamma={settings.gamma}: gamma^{blocks} is 0 in float32, in which learners compute: take a larger one, or "
            "--agent planner"
        )
