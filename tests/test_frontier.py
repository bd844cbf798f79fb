from pathlib import Path

import numpy as np
import pytest

from agents.frontier import Achieved, achieved, frontier, frontier_figure, main
from agents.planner import plan
from agents.runs import RunFolder, create_run
from wm_env.law import save_law
from wm_env.optimum import solve
from wm_env.synthetic import synthetic_tree
from wm_env.tree import StateTree


def run_of(path: Path, tree: StateTree, epsilon: float, objective: str = "gp", gamma: float = 0.9) -> Path:
    """A finished run of the planner."""
    create_run(path, tree, {"objective": objective, "gamma": gamma}, ["train.py"])
    save_law(plan(tree, epsilon, gamma).law, RunFolder(path).law)
    return path


def test_plans_lie_on_the_frontier_of_their_cost() -> None:
    tree = synthetic_tree(3, 2, 5, entropy=1.5, overlap=0.4)
    budgets = [0.0, 0.05, 0.2]
    for budget, optimum in zip(budgets, frontier(tree, budgets, 0.9), strict=True):
        got = achieved(plan(tree, budget, 0.9).law, 0.9)
        assert (got.rate, got.cost) == pytest.approx((optimum.rate, budget), abs=1e-9)


def test_the_figure_shows_the_optimum_and_every_law() -> None:
    tree = synthetic_tree(3, 2, 5, block_length=4, entropy=1.5)
    axes = frontier_figure(tree, {"half": Achieved(rate=solve(tree, 0.3).rate / 2, cost=0.3)}).axes[0]
    curve, marker = axes.lines
    budgets, rates = np.asarray(curve.get_xdata()), np.asarray(curve.get_ydata())
    assert (budgets[0], budgets[-1]) == (0, pytest.approx(0.45))
    assert rates[20] == pytest.approx(solve(tree, float(budgets[20])).rate / (2 * 4))
    assert list(marker.get_xdata()) == [0.3]
    assert list(marker.get_ydata()) == [pytest.approx(solve(tree, 0.3).rate / 2 / 8)]
    assert str(marker.get_label()) == "half: 50.0 % of the optimum at its cost"


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "coded"}, "the frontier is that of the gp objective"),
        ({"gamma": 1.0}, "different trees or discounts"),
    ],
)
def test_refuses_runs_that_do_not_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str], message: str
) -> None:
    tree = synthetic_tree(2, 1, 5, entropy=1.5)
    first = run_of(tmp_path / "first", tree, 0.1)
    second = run_of(tmp_path / "second", tree, 0.1, **change)  # type: ignore[arg-type]
    assert main([str(first), str(second), "--out", str(tmp_path / "x.png")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x.png").exists()


def test_refuses_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--out", str(tmp_path / "x.png")]) == 2
    assert "holds no run" in capsys.readouterr().err
