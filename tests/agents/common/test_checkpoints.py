"""Any wrong entry of a checkpoint is refused in one line, whoever wrote it, and nothing of it is restored."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch

from agents.common.checkpoints import Best, TensorSpec, adam, check_best, checked
from agents.common.runs import CHECKPOINT_FORMAT, RunFolder
from agents.common.settings import RunSettings
from agents.common.table import preset
from agents.ppo_lagrangian.settings import PPOSettings
from agents.primal_dual.settings import LearnerSettings
from agents.training.run import read_settings, resume_run, start_run, train
from wm_env.common.tensors import read_tensors, write_tensors

SIZES = {"prompts": 2, "candidates": 4, "labels": 4, "iterations": 4, "epsilon": 2.0}
PRIMAL_DUAL = RunSettings(**SIZES, constants=LearnerSettings(evaluate_every=2))
AGENTS = {
    "primal-dual": PRIMAL_DUAL,
    "by row": dataclasses.replace(
        PRIMAL_DUAL, constants=dataclasses.replace(preset("coded")[1].constants, evaluate_every=2)
    ),
    "ppo": RunSettings(agent="ppo", **SIZES, constants=PPOSettings(copies=2, evaluate_every=2)),
}


COUNTS = (".step", "iteration", "num_timesteps", "n_updates")


@pytest.fixture(scope="module")
def runs(small_tree_file, tmp_path_factory):
    """A finished run of every agent."""
    folders = {}
    for name, settings in AGENTS.items():
        folders[name] = tmp_path_factory.mktemp("runs") / "run"
        train(start_run(folders[name], dataclasses.replace(settings, tree=str(small_tree_file)), []))
    return folders


def resume(path):
    before = read_settings(path)
    return train(resume_run(path, before, dataclasses.replace(before, iterations=6)))


def refusal(finished, path, spoil):
    """What going on with a spoiled copy of a finished run says; its other files are as they were."""
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(finished, path)
    file = RunFolder(path).checkpoint
    arrays, meta = read_tensors(file, CHECKPOINT_FORMAT)
    write_tensors(file, CHECKPOINT_FORMAT, *spoil(arrays, meta))
    before = {one: one.read_bytes() for one in path.iterdir()}
    with pytest.raises(ValueError, match=r": start a new run$") as refused:
        resume(path)
    message = str(refused.value)
    assert message.startswith(f"{file}: ") or message.startswith(f"{file} is ")
    assert "\n" not in message
    assert {one: one.read_bytes() for one in path.iterdir()} == before
    return message.removeprefix(f"{file}: ")


def spoiled_arrays(name, array):
    """Everything that can be wrong with one tensor, by what is wrong."""
    flat = array.reshape(-1)
    yield "missing", None
    yield "empty", flat[:0]
    yield "one less", flat[:-1]
    yield "one more", np.append(flat, flat[:1])
    yield "an axis more", array[None]
    yield "other float", array.astype(np.float64 if array.dtype == np.float32 else np.float32)
    yield "small integers", array.astype(np.int8)
    if array.dtype.kind == "f":
        yield "nan", array * np.nan
        yield "inf", array + np.inf
    if name.endswith(("exp_avg_sq", "multiplier", *COUNTS)):
        yield "negative", -array - 5
    if name.endswith(COUNTS):
        yield "huge", array * 0 + 10**9


@pytest.mark.parametrize("agent", AGENTS)
def test_every_tensor_is_checked(runs, tmp_path, agent):
    arrays, _ = read_tensors(RunFolder(runs[agent]).checkpoint, CHECKPOINT_FORMAT)
    assert any(name.startswith("best.") for name in arrays)
    for name, array in arrays.items():
        # The networks of PPO are many layers of one kind.
        if "value_net" in name or name.startswith(tuple(f"optimizer.{place}." for place in range(2, 13))):
            continue
        for fault, spoiled in spoiled_arrays(name, array):

            def spoil(arrays, meta, name=name, spoiled=spoiled):
                kept = {other: values for other, values in arrays.items() if other != name}
                return kept if spoiled is None else kept | {name: spoiled}, meta

            told = refusal(runs[agent], tmp_path / "spoiled", spoil)
            # A count that is wrong may show in what else should be there.
            assert name in told or fault in ("negative", "huge"), (name, fault, told)


@pytest.mark.parametrize("agent", ["primal-dual", "ppo"])
@pytest.mark.parametrize(
    ("meta", "told"),
    [
        (None, "is None, an object is needed"),
        (5, "is 5, an object is needed"),
        ([], "is [], an object is needed"),
        ("x", "is 'x', an object is needed"),
        ({}, "is missing"),
        ({"x": 1}, "x is unknown"),
        ({"settings": 5, "metrics": "", "best": None}, "settings is 5, text is needed"),
        ({"metrics": 5, "best": None}, "metrics is 5, text is needed"),
        ({"metrics": "", "best": None}, "is unknown"),
        ({"metrics": "", "best": 5}, "best is 5"),
        ({"metrics": "", "best": {"rate": 1}}, "best.at is missing"),
        ({"metrics": "", "best": {"at": 5}}, "best.rate is missing"),
        ({"metrics": "", "best": {"at": "x", "rate": "y"}}, "best.at is 'x', an integer is needed"),
        ({"metrics": "", "best": {"at": -1, "rate": 1.0}}, "best.at is -1, a number from 0 to "),
        ({"metrics": "", "best": {"at": 1000, "rate": 1.0}}, "best.at is 1000, a number from 0 to "),
    ],
)
def test_what_it_says_beside_the_tensors_is_checked(runs, tmp_path, agent, meta, told):
    """An object has the settings of the run where it does not say others."""

    def spoil(arrays, right):
        return arrays, {"settings": right["settings"]} | meta if isinstance(meta, dict) else meta

    assert told in refusal(runs[agent], tmp_path / "spoiled", spoil)


def test_a_checkpoint_without_the_settings_is_refused(runs, tmp_path):
    def spoil(arrays, meta):
        return arrays, {name: value for name, value in meta.items() if name != "settings"}

    assert refusal(runs["ppo"], tmp_path / "spoiled", spoil) == "settings is missing: start a new run"


@pytest.mark.parametrize("agent", ["primal-dual", "ppo"])
def test_tensors_of_no_use_and_a_best_without_parameters_are_refused(runs, tmp_path, agent):
    path = tmp_path / "spoiled"
    more = refusal(runs[agent], path, lambda arrays, meta: (arrays | {"more": np.zeros(3)}, meta))
    assert more == "more is unknown: start a new run"
    without = refusal(
        runs[agent],
        path,
        lambda arrays, meta: ({name: array for name, array in arrays.items() if not name.startswith("best.")}, meta),
    )
    assert without.startswith("best.")
    assert without.endswith(" is missing: start a new run")


@pytest.mark.parametrize("agent", ["primal-dual", "ppo"])
def test_what_is_right_is_taken(runs, tmp_path, agent):
    shutil.copytree(runs[agent], tmp_path / "copy")
    resume(tmp_path / "copy")
    arrays, _ = read_tensors(RunFolder(tmp_path / "copy").checkpoint, CHECKPOINT_FORMAT)
    reached = "num_timesteps" if agent == "ppo" else "iteration"
    # A rollout of PPO is two blocks of two copies.
    assert arrays[reached].tolist() == [6 * (4 if agent == "ppo" else 1)]


def test_scalars_come_back_without_an_axis():
    entries = adam(torch.zeros(3, 2), "adam.a", (7, 7))
    stored = {
        "adam.a.step": torch.tensor([7.0]),
        "adam.a.exp_avg": torch.ones(3, 2),
        "adam.a.exp_avg_sq": torch.ones(3, 2),
    }
    taken = checked(stored, entries, "file")
    assert taken["adam.a.step"].shape == ()
    assert float(taken["adam.a.step"]) == 7
    with pytest.raises(ValueError, match=r"^file: adam\.a\.step is not in \[8, 8\]: start a new run$"):
        checked(stored, adam(torch.zeros(3, 2), "adam.a", (8, 8)), "file")
    # Float32 has no whole numbers above 2^24 in a row.
    assert adam(torch.zeros(3), "a", (10**9, 10**9))["a.step"].highest == 2**24


def test_entries_are_told_apart():
    wanted = {"a": TensorSpec((2,), torch.float32, lowest=0, highest=1)}
    for tensors, told in (
        ({}, "a is missing"),
        ({"a": torch.zeros(2), "b": torch.zeros(2)}, "b is unknown"),
        ({"a": torch.zeros(2, dtype=torch.float64)}, "a has type float64, float32 is needed"),
        ({"a": torch.zeros(2, 1)}, r"a has shape \(2, 1\), \(2,\) is needed"),
        ({"a": torch.tensor([0.0, torch.nan])}, "a is not finite"),
        ({"a": torch.tensor([0.0, 1.5])}, r"a is not in \[0, 1\]"),
        ({"a": torch.tensor([-0.5, 1.0])}, r"a is not in \[0, 1\]"),
    ):
        with pytest.raises(ValueError, match=f"^file: {told}: start a new run$"):
            checked(tensors, wanted, "file")


def test_the_best_is_not_yet_to_come():
    check_best(None, 0, "file")
    check_best(Best(5, 0.5), 5, "file")
    with pytest.raises(ValueError, match=r"^file: best\.at is 5, a number from 0 to 4 is needed: start a new run$"):
        check_best(Best(5, 0.5), 4, "file")
