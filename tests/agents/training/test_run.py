"""How runs start and go on: what the tree decides, where a resumed run ends, how folders are called."""

import csv
import dataclasses
import json
import os
import shutil

import pytest
import torch

from agents.common.log import TrainingLog
from agents.common.runs import RunFolder, load_checkpoint, locked, read_config, run_name
from agents.common.settings import PolicySettings, RunSettings
from agents.common.table import preset
from agents.ppo_lagrangian.algorithm import PPOLagrangian
from agents.ppo_lagrangian.settings import PPOSettings
from agents.primal_dual.settings import LearnerSettings
from agents.training.loop import TrainingFailedError
from agents.training.policy import load_policy
from agents.training.run import read_settings, resume_run, start_run, train
from wm_env.synthetic import synthetic_tree
from wm_env.tree import save_tree

SMALL = dataclasses.replace(
    preset("smoke")[1],
    prompts=2,
    candidates=4,
    labels=4,
    blocks=1,
    iterations=4,
    constants=LearnerSettings(evaluate_every=2),
)
SMALL_PPO = dataclasses.replace(SMALL, agent="ppo", blocks=2, constants=PPOSettings(copies=2, evaluate_every=2))


@pytest.fixture
def tree(small_tree_file):
    return str(small_tree_file)


@pytest.fixture(scope="module")
def trained(small_tree_file, tmp_path_factory):
    """A finished run of each learner, and what its training found."""
    found = {}
    for name, settings in (("primal-dual", SMALL), ("ppo", SMALL_PPO)):
        path = tmp_path_factory.mktemp(name) / "run"
        run = start_run(path, dataclasses.replace(settings, tree=str(small_tree_file)), ["train.py"])
        found[name] = path, train(run)
    return found


@pytest.fixture
def finished(trained, tmp_path):
    """Copy the finished run of a learner into the folder of a test."""

    def copy(name="primal-dual"):
        shutil.copytree(trained[name][0], tmp_path / "run")
        return RunFolder(tmp_path / "run")

    return copy


def resumed(path, iterations):
    before = read_settings(path)
    return resume_run(path, before, dataclasses.replace(before, iterations=iterations))


@pytest.mark.parametrize("name", ["default", "paper", "coded"])
def test_a_tree_of_any_size_is_taken_whole(tree, tmp_path, name):
    run = start_run(tmp_path / "run", dataclasses.replace(preset(name)[1], tree=tree, labels=8), [])
    assert (len(run.problem.tree.prior), run.problem.tree.meta.candidates) == (6, 5)
    stored = read_config(run.folder)["settings"]
    assert (stored["prompts"], stored["candidates"]) == (6, 5)
    assert read_settings(run.folder.path) == run.settings


def test_a_split_is_taken_whole(tree, tmp_path):
    settings = dataclasses.replace(preset("default")[1], tree=tree, labels=8, split="train")
    # Every fifth of the six prompts is a test prompt.
    assert start_run(tmp_path / "run", settings, []).settings.prompts == 5


def test_lengths_by_state_go_up_to_the_candidates_of_the_tree(tree, tmp_path):
    auto = dataclasses.replace(
        preset("default", "planner")[1], tree=tree, labels=16, objective="coded", message_bits="auto"
    )
    with pytest.raises(ValueError, match="the number of candidates is needed"):
        _ = auto.bits_of_message
    assert start_run(tmp_path / "run", auto, []).settings.bits_of_message == 2  # 5 candidates


def test_names_that_are_not_utf8_are_refused(tree, tmp_path):
    name = os.fsdecode(b"a\xff")
    settings = dataclasses.replace(SMALL, tree=tree)
    with pytest.raises(ValueError, match=r"^--run '.*a\\udcff' is not UTF-8: rename it, or choose another$"):
        start_run(tmp_path / name, settings, [])
    with pytest.raises(ValueError, match=r"--tree 'a.* is not UTF-8"):
        start_run(tmp_path / "run", dataclasses.replace(settings, tree=name), [])
    assert not (tmp_path / "run").exists()
    run = start_run(tmp_path / "run", settings, [name])
    assert read_config(run.folder)["command"] == [r"a\xff"]
    run.folder.path.rename(tmp_path / name)
    with pytest.raises(ValueError, match=r"--run '.* is not UTF-8"):
        resumed(tmp_path / name, 4)


