"""docs/using_the_environment.md: every Python snippet runs by itself and shows what the page says."""

import re

import pytest
import torch
from repository import ROOT
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from wm_env.env import CovertWatermarkEnv

PAGE = (ROOT / "docs" / "using_the_environment.md").read_text(encoding="utf-8")
FIRST, POLICIES, COSTS, COPIES, TEXTS, TRAINING = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a snippet in an empty folder and with nothing imported before; returns the lines that it prints."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()

    def run(snippet):
        exec(compile(snippet, "snippet", "exec"), {"__name__": "snippet"})
        return capsys.readouterr().out.splitlines()

    yield run
    torch.set_num_threads(threads)


def test_the_first_snippet_plays_an_episode(run):
    bound = f"{CovertWatermarkEnv().problem.rate_bound.rate:.4f}"
    lines = run(FIRST)
    assert lines[0] == f"at most {bound} bits within the budget"
    assert re.fullmatch(rf"so far: rate \S+ of at most {bound} bits, total variation \S+ of at most 0\.1000", lines[-1])


def test_the_table_of_policies_is_what_its_snippet_prints(run):
    table = re.search(r"\| policy \|.*?\n\n", PAGE, re.S)
    assert table is not None
    documented = [row.split("|")[2:4] for row in table.group().strip().splitlines()[2:]]
    printed = [line.split()[1:] for line in run(POLICIES)]
    assert [[value.strip() for value in row] for row in documented] == printed


def test_costs_of_another_library_are_logged(run, tmp_path):
    run(COSTS)
    (folder,) = (tmp_path / "runs" / "sb3").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    costs = [scalar.value for scalar in events.Scalars("rollout/ep_cost_mean")]
    # Four rollouts of almost uniform laws, which cost more than the limit of 0.1, at most 1 a block.
    assert len(costs) == 4
    assert all(0.1 < cost < 2 for cost in costs)


def test_many_copies_are_stepped(run):
    lines = run(COPIES)
    assert len(lines) == 5
    assert all(0 < float(line.split()[-1]) < 2 for line in lines)


def test_the_training_loop_learns(run):
    (line,) = run(TRAINING)
    rate = float(line.split()[0])
    documented = re.search(r"^([\d.]+) bits within the budget after \d+ rollouts$", PAGE, re.M)
    assert documented is not None
    # Rounding differs between processors, and learning makes more of it.
    assert rate == pytest.approx(float(documented.group(1)), abs=1.0)
    assert 2 < rate < CovertWatermarkEnv().problem.rate_bound.rate
