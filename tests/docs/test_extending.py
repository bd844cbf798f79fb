"""docs/extending.md: every example runs as it stands and does what the page says."""

import importlib
import json
import math
import re
import sys
import types

import gymnasium as gym
import numpy as np
import pytest
from repository import ROOT

from agents import train
from agents.common.table import AGENTS, Row
from agents.training import load_policy
from polar.code import decoders
from wm_env.criteria.table import COSTS, OBJECTIVES, Entry
from wm_env.env import CovertWatermarkEnv
from wm_env.runs import load_run

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
EXAMPLES = {
    section.splitlines()[0]: code
    for section in PAGE.split("\n## ")[1:]
    for code in re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)[:1]
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_short(name):
    assert len(EXAMPLES[name].splitlines()) <= (60 if name == "An agent" else 40)


def test_an_agent_trains_from_the_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "random_search.py").write_text(EXAMPLES["An agent"])
    monkeypatch.syspath_prepend(tmp_path)
    line = re.search(r'`"search": (Row\(.*?\))`', PAGE).group(1).replace("agents.random_search", "random_search")
    monkeypatch.setitem(AGENTS, "search", eval(line, {"Row": Row}))
    sizes = ["--prompts", "2", "--candidates", "4", "--labels", "4", "--iterations", "60", "--epsilon", "0.5"]
    run = tmp_path / "run"
    monkeypatch.setattr(
        sys, "argv", ["train.py", "--agent", "search", "--search.step", "0.2", "--run", str(run), *sizes]
    )
    assert train.main() == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{run}/law.safetensors: rate ")
    rows = [row.split(",") for row in (run / "metrics.csv").read_text().splitlines()]
    rate, cost = ([float(row[rows[0].index(f"eval/{name}")]) for row in rows[1:]] for name in ("rate", "cost"))
    assert len(rate) == 7
    assert rate[-1] - 20 * cost[-1] > rate[0] - 20 * cost[0]
    finished = load_run(run)
    env = gym.make("wm_env:CovertWatermarkEnv-v0", tree=finished.tree, prompts=2, candidates=4, labels=4)
    observation, _ = env.reset()
    np.testing.assert_allclose(
        load_policy(run)(observation, env.unwrapped)[: len(finished.law.blocks[0].p_label), :, 0],
        finished.law.blocks[0].p_label,
        atol=1e-6,
    )
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    ("name", "table", "options"),
    [("A cost", COSTS, ()), ("An objective", OBJECTIVES, ("--gradient", "autograd"))],
)
def test_a_class_and_a_line_make_a_choice_of_the_command_line(name, table, options, tmp_path, monkeypatch, capsys):
    module = types.ModuleType("example")
    exec(compile(EXAMPLES[name], "example", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "example", module)
    section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]
    key, line = re.search(r'^    "(\w+)": (Entry\(.*?\)),$', section, re.M).groups()
    entry = eval(line, {"Entry": Entry})
    monkeypatch.setitem(table, key, entry._replace(place=f"example:{entry.place.split(':')[1]}"))
    sizes = ["--prompts", "2", "--candidates", "4", "--labels", "4", "--iterations", "20", "--epsilon", "0.5"]
    option, run = name.split()[1], tmp_path / "run"
    monkeypatch.setattr(sys, "argv", ["train.py", f"--{option}", key, "--run", str(run), *sizes, *options])
    assert train.main() == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{run}/law.safetensors: rate ")
    assert json.loads((run / "config.json").read_text())["settings"][option] == key
    monkeypatch.setattr(sys, "argv", ["train.py", "--help"])
    with pytest.raises(SystemExit):
        train.main()
    assert f"{key} = {entry.about}" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_a_cost_is_kept_by_the_learner(capsys):
    exec(compile(EXAMPLES["A cost"], "example", "exec"), {"__name__": "example"})
    rate, cost = map(float, re.findall(r"(\d\.\d+)", capsys.readouterr().out)[:2])
    assert rate > 3
    assert cost < 0.03


def test_an_objective_has_a_reward_a_bound_and_a_gradient(capsys):
    exec(compile(EXAMPLES["An objective"], "example", "exec"), {"__name__": "example"})
    reward, bound, rate = map(float, re.findall(r"(\d\.\d{4})", capsys.readouterr().out))
    assert reward < bound
    assert bound == pytest.approx(CovertWatermarkEnv().problem.rate_bound.rate, abs=1e-4)
    assert rate < bound


def test_a_decoder_is_evaluated_beside_the_others(capsys, monkeypatch):
    monkeypatch.setattr("polar.code.decoders.DECODERS", DECODERS := dict(decoders.DECODERS))
    exec(compile(EXAMPLES["A decoder"], "example", "exec"), {"__name__": "example"})
    assert "sure" in DECODERS
    found = re.findall(r"(\w+), state (\w+): block error (\d\.\d{4})", capsys.readouterr().out)
    errors = {(name, state): float(error) for name, state, error in found}
    assert len(errors) == 4
    assert all(errors["sure", state] >= errors["map", state] for state in ("marginal", "path"))


def test_a_language_model_has_a_law(capsys):
    exec(compile(EXAMPLES["A language model"], "example", "exec"), {"__name__": "example"})
    tokens, bits = re.findall(r"[\d.]+", capsys.readouterr().out)[:2]
    assert float(bits) == pytest.approx(math.log2(int(tokens)), abs=0.005)
