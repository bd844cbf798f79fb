"""What TensorBoard shows of a run, read from its event files by TensorBoard's own reader."""

import dataclasses
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agents.common.table import preset
from agents.ppo_lagrangian.settings import PPOSettings
from agents.train import main
from agents.training.run import start_run, train
from wm_env.common import events as event_files
from wm_env.tree import save_tree

TAGS = {
    "rollout/ep_rew_mean",
    "rollout/ep_cost_mean",
    "rollout/cost_violation",
    "rollout/rate_bits_per_token",
    "train/lagrange_multiplier",
    "train/cost_value_loss",
    "train/kl_total",
    "train/kl_per_row",
    "law/i_ux",
    "law/i_us",
    "law/i_ux_given_s",
    "law/cover_entropy",
    "law/percent_of_optimum",
    "eval/rate",
    "eval/cost",
    "eval/feasible",
    "eval/best_feasible_rate",
    "time/fps",
}


@pytest.fixture
def run(small_tree, tmp_path):
    save_tree(small_tree, tmp_path / "tree.safetensors")
    settings = dataclasses.replace(
        preset("ppo")[1],
        tree=str(tmp_path / "tree.safetensors"),
        prompts=2,
        candidates=4,
        labels=4,
        iterations=4,
        constants=PPOSettings(copies=2, evaluate_every=2),
    )
    started = start_run(tmp_path / "run", settings, ["train.py"])
    train(started)
    return started.folder


def test_tags_and_values_of_a_run(run):
    events = EventAccumulator(str(run.path))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= TAGS
    points = events.Scalars("eval/rate")
    rows = [line.split(",") for line in run.metrics.read_text().splitlines()]
    column = rows[0].index("eval/rate")
    assert [(point.step, pytest.approx(point.value, abs=1e-6)) for point in points] == [
        (int(row[0]), float(row[column])) for row in rows[1:]
    ]
    # Evaluated before the first rollout, after the second and after the fourth.
    assert [point.step for point in points] == [0, 2, 4]
    # A rollout has two copies of two blocks.
    assert [point.value for point in events.Scalars("time/total_timesteps")] == [0, 8, 16]


def test_a_disk_that_fills_up_leaves_the_saved_run(run, monkeypatch, capsys):
    """The events of a run that goes on cannot be written: one line that names their file, and the run can go on."""
    full = run.path / "events.out.tfevents.9999999999.full"
    full.symlink_to("/dev/full")
    monkeypatch.setattr(event_files, "next_event_file", lambda folder: full)
    command = ["train.py", "--run", str(run.path), "--resume", "--iterations", "6"]
    monkeypatch.setattr(sys, "argv", command)
    before = run.checkpoint.read_bytes(), run.law.read_bytes(), run.metrics.read_bytes()
    capsys.readouterr()
    assert main() == 1
    out, error = capsys.readouterr()
    assert (out, error) == ("", f"error: {full}: No space left on device: make room, or name another place\n")
    assert (run.checkpoint.read_bytes(), run.law.read_bytes(), run.metrics.read_bytes()) == before
    monkeypatch.undo()
    full.unlink()
    monkeypatch.setattr(sys, "argv", command)
    assert main() == 0
    read = EventAccumulator(str(run.path))
    read.Reload()
    assert [point.step for point in read.Scalars("eval/rate")] == [0, 2, 4, 6]
