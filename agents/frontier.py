"""The rate-variation frontier of a tree, and where the laws of runs lie below it.

python -m agents.frontier runs/primal-dual runs/ppo runs/planner
"""

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

from wm_env.common.command import exit_code, quitting_on_interrupt, run_command, say

with quitting_on_interrupt(__name__):
    import numpy as np
    import tyro

    from agents.common.runs import RunFolder, read_config
    from agents.common.table import AGENTS, run_settings_from_json
    from wm_env.common.arguments import parse
    from wm_env.common.figures import FIGURE_MARK, Figure, figure_format, figure_text, save_figure
    from wm_env.common.files import check_output
    from wm_env.common.json_values import read_as
    from wm_env.criteria.costs import TOTAL_VARIATION, Cost, cost_of
    from wm_env.criteria.objectives import Objective
    from wm_env.information import Totals, law_totals
    from wm_env.law import load_law
    from wm_env.optimum import Optimum, percent_of_optimum, solve
    from wm_env.tree import StateTree, load_tree

_CURVE_POINTS = 61
_MARKERS = "osD^vPX*"
_SIZE, _SIZE_OF_EXACT = 7, 11
"""In points; larger for exact laws, whose markers others come to lie on."""


@dataclass(frozen=True)
class RunResult:
    """What a run was after, and what it found.

    Attributes:
        agent: a name of `agents.common.table.AGENTS`.
        epsilon: its bound on the cost.
        law: what its law achieves.
    """

    agent: str
    epsilon: float
    law: Totals


@dataclass(frozen=True)
class _Asked:
    """The settings of a run that its place in the figure depends on."""

    agent: str
    objective: str
    epsilon: float
    gamma: float
    cost: str = TOTAL_VARIATION.name


@dataclass(frozen=True)
class Options:
    """Draw the exact rate-variation frontier of a tree, for any number of labels, with the laws of runs on it."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders of the gp objective, all on the same tree, with the same discount and cost."""
    out: Path | None = None
    """The figure, a PNG; frontier.png beside the first run folder if not given."""


def frontier(
    tree: StateTree, budgets: Sequence[float], gamma: float = 1.0, cost: Cost = TOTAL_VARIATION
) -> list[Optimum]:
    """The exact optimum for every budget and any number of labels: concave and non-decreasing in the budget."""
    return [solve(tree, budget, gamma, cost) for budget in budgets]


def frontier_figure(
    tree: StateTree, runs: Mapping[str, RunResult], gamma: float = 1.0, cost: Cost = TOTAL_VARIATION
) -> Figure:
    """Rate in bits per token against cost: the optimum as a curve, one marker per named run.

    The colour is the agent's, the marker that of the budget. The curve ends where more budget buys nothing, or at one
    and a half times the cost of the dearest law, at least 0.2. The legend says which share of the optimum at its own
    cost every law reaches.
    """
    tokens = tree.block_length * sum(gamma ** (number + 1) for number in range(len(tree.blocks)))
    dearest = max((run.law.cost for run in runs.values()), default=0.0)
    last = min(max(0.2, 1.5 * dearest), max(solve(tree, np.inf, gamma, cost).cost, dearest))
    budgets = np.linspace(0, last, _CURVE_POINTS)
    rates = [optimum.rate / tokens for optimum in frontier(tree, budgets.tolist(), gamma, cost)]
    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(budgets, rates, color="black", label="exact optimum")
    budgets_of_runs = sorted({run.epsilon for run in runs.values()})
    for name, run in runs.items():
        percent = percent_of_optimum(run.law.rate, solve(tree, run.law.cost, gamma, cost))
        size = _SIZE_OF_EXACT if AGENTS[run.agent].exact else _SIZE
        axes.plot(
            [run.law.cost],
            [run.law.rate / tokens],
            color=f"C{list(AGENTS).index(run.agent)}",
            marker=_MARKERS[budgets_of_runs.index(run.epsilon) % len(_MARKERS)],
            markersize=size,
            zorder=2 + 1 / size,
            linestyle="none",
            label=f"{_plain(name)} ({run.agent}, epsilon {run.epsilon:g}): {percent:.1f} %",
        )
    discounted = "" if gamma == 1 else f", discount {gamma:g}"
    axes.set_xlabel(f"{cost.title}{cost.unit and f' ({cost.unit})'}, sum over {len(tree.blocks)} blocks{discounted}")
    cut = "\n(the axis does not begin at 0)" if axes.get_ylim()[0] > 0 else ""
    axes.set_ylabel(f"rate I(U;X) - I(U;S), bits per token{cut}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    # Below the axes: there is no corner that no law can lie in.
    title = f"runs, and the share of the optimum at their own {cost.title}"
    figure.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False, title=title)
    return figure


