"""The run folder: everything about one training run, in files that are written whole or not at all."""

import itertools
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.common.checkpoints import CheckpointHeader, read_about
from agents.common.settings import RunSettings
from wm_env.common.command import say
from wm_env.common.files import fingerprint, locked_folder, read_json, write_atomically, write_json
from wm_env.common.foreign.folders import held_folder
from wm_env.common.json_values import entry, read_as
from wm_env.common.tensors import FileFormat, read_tensors, write_tensors
from wm_env.runs import RunFolder as RunFolder
from wm_env.tree import StateTree, save_tree

CONFIG_VERSION = 1
CHECKPOINT_FORMAT = FileFormat(
    kind="covert-watermark checkpoint", version=3, earlier={1: "a version before 0.2", 2: "version 0.3 or before"}
)


@dataclass(frozen=True)
class _Config:
    """What config.json holds; `agents.common.settings` checks the settings."""

    version: int
    settings: dict[str, Any]
    tree_fingerprint: str
    model: str
    model_fingerprint: str
    versions: dict[str, Any]
    command: tuple[str, ...]


def create_run(path: Path, tree: StateTree, settings: Mapping[str, Any], command: Sequence[str]) -> RunFolder:
    """Make a new run folder with its tree and its configuration.

    Raises:
        FileExistsError: the folder is there already and not empty.
        OSError: it cannot be written; nothing is left behind.
    """
    run = RunFolder(path)
    config = _Config(
        version=CONFIG_VERSION,
        settings=dict(settings),
        tree_fingerprint=tree.fingerprint,
        model=tree.meta.model,
        model_fingerprint=tree.meta.model_fingerprint,
        versions=versions(),
        # As file names are: what is not UTF-8 is spelt out.
        command=tuple(os.fsencode(word).decode("utf-8", "backslashreplace") for word in command),
    )
    taken = FileExistsError(f"{path} exists already: choose another --run, or continue that run with --resume")
    if path.exists() and not path.is_dir():
        raise taken
    path.mkdir(parents=True, exist_ok=True)
    with locked(run):
        if any(path.iterdir()):
            raise taken
        with discarded_on_failure(run):
            save_tree(tree, run.tree)
            write_json(run.config, asdict(config))
    return run


def check_names(**names: str) -> None:
    """Check that names of files, by option, can be written into a configuration and printed.

    Raises:
        ValueError: one is not UTF-8; a command line holds it all the same.
    """
    for option, name in names.items():
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"--{option} {name!a} is not UTF-8: rename it, or choose another") from None


@contextmanager
def locked(run: RunFolder) -> Iterator[None]:
    """Within the context the folder is this process's alone.

    Raises:
        BlockingIOError: it is another's.
        OSError: it cannot be opened.
    """
    with locked_folder(run.path, "wait, or choose another --run"):
        yield


@contextmanager
def discarded_on_failure(run: RunFolder) -> Iterator[None]:
    """Remove a new run if the context ends with an error or Ctrl-C while it has neither checkpoint nor law.

    What is left could be neither started again under its name nor be of use to anybody. Only files of the run go, and
    the folder if nothing else is in it: what somebody put there since stays.
    """
    with held_folder(run.path) as held:
        try:
            yield
        except BaseException:
            # Another run may have its name by now.
            if held.is_there and not run.checkpoint.exists() and not run.law.exists():
                _remove(run)
            raise


def _remove(run: RunFolder) -> None:
    for file in (run.config, run.tree, run.metrics, *run.path.glob("events.out.tfevents.*")):
        if file.is_file():
            file.unlink(missing_ok=True)
    # It cannot go if it is a link, or if something else is in it.
    with suppress(OSError):
        run.path.rmdir()


