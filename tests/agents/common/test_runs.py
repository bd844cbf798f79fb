import json

import pytest
import torch

from agents.common.checkpoints import Best, CheckpointHeader
from agents.common.runs import (
    create_run,
    last_folder,
    load_checkpoint,
    next_folder,
    read_config,
    save_checkpoint,
    settings_fingerprint,
)
from agents.common.table import preset, run_settings_from_json
from wm_env.tree import load_tree


def make(path, tree):
    return create_run(path, tree, preset("smoke")[1].to_json(), ["train.py", "--preset", "smoke"])


def test_new_run_holds_tree_and_configuration(tmp_path, small_tree):
    run = make(tmp_path / "runs" / "one", small_tree)
    assert load_tree(run.tree).fingerprint == small_tree.fingerprint
    config = read_config(run)
    assert config["tree_fingerprint"] == small_tree.fingerprint
    assert config["command"] == ["train.py", "--preset", "smoke"]
    assert {"python", "torch", "numpy"} <= config["versions"].keys()
    assert run_settings_from_json(config["settings"]) == preset("smoke")[1]


def test_existing_run_is_left_alone(tmp_path, small_tree):
    run = make(tmp_path / "one", small_tree)
    before = run.config.read_bytes()
    with pytest.raises(FileExistsError, match="exists already: choose another --run, or continue"):
        make(tmp_path / "one", small_tree)
    assert run.config.read_bytes() == before


def test_empty_folder_is_fine_a_file_is_not(tmp_path, small_tree):
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty", small_tree)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        make(tmp_path / "file", small_tree)


def test_missing_run_and_damaged_configuration(tmp_path, small_tree):
    run = make(tmp_path / "one", small_tree)
    text = run.config.read_text()
    run.config.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match="damaged"):
        read_config(run)
    run.config.write_text(json.dumps({**json.loads(text), "more": 1, "version": 99}))
    with pytest.raises(ValueError, match="version 99"):
        read_config(run)
    run.config.unlink()
    with pytest.raises(FileNotFoundError, match="holds no run"):
        read_config(run)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("more", 1, "more is unknown"),
        ("version", True, "version is True, an integer is needed"),
        ("settings", [], r"settings is \[\], an object is needed"),
        ("tree_fingerprint", None, "tree_fingerprint is None, text is needed"),
        ("model", 5, "model is 5, text is needed"),
        ("model_fingerprint", "\ud800", "model_fingerprint is "),
        ("versions", "2.13", "versions is '2.13', an object is needed"),
        ("versions", {"torch": float("nan")}, "is not JSON: NaN is no number"),
        ("command", "train.py", "command is 'train.py', a list is needed"),
        ("command", ["train.py", 1], r"command\[1\] is 1, text is needed"),
    ],
)
def test_a_configuration_that_lacks_an_entry_or_has_another_is_refused(tmp_path, small_tree, name, value, says):
    run = make(tmp_path / "one", small_tree)
    config = json.loads(run.config.read_text())
    run.config.write_text(json.dumps(config | {name: value}))
    with pytest.raises(ValueError, match=f"config.json.*{says}.*; the configuration is damaged: start a new run"):
        read_config(run)
    for missing in config:
        run.config.write_text(json.dumps({entry: config[entry] for entry in config if entry != missing}))
        with pytest.raises(ValueError, match=f"config.json: {missing} is missing; the configuration is damaged"):
            read_config(run)


def test_checkpoint_round_trip_and_damage(tmp_path, small_tree):
    run = make(tmp_path / "one", small_tree)
    with pytest.raises(FileNotFoundError, match="no such covert-watermark checkpoint"):
        load_checkpoint(run)
    tensors = {"a": torch.randn(3, 2, dtype=torch.float32), "b": torch.tensor([7])}
    about = CheckpointHeader(settings_fingerprint(run), "of the rows", Best(3, 1.5))
    save_checkpoint(run, tensors, about)
    loaded, header = load_checkpoint(run)
    assert header == about
    for name, value in tensors.items():
        assert torch.equal(loaded[name], value)
        assert loaded[name].dtype == value.dtype
    run.checkpoint.write_bytes(run.checkpoint.read_bytes()[:-5])
    with pytest.raises(ValueError, match="damaged or cut short"):
        load_checkpoint(run)


def test_folders_without_a_name_are_numbered(tmp_path):
    name = tmp_path / "planner-default"
    assert (last_folder(name), next_folder(name)) == (name, name)
    for number in range(1, 12):
        folder = next_folder(name)
        assert folder.name == ("planner-default" if number == 1 else f"planner-default-{number}")
        folder.mkdir()
        assert last_folder(name) == folder