@pytest.mark.parametrize("settings", [SMALL, SMALL_PPO], ids=["primal-dual", "ppo"])
def test_a_learner_that_fails_says_what_to_lower(tree, tmp_path, settings):
    steep = dataclasses.replace(
        settings,
        tree=tree,
        constants=dataclasses.replace(settings.constants, learning_rate=1e30),
    )
    run = start_run(tmp_path / "run", steep, [])
    told = r"not finite.*: start a new run with a lower (learner|ppo)\.learning_rate"
    with pytest.raises(TrainingFailedError, match=told):
        train(run)


def test_a_policy_without_numbers_ends_the_training(tree, tmp_path, monkeypatch):
    update = PPOLagrangian.train

    def spoil(model):
        update(model)
        with torch.no_grad():
            for parameter in model.policy.parameters():
                parameter.fill_(torch.nan)

    monkeypatch.setattr(PPOLagrangian, "train", spoil)
    for iterations in (1, 2):
        run = start_run(
            tmp_path / str(iterations), dataclasses.replace(SMALL_PPO, tree=tree, iterations=iterations), []
        )
        with pytest.raises(TrainingFailedError, match="is not finite after iteration 1: start a new run"):
            train(run)


def test_spreads_go_as_far_as_a_start_is_a_law(tree, tmp_path):
    wide = LearnerSettings(policy=PolicySettings(leading_spread=1e30, label_spread=1e30, embedding=None))
    train(start_run(tmp_path / "most", dataclasses.replace(SMALL, tree=tree, constants=wide), []))
    wider = dataclasses.replace(wide, policy=dataclasses.replace(wide.policy, leading_spread=1e300))
    with pytest.raises(ValueError, match=r"leading_spread=1e\+300: a number of 0 or more and at most 1e\+30 is needed"):
        start_run(tmp_path / "more", dataclasses.replace(SMALL, tree=tree, constants=wider), [])


def test_a_configuration_without_an_end_gets_one(finished):
    folder = finished()
    config = json.loads(folder.config.read_text())
    del config["settings"]["iterations"]
    folder.config.write_text(json.dumps(config))
    train(resumed(folder.path, 6))
    assert read_config(folder)["settings"]["iterations"] == 6


def test_a_run_folder_of_an_earlier_version_goes_on(tree, tmp_path):
    """Settings that came later have their defaults; all others are as they were written."""
    run = start_run(tmp_path / "run", dataclasses.replace(SMALL, tree=tree), [])
    folder = run.folder
    config = json.loads(folder.config.read_text())
    for later in ("schedule", "second_moment"):
        del config["settings"]["learner"][later]
    folder.config.write_text(json.dumps(config))
    train(run)
    train(resumed(folder.path, 6))
    assert int(load_checkpoint(folder)[0]["iteration"]) == 6


def changed(folder, **settings):
    """Write other settings into the configuration of a run."""
    config = json.loads(folder.config.read_text())
    folder.config.write_text(json.dumps(config | {"settings": config["settings"] | settings}))


OTHER_SETTINGS = [
    ("primal-dual", {"seed": 5}),
    ("primal-dual", {"learner": {}}),
    ("primal-dual", {"objective": "coded", "message_bits": 1}),
    ("primal-dual", {"epsilon": 0.2}),
    ("primal-dual", {"agent": "planner"}),
    ("ppo", {"seed": 5}),
    ("ppo", {"ppo": {"copies": 2, "evaluate_every": 2, "dual_step": 0.1}}),
]


@pytest.mark.parametrize(("agent", "settings"), OTHER_SETTINGS)
def test_a_run_goes_on_with_the_settings_it_was_started_with(finished, agent, settings):
    folder = finished(agent)
    changed(folder, **settings)
    before = {file: file.read_bytes() for file in folder.path.iterdir()}
    told = (
        f"{folder.config} was changed: its settings are not those that checkpoint.safetensors was made with: put the "
        "file back as it was, or start a new run"
    )
    with pytest.raises(ValueError, match=f"^{told}$"):
        resumed(folder.path, 6)
    assert {file: file.read_bytes() for file in before} == before


def test_a_tree_of_another_run_is_not_taken_with_its_fingerprint(finished):
    folder = finished()
    other = synthetic_tree(2, 1, 4, 4, 1.5, overlap=0.5, seed=1)
    save_tree(other, folder.tree)
    config = json.loads(folder.config.read_text())
    folder.config.write_text(json.dumps(config | {"tree_fingerprint": other.fingerprint}))
    with pytest.raises(ValueError, match="put the file back as it was, or start a new run"):
        resumed(folder.path, 6)