def _plain(name: str) -> str:
    """A name as Matplotlib shows it as it is in a legend, where an underscore in front would hide it."""
    return figure_text(f" {name}" if name.startswith("_") else name)


def _spelt(path: Path) -> str:
    """A path as text that can be printed: bytes that are not UTF-8 as in \\xff."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def short_names(paths: Sequence[Path]) -> list[str]:
    """The names of folders, with as many of the folders above them as it takes to tell them apart.

    Raises:
        ValueError: a folder is named twice.
    """
    places = [path.resolve() for path in paths]
    if len({_spelt(place) for place in places}) < len(places):
        raise ValueError("a run folder is named twice: leave one out")
    by_depth = ([_spelt(Path(*place.parts[-depth:])) for place in places] for depth in itertools.count(1))
    return next(names for names in by_depth if len(set(names)) == len(names))


def read_runs(paths: Sequence[Path]) -> tuple[StateTree, float, Cost, dict[str, RunResult]]:
    """The common tree, discount and cost of runs, and what they found, by their `short_names`.

    Raises:
        FileNotFoundError: a folder without a finished run.
        ValueError: no run, damaged files, runs of the coded objective, or runs on different trees, discounts or costs.
    """
    if not paths:
        raise ValueError("name at least one run folder")
    runs: dict[str, RunResult] = {}
    trees: dict[str, StateTree] = {}
    discounts, costs = set(), set()
    for name, path in zip(short_names(paths), paths, strict=True):
        folder = RunFolder(path)
        stored, names = read_config(folder)["settings"], [field.name for field in fields(_Asked)]
        asked = read_as(_Asked, {name: stored[name] for name in names if name in stored}, folder.config)
        run_settings_from_json(asdict(asked), folder.config)
        if asked.objective != Objective.name:
            raise ValueError(
                f"{path} has the {asked.objective} objective: the frontier is that of the {Objective.name} objective"
            )
        tree = load_tree(folder.tree)
        trees[tree.fingerprint] = tree
        discounts.add(asked.gamma)
        costs.add(cost := cost_of(asked.cost))
        found = law_totals(load_law(folder.law, tree).blocks, asked.gamma, cost)
        runs[name] = RunResult(asked.agent, asked.epsilon, found)
    if max(map(len, (trees, discounts, costs))) > 1:
        raise ValueError("these runs have different trees, discounts or costs: draw one figure for each")
    return trees.popitem()[1], discounts.pop(), costs.pop(), runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Read runs and write the figure; returns the exit code: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    with quitting_on_interrupt(__name__):
        options = parse(Options, prog="python -m agents.frontier", args=arguments, description=Options.__doc__)
    return exit_code(lambda: _draw(options))


def _draw(options: Options) -> None:
    tree, gamma, cost, runs = read_runs(options.runs)
    out = options.out if options.out is not None else options.runs[0].parent / "frontier.png"
    check_output(out, "choose another --out", FIGURE_MARK)
    figure_format(out)
    save_figure(frontier_figure(tree, runs, gamma, cost), out)
    for name, law in ((name, run.law) for name, run in runs.items()):
        share = f"{percent_of_optimum(law.rate, solve(tree, law.cost, gamma, cost)):.2f} % of the optimum there"
        say(f"{name}: rate {law.rate:.4f} bits, {cost.told(law.cost)}, {share}")
    say(_spelt(out))


if __name__ == "__main__":
    run_command(main)