def read_config(run: RunFolder) -> dict[str, Any]:
    """The configuration of an existing run.

    Raises:
        FileNotFoundError: there is no run in that folder.
        ValueError: the configuration is damaged or of another version.
    """
    if not run.config.is_file():
        raise FileNotFoundError(f"{run.path} holds no run (no {run.config.name}): start one without --resume")
    try:
        config = read_json(run.config)
        if (version := entry(config, "version", int, run.config)) == CONFIG_VERSION:
            read_as(_Config, config, run.config)
            return config
    except ValueError as error:
        raise ValueError(f"{error}; the configuration is damaged: start a new run") from None
    raise ValueError(f"{run.config} has version {version}, this program reads {CONFIG_VERSION}: start a new run")


def settings_fingerprint(run: RunFolder) -> str:
    """SHA-256 (64 hex digits) of what the configuration says of settings and tree, without the number of iterations.

    It is of the file as it was written: settings that come with a later version of the program do not change it.

    Raises:
        OSError, ValueError: as `read_config`.
    """
    config = read_config(run)
    fixed = {name: value for name, value in config["settings"].items() if name != "iterations"}
    return fingerprint({}, {"settings": fixed, "tree_fingerprint": config["tree_fingerprint"]})


def save_checkpoint(run: RunFolder, tensors: Mapping[str, Tensor], about: CheckpointHeader) -> None:
    """Write named tensors and the header, in place of the checkpoint before.

    Raises:
        OSError: the folder cannot be written.
    """
    arrays = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
    write_atomically(run.checkpoint, lambda path: write_tensors(path, CHECKPOINT_FORMAT, arrays, asdict(about)))


def load_checkpoint(run: RunFolder) -> tuple[dict[str, Tensor], CheckpointHeader]:
    """The checkpoint of a run, made with the settings of its configuration; iterations may be others.

    Another program may have written the tensors: `agents.common.checkpoints` checks them.

    Raises:
        FileNotFoundError: the run has no checkpoint.
        ValueError: the checkpoint is damaged, of another version or made with other settings, or the configuration is
            damaged or of another version.
    """
    arrays, meta = read_tensors(run.checkpoint, CHECKPOINT_FORMAT)
    about = read_about(meta, run.checkpoint)
    if about.settings != settings_fingerprint(run):
        raise ValueError(
            f"{run.config} was changed: its settings are not those that {run.checkpoint.name} was made with: put the "
            "file back as it was, or start a new run"
        )
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}, about


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    packages = ("covert-watermark", "torch", "numpy", "scipy")
    found = {"python": platform.python_version(), "threads": str(torch.get_num_threads())}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def end_of_resumed(run: RunFolder, reached: int, iterations: int) -> int:
    """The iteration at which a resumed run ends: `iterations`, or `reached` if it is there already, which is said.

    The configuration is brought up to date.

    Raises:
        OSError: it cannot be written.
        ValueError: it is damaged.
    """
    if reached >= iterations:
        say(f"{run.path} is at iteration {reached} already: to go on give --iterations above {reached}")
    end = max(reached, iterations)
    config = read_config(run)
    if config["settings"].get("iterations") != end:
        write_json(run.config, {**config, "settings": {**config["settings"], "iterations": end}})
    return end


def run_name(settings: RunSettings, preset: str) -> str:
    """The name of a run folder where none is given: agent, preset, and what else the law depends on most."""
    name = f"{settings.agent}-{preset}"
    if settings.objective not in (RunSettings().objective, preset):
        name += f"-{settings.objective}"
    if settings.cost != RunSettings().cost:
        name += f"-{settings.cost}"
    return f"{name}-auto" if settings.message_bits == "auto" else name


def next_folder(name: Path) -> Path:
    """The first of `name`, `name`-2, `name`-3 .. that does not exist."""
    return next(folder for folder in _numbered(name) if not folder.exists())


def last_folder(name: Path) -> Path:
    """The last of `name`, `name`-2, `name`-3 .. before the first that does not exist; `name` if none exists."""
    return [name, *itertools.takewhile(Path.exists, _numbered(name))][-1]


def _numbered(name: Path) -> Iterator[Path]:
    return itertools.chain([name], (name.with_name(f"{name.name}-{number}") for number in itertools.count(2)))