@pytest.mark.parametrize("agent", ["primal-dual", "ppo"])
def test_another_end_and_another_layout_are_no_other_settings(finished, agent):
    folder = finished(agent)
    changed(folder, iterations=5)
    config = json.loads(folder.config.read_text())
    config["settings"] = dict(reversed(config["settings"].items()))
    folder.config.write_text(json.dumps(config, indent=7))
    train(resumed(folder.path, 6))
    # What goes on writes a checkpoint with the same settings.
    train(resumed(folder.path, 8))
    assert read_config(folder)["settings"]["iterations"] == 8


def test_a_policy_is_not_made_with_other_settings(finished):
    folder = finished("ppo")
    load_policy(folder.path)
    changed(folder, seed=5)
    with pytest.raises(ValueError, match="put the file back as it was, or start a new run"):
        load_policy(folder.path)


@pytest.mark.parametrize("agent", ["primal-dual", "ppo"])
def test_a_finished_run_says_that_it_is_finished(trained, finished, capsys, agent):
    folder = finished(agent)
    files = {path: path.read_bytes() for path in (folder.config, folder.law, folder.metrics)}
    for iterations in (2, 4):
        capsys.readouterr()
        again = train(resumed(folder.path, iterations))
        told = f"{folder.path} is at iteration 4 already: to go on give --iterations above 4"
        assert told in capsys.readouterr().out.splitlines()
        assert again.rate == pytest.approx(trained[agent][1].rate, abs=1e-12)
        assert {path: path.read_bytes() for path in files} == files


@pytest.mark.parametrize("agent", ["primal-dual", "ppo"])
def test_a_new_end_is_recorded(finished, capsys, agent):
    folder = finished(agent)
    before = read_config(folder)
    capsys.readouterr()
    train(resumed(folder.path, 6))
    assert "already" not in capsys.readouterr().out
    after = read_config(folder)
    assert after["settings"] == before["settings"] | {"iterations": 6}
    assert {**after, "settings": None} == {**before, "settings": None}
    with folder.metrics.open(newline="") as file:
        last = int(list(csv.DictReader(file))[-1]["iteration"])
    assert last == 6


@pytest.mark.parametrize("agent", ["primal-dual", "ppo", "planner"])
def test_a_run_that_ended_before_its_first_checkpoint_begins_again(tree, tmp_path, agent):
    base = {"primal-dual": SMALL, "ppo": SMALL_PPO, "planner": preset("smoke", "planner")[1]}[agent]
    settings = dataclasses.replace(base, tree=tree, prompts=2, candidates=4, labels=4, iterations=4)
    whole = start_run(tmp_path / "whole", settings, [])
    train(whole)
    # The process ended here, without a chance to clean up.
    start_run(tmp_path / "run", dataclasses.replace(settings, iterations=3), [])
    again = resumed(tmp_path / "run", 4)
    assert not again.resume
    train(again)
    assert again.folder.law.read_bytes() == whole.folder.law.read_bytes()
    assert read_settings(again.folder.path).iterations == 4


def test_a_finished_run_without_its_checkpoint_is_not_done_again(finished):
    folder = finished()
    folder.checkpoint.unlink()
    with pytest.raises(FileNotFoundError, match=r"checkpoint\.safetensors is missing: put it back, or start a new run"):
        resumed(folder.path, 6)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_run_that_fails_before_its_first_checkpoint_leaves_nothing(tree, tmp_path, monkeypatch, error):
    def fail(*arguments):
        raise error

    run = start_run(tmp_path / "run", dataclasses.replace(SMALL, tree=tree), [])
    monkeypatch.setattr("agents.training.run.fit", fail)
    with pytest.raises(error):
        train(run)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def failing(monkeypatch):
    """The primal-dual learner fails as soon as it has written its first row."""

    def fail(folder, *arguments):
        with TrainingLog(folder) as log:
            log.add(0, {"eval/rate": 0.0})
        raise ValueError("it failed")

    monkeypatch.setattr("agents.training.run.fit", fail)


def test_what_somebody_put_into_a_run_that_fails_stays(tree, tmp_path, failing):
    run = start_run(tmp_path / "run", dataclasses.replace(SMALL, tree=tree), [])
    (run.folder.path / "notes.txt").write_text("mine")
    (run.folder.path / "figures").mkdir()
    with pytest.raises(ValueError, match="it failed"):
        train(run)
    assert sorted(file.name for file in run.folder.path.iterdir()) == ["figures", "notes.txt"]
    assert (run.folder.path / "notes.txt").read_text() == "mine"


