import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from agents.common.runs import RunFolder, create_run
from agents.frontier import RunResult, frontier, frontier_figure, main, short_names
from agents.planner.rate import plan
from wm_env.information import Totals, law_totals
from wm_env.law import save_law
from wm_env.optimum import solve
from wm_env.synthetic import synthetic_tree
from wm_env.tree import StateTree


def run_of(path: Path, tree: StateTree, epsilon: float, objective: str = "gp", gamma: float = 0.9) -> Path:
    """A finished run of the planner."""
    settings = {"agent": "planner", "objective": objective, "epsilon": epsilon, "gamma": gamma}
    create_run(path, tree, settings, ["train.py"])
    save_law(plan(tree, epsilon, gamma).law, RunFolder(path).law)
    return path


def test_plans_lie_on_the_frontier_of_their_cost() -> None:
    tree = synthetic_tree(3, 2, 5, entropy=1.5, overlap=0.4)
    budgets = [0.0, 0.05, 0.2]
    for budget, optimum in zip(budgets, frontier(tree, budgets, 0.9), strict=True):
        got = law_totals(plan(tree, budget, 0.9).law.blocks, 0.9)
        assert (got.rate, got.cost) == pytest.approx((optimum.rate, budget), abs=1e-9)


def test_the_figure_shows_the_optimum_and_every_law() -> None:
    tree = synthetic_tree(3, 2, 5, block_length=4, entropy=1.5)
    half = RunResult("ppo", 0.25, Totals(rate=solve(tree, 0.3).rate / 2, cost=0.3))
    axes = frontier_figure(tree, {"half": half}).axes[0]
    curve, marker = axes.lines
    budgets, rates = np.asarray(curve.get_xdata()), np.asarray(curve.get_ydata())
    assert (budgets[0], budgets[-1]) == (0, pytest.approx(0.45))
    assert rates[20] == pytest.approx(solve(tree, float(budgets[20])).rate / (2 * 4))
    assert list(marker.get_xdata()) == [0.3]
    assert list(marker.get_ydata()) == [pytest.approx(solve(tree, 0.3).rate / 2 / 8)]
    assert str(marker.get_label()) == "half (ppo, epsilon 0.25): 50.0 %"


def test_colour_tells_the_agent_and_the_marker_the_budget() -> None:
    tree = synthetic_tree(3, 2, 5, block_length=4, entropy=1.5)
    runs = {
        f"{agent}-{epsilon}": RunResult(agent, epsilon, Totals(rate=solve(tree, epsilon).rate, cost=epsilon))
        for epsilon in (0.2, 0.02)
        for agent in ("ppo", "planner", "primal-dual")
    }
    _, *markers = frontier_figure(tree, runs).axes[0].lines
    looks = {
        name: (line.get_color(), line.get_marker(), line.get_markersize())
        for name, line in zip(runs, markers, strict=True)
    }
    for part, kind in ((0, "agent"), (1, "epsilon")):
        by_kind: dict[object, set[object]] = {}
        for name, run in runs.items():
            by_kind.setdefault(getattr(run, kind), set()).add(looks[name][part])
        assert all(len(same) == 1 for same in by_kind.values())
        assert len(set.union(*by_kind.values())) == len(by_kind)
    # All three lie on the curve: the smaller ones are on top, in whatever order the runs are named.
    layers = sorted(markers, key=lambda line: line.get_zorder())
    assert [line.get_markersize() for line in layers] == sorted((look[2] for look in looks.values()), reverse=True)
    assert looks["planner-0.2"][2] > looks["primal-dual-0.2"][2]


@pytest.mark.parametrize(("share", "cut"), [(0.99, True), (0.0, False)])
def test_an_axis_that_does_not_begin_at_zero_says_so(share: float, cut: bool) -> None:
    tree = synthetic_tree(3, 2, 5, block_length=4, entropy=1.5)
    run = RunResult("planner", 0.1, Totals(rate=share * solve(tree, 0.1).rate, cost=0.1))
    assert ("does not begin at 0" in frontier_figure(tree, {"run": run}).axes[0].get_ylabel()) == cut


