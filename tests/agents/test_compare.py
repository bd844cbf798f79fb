"""The comparison of runs: which runs are averaged, what the curves and the table say, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from agents.common.runs import RunFolder, create_run
from agents.compare import compare_figure, compare_table, group_names, main, mean_curve, read_curve, read_groups
from agents.planner.rate import plan
from wm_env.law import save_law
from wm_env.synthetic import synthetic_tree

TREE = synthetic_tree(2, 1, 5, entropy=1.5)


def run_of(path: Path, seed: int, epsilon: float, rates: list[float] | None = None) -> Path:
    """A run of Algorithm 1 whose law is the planner's, with a learning curve."""
    settings = {"agent": "primal-dual", "objective": "gp", "seed": seed, "epsilon": epsilon, "gamma": 1.0}
    create_run(path, TREE, settings, ["train.py"])
    save_law(plan(TREE, epsilon).law, RunFolder(path).law)
    if rates is not None:
        lines = [f"{10 * number},{rate},{rate / 10}" for number, rate in enumerate(rates)]
        RunFolder(path).metrics.write_text("\n".join(["iteration,eval/rate,eval/cost", *lines]) + "\n")
    return path


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        run_of(tmp_path / "a", 0, 0.1, [1.0, 2.0, 3.0]),
        run_of(tmp_path / "b", 1, 0.1, [2.0, 4.0, 3.5, 5.0]),
        run_of(tmp_path / "c", 0, 0.2, [1.0, 1.5]),
        run_of(tmp_path / "d", 0, 0.3),
    ]


def test_runs_that_differ_in_the_seed_only_are_one_group(runs: list[Path]) -> None:
    _, _, _, groups = read_groups(runs)
    assert [(group.name, len(group.results), len(group.curves)) for group in groups] == [
        ("primal-dual, epsilon 0.1", 2, 2),
        ("primal-dual, epsilon 0.2", 1, 1),
        ("primal-dual, epsilon 0.3", 1, 0),
    ]


def test_names_tell_the_settings_that_differ() -> None:
    settings = [{"agent": '"ppo"', "lr": "0.1", "T": "5"}, {"agent": '"ppo"', "lr": "0.2", "T": "5"}, {"T": "5"}]
    assert group_names(settings) == ["ppo, lr 0.1", "ppo, lr 0.2", "run"]
    assert group_names(settings[:1] * 2) == ["ppo", "ppo"]
    assert group_names([settings[0], {"agent": '"planner"', "T": "5"}]) == ["ppo", "planner"]


def test_the_mean_is_over_the_evaluations_that_all_runs_have(runs: list[Path]) -> None:
    """Two runs: the t-interval of values v and w is their mean +- 12.7062 |v - w| / 2."""
    _, _, _, groups = read_groups(runs)
    iterations, mean, low, high = mean_curve(groups[0].curves, "rate")
    assert iterations.tolist() == [0, 10, 20]
    assert mean.tolist() == [1.5, 3.0, 3.25]
    spread = np.array([1.0, 2.0, 0.5]) / 2
    assert high - mean == pytest.approx(12.7062 * spread, rel=1e-5)
    assert mean - low == pytest.approx(12.7062 * spread, rel=1e-5)
    iterations, mean, low, high = mean_curve(groups[1].curves, "cost")
    assert iterations.tolist() == [0, 10]
    assert mean.tolist() == low.tolist() == high.tolist() == [0.1, 0.15]


def test_the_figure_shows_every_run_and_the_limits(runs: list[Path]) -> None:
    tree, gamma, cost, groups = read_groups(runs)
    figure = compare_figure(tree, gamma, cost, groups)
    rates, costs, plane = figure.axes
    for axes in (rates, costs):
        drawn = [line for line in axes.lines if line.get_gid() != "limit"]
        assert [len(np.asarray(line.get_xdata())) for line in drawn] == [3, 2]
        assert len([line for line in axes.lines if line.get_gid() == "limit"]) == 3
    assert [line.get_label() for line in plane.lines[:3]] == [
        "primal-dual, epsilon 0.1 (2 runs)", "primal-dual, epsilon 0.2 (1 run)", "primal-dual, epsilon 0.3 (1 run)",
    ]  # fmt: skip
    budgets, best = (np.asarray(data, dtype=float) for data in plane.lines[-1].get_data())
    for line in plane.lines[:3]:
        place, rate = (np.asarray(data, dtype=float) for data in line.get_data())
        assert (rate <= np.interp(place, budgets, best) + 0.01).all()
    assert "4 runs on tree" in figure.get_suptitle()


def test_the_table_says_what_the_laws_reach(runs: list[Path]) -> None:
    lines = compare_table(*read_groups(runs)).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["0", "0", "0"]
    assert f"{plan(TREE, 0.2).rate:.4f}" in lines[2]
    assert all("100.00" in line for line in lines[1:])
    assert "[100.00, 100.00]" in lines[1]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_command_writes_the_figure(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    out = tmp_path / f"figure.{ending}"
    assert main([*map(str, runs), "--out", str(out)]) == 0
    assert out.stat().st_size > 1000
    assert "% of the optimum at its cost" in capsys.readouterr().out


def test_bad_input_is_one_line(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder(runs[0]).metrics.write_text("iteration,eval/rate\n0,1\n10,2\n")
    for arguments, says in (
        ([str(runs[0])], "metrics.csv is damaged"),
        ([str(runs[1]), "--out", str(tmp_path / "x.jpg")], "ends in .png, .pdf or .svg"),
        ([str(runs[1]), str(runs[1])], "named twice"),
        ([str(tmp_path / "nowhere")], "holds no run"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert says in error
        assert len(error.splitlines()) == 1


def test_a_curve_needs_two_evaluations(tmp_path: Path) -> None:
    assert read_curve(tmp_path / "metrics.csv") is None
    (tmp_path / "metrics.csv").write_text("iteration,eval/rate,eval/cost\n0,1,0.1\n")
    assert read_curve(tmp_path / "metrics.csv") is None
