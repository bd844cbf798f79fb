"""Runs in Weights & Biases and MLflow, without a network: what was sent is what metrics.csv has."""

import csv
import json
import os
import re
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from agents.common import tracking
from agents.train import main

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
    if find_spec(name) is None:
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
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    assert train(*SMALL, "--run", "first", "--track", name) == 2
    assert capsys.readouterr().err == f"error: track={name}: the library is not there: pip install {name}\n"
    assert not (tmp_path / "first").exists()


def test_weights_and_biases_without_a_key_is_one_line_and_no_run(small_tree_file, tmp_path):
    if find_spec("wandb") is None:
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
