"""Runs in Weights & Biases and MLflow, without a network: what was sent is what metrics.csv has."""

import csv
import json
import os
import re
import struct
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from agents.common import tracking
from agents.train import main
from wm_env.common.foreign.imports import is_installed

SMALL = ["--preset", "smoke", "--candidates", "4", "--labels", "4", "--prompts", "2", "--iterations", "20"]


@pytest.fixture
def train(small_tree_file, tmp_path, monkeypatch):
    """train.py in an empty folder, with trackers that write files there; its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")

    def train(*arguments):
        command = ["train.py", "--tree", str(small_tree_file), *arguments]
        monkeypatch.setattr("sys.argv", command)
        return main()

    return train


def rows(run):
    with (run / "metrics.csv").open(newline="") as file:
        return {
            int(row.pop("iteration")): {name: float(text) for name, text in row.items()} for row in csv.DictReader(file)
        }


def by_mlflow(label):
    """Numbers by iteration and name, the settings, and how the run ended."""
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name(tracking.PROJECT).experiment_id
    (run,) = [each for each in client.search_runs([experiment]) if each.info.run_name == label]
    found = {}
    for name in run.data.metrics:
        for point in client.get_metric_history(run.info.run_id, name):
            found.setdefault(point.step, {})[name] = point.value
    return found, run.data.params, run.info.status == "FINISHED"


def by_wandb(label):
    """The same, from the files of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in Path("wandb").glob("offline-run-*/run-*.wandb"):
        found, config, name, code = {}, {}, None, None
        for data in records(path.read_bytes()):
            record = Record.FromString(data)
            match record.WhichOneof("record_type"):
                case "run":
                    name = record.run.display_name
                    config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                case "history":
                    items = {
                        (item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item
                    }
                    found.setdefault(record.history.step.num, {}).update(items)
                case "exit":
                    code = record.exit.exit_code
        if name == label:
            settings = {key.replace("/", "."): str(value) for key, value in config.items()}
            return found, settings, code == 0
    raise AssertionError(label)


def records(data):
    """What a file in LevelDB's log format holds: blocks of 32 KiB with parts of checksum, length, kind and data."""
    position, parts = 7, []
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += -position % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        parts.append(data[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # the only part, or the last
            yield b"".join(parts)
            parts = []


@pytest.mark.parametrize(("name", "read"), [("mlflow", by_mlflow), ("wandb", by_wandb)])
def test_what_is_sent_is_what_the_metrics_have(name, read, train, tmp_path, capsys):
    if not is_installed(name):
        pytest.skip(f"no {name}: pip install {name}")
    assert train(*SMALL, "--run", "first", "--track", name) == 0
    assert "wandb" not in capsys.readouterr().err
    found, settings, whole = read("first")
    written = rows(tmp_path / "first")
    assert whole
    assert set(found) == set(written) == {0, 10, 20}
    for iteration, values in written.items():
        for tag, value in values.items():
            assert found[iteration][tag] == pytest.approx(value, nan_ok=True)
        assert found[iteration]["limit/cost"] == 0.1
    assert found[20]["result/rate"] == json.loads((tmp_path / "first" / "summary.json").read_text())["rate"]
    assert settings["epsilon"] == "0.1"
    assert settings["learner.policy.common"] == "0.9"
    # A run that is resumed is another one, and has only what came later.
    assert train("--run", "first", "--resume", "--iterations", "40", "--track", name) == 0
    assert set(read("first-from-20")[0]) == {30, 40}


@pytest.mark.parametrize("name", tracking.TRACKERS)
def test_a_missing_library_is_one_line_and_no_run(name, train, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tracking, "is_installed", lambda name: False)
    assert train(*SMALL, "--run", "first", "--track", name) == 2
    assert capsys.readouterr().err == f"error: track={name}: the library is not there: pip install {name}\n"
    assert not (tmp_path / "first").exists()


@pytest.mark.parametrize("name", tracking.TRACKERS)
def test_a_folder_of_the_library_s_name_is_no_library(name, tmp_path, monkeypatch):
    (tmp_path / name / "offline-run").mkdir(parents=True)
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ValueError, match=f"^track={name}: the library is not there: pip install {name}$"):
        tracking.check_tracker(name)


class LibraryError(Exception):
    """What a library raises that has no one class for its errors."""


def fail(*arguments, **named):
    raise LibraryError("the process\nhas ended.")


def library(name, **contents):
    """A module as it is once it has been imported."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, origin="somewhere")
    vars(module).update(contents)
    return module


@pytest.fixture
def broken_libraries(monkeypatch):
    """Libraries that begin a run and can neither send its numbers nor end it."""
    client = SimpleNamespace(
        get_experiment_by_name=lambda name: SimpleNamespace(experiment_id="1"),
        create_run=lambda experiment, run_name: SimpleNamespace(info=SimpleNamespace(run_id="2")),
        log_batch=lambda run, metrics=(), params=(): metrics and fail(),
        set_terminated=fail,
    )
    wandb = library("wandb", Settings=dict, init=lambda **named: SimpleNamespace(log=fail, finish=fail))
    mlflow = library("mlflow", MlflowClient=lambda: client)
    entities = library("mlflow.entities", Metric=lambda *values: values, Param=lambda *values: values)
    for module in (wandb, mlflow, entities):
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("name", tracking.TRACKERS)
def test_what_cannot_be_sent_is_failed_work_of_one_line(name, broken_libraries, train, tmp_path, capsys):
    tracker = tracking.open_tracker(name, tmp_path, 0, {"epsilon": 0.1})
    for send in (lambda: tracker.add(0, {"eval/rate": 1.0}), lambda: tracker.close(whole=True)):
        with pytest.raises(OSError, match=f"^track={name}: the process has ended$"):
            send()
    assert train(*SMALL, "--run", "first", "--track", name) == 1
    assert capsys.readouterr().err == f"error: track={name}: the process has ended\n"


@pytest.mark.parametrize(("name", "place"), [("wandb", "init"), ("mlflow", "MlflowClient")])
def test_a_library_that_cannot_begin_is_one_line_and_no_run(
    name, place, broken_libraries, train, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys.modules[name], place, fail)
    assert train(*SMALL, "--run", "first", "--track", name) == 2
    assert capsys.readouterr().err.startswith(f"error: track={name}: the process has ended")
    assert not (tmp_path / "first").exists()


def test_weights_and_biases_without_a_key_is_one_line_and_no_run(small_tree_file, tmp_path):
    if not is_installed("wandb"):
        pytest.skip("no wandb: pip install wandb")
    # In a process of its own, since the library keeps the mode of a process's first run.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-m", "agents.train", *SMALL, "--tree", small_tree_file, "--run", "first", "--track", "wandb"],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        env={**environment, "HOME": str(tmp_path)},
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(r"error: track=wandb: No API key configured.*\(or WANDB_MODE=offline\)", line)
    assert not (tmp_path / "first").exists()