def test_the_command_draws_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = synthetic_tree(2, 2, 5, entropy=1.5)
    runs = [str(run_of(tmp_path / name, tree, epsilon)) for name, epsilon in (("low", 0.01), ("high", 0.2))]
    out = tmp_path / "frontier.png"
    assert main([*runs, "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("low: rate ")
    assert lines[0].endswith("100.00 % of the optimum there")
    assert lines[2] == str(out)


def test_every_run_has_a_name_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = synthetic_tree(2, 1, 5, entropy=1.5)
    runs = [run_of(tmp_path / name, tree, 0.1) for name in ("a/x", "b/x", "a/_y", "a/$y$", "b/$\\bad{$")]
    assert main([*map(str, runs), "--out", str(tmp_path / "x.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == ["a/x", "b/x", "a/_y", "a/$y$", "b/$\\bad{$"]
    assert main([str(runs[0]), str(tmp_path / "b" / ".." / "a" / "x")]) == 2
    assert capsys.readouterr().err == "error: a run folder is named twice: leave one out\n"


def test_a_folder_may_be_the_one_that_we_are_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_of(tmp_path / "only", synthetic_tree(2, 1, 5, entropy=1.5), 0.1)
    monkeypatch.chdir(tmp_path / "only")
    assert short_names([Path(".")]) == ["only"]


def test_the_legend_shows_names_as_they_are() -> None:
    tree = synthetic_tree(3, 2, 5, block_length=4, entropy=1.5)
    names = ["_low", "$a$", "a$b$c_", "$\\bad{$"]
    law = Totals(rate=solve(tree, 0.1).rate, cost=0.1)
    figure = frontier_figure(tree, {name: RunResult("ppo", 0.1, law) for name in names})
    figure.draw_without_rendering()
    shown = [text.get_text() for text in figure.legends[0].get_texts()][1:]
    assert len(shown) == len(names)
    for name, text in zip(names, shown, strict=True):
        # A formula needs two dollars that are not escaped.
        assert text.replace("\\$", "").count("$") == 0
        assert text.replace("\\$", "$").strip().startswith(f"{name} (ppo")


def test_refuses_what_cannot_be_written_before_it_computes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run", synthetic_tree(2, 1, 5, entropy=1.5), 0.1)
    assert main([str(run), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path} is no file that can be written: choose another --out\n"


@pytest.mark.parametrize("name", ["objective", "gamma", "epsilon", "agent"])
@pytest.mark.parametrize("value", [None, [1], "x", "missing"])
def test_refuses_settings_of_another_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: object
) -> None:
    config = RunFolder(run_of(tmp_path / "run", synthetic_tree(2, 1, 5, entropy=1.5), 0.1)).config
    content = json.loads(config.read_text())
    content["settings"][name] = value
    if value == "missing":
        del content["settings"][name]
    config.write_text(json.dumps(content))
    assert main([str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.startswith((f"error: {config}: {name} is ", f"error: {config}: {name}="))
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("gamma", 1e300, r"gamma=1e\+300: a discount in \(0, 1\] is needed"),
        ("gamma", 0, "gamma=0.0: a discount"),
        ("epsilon", -1, "epsilon=-1.0: a budget of 0 or more is needed"),
    ],
)
def test_refuses_settings_out_of_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: float, wanted: str
) -> None:
    config = RunFolder(run_of(tmp_path / "run", synthetic_tree(2, 1, 5, entropy=1.5), 0.1)).config
    content = json.loads(config.read_text())
    content["settings"][name] = value
    config.write_text(json.dumps(content))
    assert main([str(tmp_path / "run")]) == 2
    assert re.match(f"error: {config}: {wanted}", capsys.readouterr().err)


def test_names_that_are_not_utf8_are_spelt_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / os.fsdecode(b"a\xff"), synthetic_tree(2, 1, 5, entropy=1.5), 0.1)
    out = tmp_path / os.fsdecode(b"\xfe.png")
    assert main([str(run), "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(r"a\xff: rate ")
    assert lines[1] == str(tmp_path / r"\xfe.png")
    assert out.read_bytes().startswith(b"\x89PNG")


def test_the_figure_goes_beside_the_first_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "runs" / "only", synthetic_tree(2, 2, 5, entropy=1.5), 0.1)
    assert main([str(run)]) == 0
    assert (tmp_path / "runs" / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "runs" / "frontier.png")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "coded"}, "the frontier is that of the gp objective"),
        ({"gamma": 1.0}, "different trees, discounts or costs"),
    ],
)
def test_refuses_runs_that_do_not_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str], message: str
) -> None:
    tree = synthetic_tree(2, 1, 5, entropy=1.5)
    first = run_of(tmp_path / "first", tree, 0.1)
    second = run_of(tmp_path / "second", tree, 0.1, **change)
    assert main([str(first), str(second), "--out", str(tmp_path / "x.png")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x.png").exists()


def test_refuses_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--out", str(tmp_path / "x.png")]) == 2
    assert "holds no run" in capsys.readouterr().err
