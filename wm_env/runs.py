"""The folder of a training run: where its files are, and the law that it ended with.

`agents.common.runs` writes these folders, `polar.evaluation` reads them.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wm_env.common.command import WorkFailedError
from wm_env.common.files import read_json
from wm_env.common.json_values import read_as
from wm_env.criteria.costs import TOTAL_VARIATION
from wm_env.law import JointLaw, load_law
from wm_env.tree import StateTree, load_tree


@dataclass(frozen=True)
class _Inside:
    """What is called so in a run folder; its path for a `RunFolder` that is asked for it."""

    name: str

    def __get__(self, run: "RunFolder", owner: type["RunFolder"]) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Where the files of a run are.

    Attributes:
        path: the folder.
    """

    path: Path

    config = _Inside("config.json")
    """All settings, the seed, versions, fingerprints and the command."""
    tree = _Inside("tree.safetensors")
    """The tree that the law belongs to, cut to the run's prompts and candidates."""
    law = _Inside("law.safetensors")
    """The law that the agent found."""
    metrics = _Inside("metrics.csv")
    """One row per evaluation, the columns named like TensorBoard's tags."""
    summary = _Inside("summary.json")
    """The result in a few numbers, for programs."""
    checkpoint = _Inside("checkpoint.safetensors")
    """All that `--resume` needs."""
    evaluation = _Inside("evaluation")
    """The folder of the results of evaluate.py, if no other is named."""
    transmissions = _Inside("transmissions.jsonl")
    """The texts of an evaluation with the language model."""


@dataclass(frozen=True)
class RunTask:
    """The settings of a run that say what its law was made for; the defaults count where config.json is silent.

    Attributes:
        epsilon: budget of the cost, sum_b gamma^b c_b; None: no budget is known.
        gamma: discount.
        cost: name of the cost in `wm_env.criteria.costs`.
        message_bits: l of the coded objective; "auto": the length follows the state; None: the gp objective.
        dither_bits: d, bits of a block's key beyond the pad, with "auto".
        budget: what epsilon bounds, the sum over blocks or the total variation of whole texts.
    """

    epsilon: float | None = None
    gamma: float = 1.0
    cost: str = TOTAL_VARIATION.name
    message_bits: int | Literal["auto"] | None = None
    dither_bits: int = 0
    budget: Literal["blocks", "text"] = "blocks"

    @property
    def lengths_follow_state(self) -> bool:
        """Whether the law was planned for messages whose length follows the state."""
        return self.message_bits == "auto"


@dataclass(frozen=True)
class FinishedRun:
    """What a run ended with: the law on its tree, and what it was made for."""

    folder: RunFolder
    task: RunTask
    tree: StateTree
    law: JointLaw


def newest_run(folder: Path) -> Path:
    """The run under `folder` whose law was written last.

    Raises:
        FileNotFoundError: there is none.
    """
    runs = (RunFolder(path) for path in folder.glob("*"))
    laws = [(run.law.stat().st_mtime_ns, run.path) for run in runs if run.law.exists()]
    if not laws:
        raise FileNotFoundError(f"no run with a law under {folder}/: train one with train.py, or name a run folder")
    return max(laws)[1]


def read_task(folder: RunFolder) -> RunTask:
    """What the law of a run was made for, as its config.json says; the defaults if there is no such file.

    Raises:
        OSError: the configuration cannot be read.
        ValueError: it is damaged.
    """
    if not folder.config.is_file():
        return RunTask()
    settings = read_as(dict[str, Any], read_json(folder.config).get("settings", {}), folder.config, "settings")
    known = {field.name: settings[field.name] for field in dataclasses.fields(RunTask) if field.name in settings}
    return read_as(RunTask, known, folder.config, "settings")


def check_there(run: FinishedRun) -> None:
    """Check that a run is still in its folder. For use before writing: a removed folder would come back empty.

    Raises:
        WorkFailedError: it was removed or renamed.
    """
    if not run.folder.law.exists():
        raise WorkFailedError(f"{run.folder.path} was removed or renamed since it was read: name the run folder again")


def load_run(path: Path) -> FinishedRun:
    """The task, the tree and the law of the run in a folder.

    Raises:
        FileNotFoundError: no such run, or no tree or law in it.
        ValueError: a damaged file, or a law of another tree.
    """
    folder = RunFolder(path)
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such run folder")
    if not folder.tree.exists():
        raise FileNotFoundError(f"{path} holds no run (no {folder.tree.name}): give the folder that train.py named")
    tree = load_tree(folder.tree)
    return FinishedRun(folder, read_task(folder), tree, load_law(folder.law, tree))