def test_a_run_that_was_started_before_is_never_removed(tree, tmp_path, failing):
    run = start_run(tmp_path / "run", dataclasses.replace(SMALL, tree=tree), [])
    before = {file: file.read_bytes() for file in run.folder.path.iterdir()}
    with pytest.raises(ValueError, match="it failed"):
        train(resumed(run.folder.path, 4))
    assert {file: file.read_bytes() for file in before} == before


def test_a_run_that_fails_behind_a_link_can_be_started_again(tree, tmp_path, failing):
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    for _ in range(2):
        run = start_run(tmp_path / "link", dataclasses.replace(SMALL, tree=tree), [])
        with pytest.raises(ValueError, match="it failed"):
            train(run)
        assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("below", ["", "run"])
def test_a_run_in_the_place_of_a_link_to_nothing_is_refused(tree, tmp_path, below):
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    with pytest.raises(FileExistsError, match=f"^{link} is a link to nothing: choose another --run, or remove the li"):
        start_run(link / below, dataclasses.replace(SMALL, tree=tree), [])
    assert link.is_symlink()
    assert not link.exists()


def test_a_run_folder_is_for_one_process(finished):
    folder = finished()
    again = resumed(folder.path, 6)
    with locked(folder), pytest.raises(BlockingIOError, match="run is in use by another process: wait, or choose"):
        train(again)
    train(again)
    assert int(load_checkpoint(folder)[0]["iteration"]) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agent": "foo"}, "agent='foo'"),
        ({"gradient": None}, "gradient is None"),
        ({"epsilon": "abc"}, "epsilon is 'abc', a number is needed"),
        ({"labels": 16.0}, "labels is 16.0, an integer is needed"),
        ({"iterations": "80"}, "iterations is '80', an integer is needed"),
        ({"seed": -1}, "seed=-1"),
        ({"device": 5}, "device is 5"),
        ({"learner": "x"}, "learner is 'x', an object is needed"),
        ({"learner": {"learning_rate": [1]}}, "learner.learning_rate is"),
        ({"learner": {"evaluate_every": 0}}, "evaluate_every=0: a number above 0"),
        ({"learner": {"policy": {"common": 2}}}, r"common=2.0: a number in \[0, 1\]"),
        ({"colour": "red"}, "colour is unknown"),
    ],
)
def test_a_configuration_that_was_spoiled_is_refused(tree, tmp_path, change, message):
    run = start_run(tmp_path / "run", dataclasses.replace(SMALL, tree=tree), [])
    config = json.loads(run.folder.config.read_text())
    config["settings"] |= change
    run.folder.config.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message) as refusal:
        resumed(run.folder.path, 6)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[" * 100_000,
        "null",
        "5",
        "[1]",
        '{"version": "1"}',
        '{"version": 1}',
        '{"version": 1, "settings": []}',
    ],
)
def test_a_configuration_of_another_kind_is_refused(tree, tmp_path, text):
    run = start_run(tmp_path / "run", dataclasses.replace(SMALL, tree=tree), [])
    run.folder.config.write_text(text)
    with pytest.raises(ValueError, match=r"the configuration is damaged: start a new run$"):
        read_settings(run.folder.path)


def test_new_ends_are_checked(finished):
    with pytest.raises(ValueError, match="iterations=-3: a number above 0 is needed"):
        resumed(finished().path, -3)


@pytest.mark.parametrize(
    ("change", "preset", "name"),
    [
        ({"agent": "primal-dual"}, "default", "primal-dual-default"),
        ({"agent": "planner"}, "default", "planner-default"),
        ({"agent": "planner", "objective": "coded"}, "default", "planner-default-coded"),
        (
            {"agent": "planner", "objective": "coded", "message_bits": "auto"},
            "default",
            "planner-default-coded-auto",
        ),
        ({"agent": "primal-dual", "objective": "coded"}, "coded", "primal-dual-coded"),
        ({"agent": "primal-dual", "objective": "coded", "message_bits": 3}, "smoke", "primal-dual-smoke-coded"),
    ],
)
def test_folders_are_called_by_what_was_asked(change, preset, name):
    assert run_name(RunSettings(**change), preset) == name


@pytest.mark.parametrize("name", ["law", "summary", "metrics", "checkpoint"])
def test_a_folder_in_the_place_of_a_file_is_refused_before_the_work(finished, name):
    folder = finished()
    file = getattr(folder, name)
    file.unlink()
    file.mkdir()
    with pytest.raises(IsADirectoryError, match=f"{file.name} is a folder where a file of the run will be: remove it"):
        resumed(folder.path, 6)
