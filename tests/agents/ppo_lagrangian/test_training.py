import csv
import dataclasses

import pytest
import torch

from agents.common.interrupts import InterruptedRunError
from agents.common.runs import RunFolder
from agents.common.table import preset
from agents.ppo_lagrangian.settings import PPOSettings
from agents.training.loop import _Harness
from agents.training.run import read_settings, resume_run, start_run, train
from wm_env.information import measure
from wm_env.law import load_law
from wm_env.tree import load_tree

TIMES = ("time/fps", "time/iterations_per_second")


@pytest.fixture
def settings(small_tree_file):
    return dataclasses.replace(
        preset("ppo")[1],
        tree=str(small_tree_file),
        prompts=2,
        candidates=4,
        labels=4,
        iterations=5,
        constants=PPOSettings(copies=2, evaluate_every=2),
    )


def laws(folder):
    return load_law(folder.law, load_tree(folder.tree)).blocks


def timeless_rows(run):
    with run.folder.metrics.open(newline="") as file:
        return [{name: value for name, value in row.items() if name not in TIMES} for row in csv.DictReader(file)]


def test_the_law_of_a_run_is_the_best_that_meets_the_limit(settings, tmp_path):
    run = start_run(tmp_path / "run", settings, [])
    evaluation = train(run)
    found = [measure(block) for block in laws(run.folder)]
    assert sum(float(measured.rate) for measured in found) == pytest.approx(evaluation.rate, abs=1e-9)
    rows = [line.split(",") for line in run.folder.metrics.read_text().splitlines()]
    rate, feasible = (rows[0].index(name) for name in ("eval/rate", "eval/feasible"))
    best = max(float(row[rate]) for row in rows[1:] if float(row[feasible]) == 1.0)
    assert evaluation.rate == pytest.approx(best, abs=1e-6)
    assert [int(row[0]) for row in rows[1:]] == [0, 2, 4, 5]


def test_one_block_and_one_copy_are_enough_to_train_on(settings, tmp_path):
    """A rollout of a single block, which Stable-Baselines3's own PPO refuses."""
    constants = PPOSettings(copies=1, evaluate_every=1)
    settings = dataclasses.replace(settings, blocks=1, iterations=1, constants=constants)
    run = start_run(tmp_path / "run", settings, [])
    assert train(run).rate > 0
    assert len(laws(run.folder)) == 1


@pytest.mark.parametrize("plays", ["laws", "texts"])
def test_a_resumed_run_ends_like_a_whole_one(plays, settings, tmp_path, monkeypatch):
    settings = dataclasses.replace(settings, constants=dataclasses.replace(settings.constants, plays=plays))
    whole = start_run(tmp_path / "whole", settings, [])
    train(whole)
    cut = start_run(tmp_path / "cut", settings, [])
    before = _Harness.pause

    def interrupt(harness):
        if harness.learner.iteration == 3:
            harness.interrupts.received = 15
        before(harness)

    monkeypatch.setattr(_Harness, "pause", interrupt)
    with pytest.raises(InterruptedRunError, match=r"stopped after iteration 3 of 5; go on with: python train\.py"):
        train(cut)
    assert laws(cut.folder)
    monkeypatch.setattr(_Harness, "pause", before)
    train(resume_run(tmp_path / "cut", read_settings(tmp_path / "cut"), settings))
    for one, other in zip(laws(whole.folder), laws(cut.folder), strict=True):
        assert torch.equal(one.p_label, other.p_label)
        assert torch.equal(one.p_candidate, other.p_candidate)
    assert timeless_rows(whole) == timeless_rows(cut)


def test_held_out_prompts_get_a_law_of_their_own(settings, tmp_path):
    run = start_run(tmp_path / "run", dataclasses.replace(settings, split="train", iterations=1), [])
    train(run)
    beside = RunFolder(run.folder.path / "held-out")
    # Every fifth of the six prompts is a test prompt.
    assert load_tree(beside.tree).prompts == ("prompt 4",)
    assert "prompt 4" not in load_tree(run.folder.tree).prompts
    assert len(laws(beside)[0].p_label) == 1


def test_checkpoint_of_another_run(settings, tmp_path):
    settings = dataclasses.replace(settings, iterations=1)
    run = start_run(tmp_path / "run", settings, [])
    train(run)
    other = start_run(tmp_path / "other", dataclasses.replace(settings, labels=8), [])
    train(other)
    other.folder.checkpoint.write_bytes(run.folder.checkpoint.read_bytes())
    with pytest.raises(ValueError, match=r"its settings are not those that checkpoint\.safetensors was made with"):
        resume_run(other.folder.path, other.settings, dataclasses.replace(other.settings, iterations=2))
