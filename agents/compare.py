"""Several training runs side by side: learning curves, and rate against cost on the exact frontier.

python -m agents.compare runs/primal-dual* runs/ppo* --out compare.pdf

Runs that differ in nothing but the seed are one group, shown by its mean and the 95 % interval of that mean.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

from wm_env.common.command import exit_code, quitting_on_interrupt, run_command, say

with quitting_on_interrupt(__name__):
    import numpy as np
    import tyro
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from agents.common.runs import RunFolder, read_config
    from agents.frontier import RunResult, frontier, read_runs, short_names
    from wm_env.common.arguments import parse
    from wm_env.common.arrays import Floats
    from wm_env.common.figures import COLOURS, FIGURE_MARK, figure_format, figure_text, new_figure, save_figure
    from wm_env.common.files import check_output, read_text
    from wm_env.common.foreign.visible import visible
    from wm_env.common.intervals import mean_interval
    from wm_env.common.tables import aligned_table, with_interval
    from wm_env.criteria.costs import Cost
    from wm_env.optimum import FEASIBLE, percent_of_optimum, solve
    from wm_env.tree import StateTree

_CURVE_POINTS = 41
_NOT_COMPARED = ("seed", "threads", "device", "evaluate_every")
"""Settings that do not make another group: they change a law by chance or rounding, or not at all."""


@dataclass(frozen=True)
class Options:
    """Draw learning curves of runs and their place on the frontier; runs that differ in the seed only are averaged."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders of the gp objective, all on the same tree, with the same discount and cost."""
    out: Path | None = None
    """The figure, a .png, .pdf or .svg; compare.png beside the first run folder if not given."""


@dataclass(frozen=True)
class Curve:
    """What a run measured on its way.

    Attributes:
        iterations: of the evaluations, shape (E,).
        rate: of the law, bits over all blocks, shape (E,).
        cost: of the law, shape (E,).
    """

    iterations: Floats
    rate: Floats
    cost: Floats


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed only.

    Attributes:
        name: agent, and the settings in which groups differ.
        results: what the runs ended with.
        curves: of the runs that have one; the planner has none.
    """

    name: str
    results: tuple[RunResult, ...]
    curves: tuple[Curve, ...]


def flat_settings(settings: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """The settings of a run by dotted name, as JSON, without those that do not make another group."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat_settings(value, f"{before}{name}.")
        elif name not in _NOT_COMPARED:
            found[before + name] = json.dumps(value)
    return found


def group_names(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """A name for every run: its agent, and the settings that differ among the runs that have them.

    The runs of a group have one name.
    """
    agents = [str(json.loads(each.get("agent", '"run"'))) for each in settings]
    names = sorted({name for each in settings for name in each} - {"agent"})
    # What an agent does not have is no difference to others that have it.
    differing = [name for name in names if len({each[name] for each in settings if name in each}) > 1]
    return [
        ", ".join([agent, *(f"{name} {each[name]}" for name in differing if name in each)])
        for agent, each in zip(agents, settings, strict=True)
    ]


def read_curve(path: Path) -> Curve | None:
    """The learning curve in a metrics.csv; None if there is no such file or fewer than two evaluations in it.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged.
    """
    if not path.exists():
        return None
    try:
        rows = list(csv.DictReader(StringIO(read_text(path), newline="")))
        columns = [[float(row[name]) for row in rows] for name in ("iteration", "eval/rate", "eval/cost")]
    except (KeyError, TypeError, ValueError, csv.Error):
        raise ValueError(f"{path} is damaged: it has no numbers iteration, eval/rate and eval/cost") from None
    return Curve(*map(np.array, columns)) if len(rows) > 1 else None


def read_groups(paths: Sequence[Path]) -> tuple[StateTree, float, Cost, list[Group]]:
    """The common tree, discount and cost of runs, and the runs in groups, in the order in which they were named.

    Raises:
        OSError: a folder without a finished run.
        ValueError: no run, damaged files, runs of the coded objective, or runs on different trees, discounts or costs.
    """
    tree, gamma, cost, results = read_runs(paths)
    folders = [RunFolder(path) for path in paths]
    names = group_names([flat_settings(read_config(folder)["settings"]) for folder in folders])
    members: dict[str, list[tuple[RunResult, Curve | None]]] = {}
    for name, folder, run in zip(names, folders, short_names(paths), strict=True):
        members.setdefault(name, []).append((results[run], read_curve(folder.metrics)))
    groups = [
        Group(name, tuple(result for result, _ in runs), tuple(curve for _, curve in runs if curve is not None))
        for name, runs in members.items()
    ]
    return tree, gamma, cost, groups


def mean_curve(curves: Sequence[Curve], column: str) -> tuple[Floats, Floats, Floats, Floats]:
    """Iterations that all curves have, the mean of `column` there, and its interval, which has no width for one run."""
    shared = sorted(set.intersection(*(set(curve.iterations.tolist()) for curve in curves)))
    rows = np.array([getattr(curve, column)[np.searchsorted(curve.iterations, shared)] for curve in curves])
    if len(rows) == 1:
        return np.array(shared), rows[0], rows[0], rows[0]
    found = [mean_interval(values) for values in rows.T.tolist()]
    return (
        np.array(shared),
        np.array([mean for mean, _ in found]),
        np.array([low for _, (low, _) in found]),
        np.array([high for _, (_, high) in found]),
    )


def compare_figure(tree: StateTree, gamma: float, cost: Cost, groups: Sequence[Group]) -> Figure:
    """Three panels: rate and cost against iterations, and rate against cost with the frontier."""
    tokens = tree.block_length * sum(gamma ** (number + 1) for number in range(len(tree.blocks)))
    budgets = sorted({result.epsilon for group in groups for result in group.results})
    runs = sum(len(group.results) for group in groups)
    meta, blocks = tree.meta, len(tree.blocks)
    title = (
        f"{runs} runs on tree {tree.fingerprint[:8]} of {visible(meta.model)}, L = {meta.block_length}, B = {blocks}, "
        f"Q = {meta.candidates}{'' if gamma == 1 else f', discount {gamma:g}'}"
    )
    figure, (rates, costs, plane) = new_figure(title, 3)
    for budget in budgets:
        optimum = solve(tree, budget, gamma, cost).rate / tokens
        style: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1, "gid": "limit"}
        label = f"optimum at budget {', '.join(f'{each:g}' for each in budgets)}" if budget == budgets[0] else None
        rates.axhline(optimum, **style, label=label)
        costs.axhline(budget, **style, label=None if label is None else "budget")
    for number, group in enumerate(groups):
        colour, count = COLOURS[number % len(COLOURS)], len(group.results)
        name = f"{figure_text(group.name)} ({count} run{'s' if count > 1 else ''})"
        if group.curves:
            _draw_curve(rates, group, "rate", tokens, colour)
            _draw_curve(costs, group, "cost", 1.0, colour)
        _draw_place(plane, group, tokens, colour, name)
    dearest = max(result.law.cost for group in groups for result in group.results)
    reach = np.linspace(0, 1.3 * max(dearest, *budgets), _CURVE_POINTS)
    plane.plot(
        reach, [each.rate / tokens for each in frontier(tree, reach.tolist(), gamma, cost)], "k-", label="exact optimum"
    )
    unit = cost.unit and f" ({cost.unit})"
    for axes, what in ((rates, "rate of the law, bits per token"), (costs, f"{cost.title}{unit}, sum over blocks")):
        axes.set_xlabel("iterations (of PPO: rollouts)")
        axes.set_ylabel(what)
        axes.legend(loc="best", fontsize=8, frameon=False)
    plane.set_xlabel(f"{cost.title}{unit}, sum over blocks")
    plane.set_ylabel("rate of the law, bits per token")
    figure.legend(
        *plane.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=8,
        frameon=False,
        title="line and bar: mean over runs; band and bar ends: its 95 % interval",
        title_fontsize=8,
    )
    return figure


def _draw_curve(axes: Axes, group: Group, column: str, scale: float, colour: str) -> None:
    iterations, mean, low, high = mean_curve(group.curves, column)
    axes.plot(iterations, mean / scale, color=colour)
    axes.fill_between(iterations, low / scale, high / scale, color=colour, alpha=0.25, linewidth=0)


def _draw_place(axes: Axes, group: Group, tokens: float, colour: str, name: str) -> None:
    """A small mark for every run, and the mean with the intervals of both coordinates."""
    costs, rates = ([getattr(each.law, what) for each in group.results] for what in ("cost", "rate"))
    axes.plot(costs, np.array(rates) / tokens, ".", color=colour, markersize=8, label=name)
    if len(costs) > 1:
        (x, across), (y, up) = mean_interval(costs), mean_interval([rate / tokens for rate in rates])
        axes.hlines(y, *across, color=colour, linewidth=1.5)
        axes.vlines(x, *up, color=colour, linewidth=1.5)


def compare_table(tree: StateTree, gamma: float, cost: Cost, groups: Sequence[Group]) -> str:
    """One line per group: rate and cost of the final laws, share of the optimum at their own cost, runs over budget."""
    rows = [["group", "runs", "rate, bits", f"{cost.title}", "% of the optimum at its cost", "over budget"]]
    for group in groups:
        laws = [result.law for result in group.results]
        shares = [percent_of_optimum(law.rate, solve(tree, law.cost, gamma, cost)) for law in laws]
        over = sum(result.law.cost > result.epsilon + FEASIBLE for result in group.results)
        rates, costs = [law.rate for law in laws], [law.cost for law in laws]
        figures = [_mean(rates, ".4f"), _mean(costs, ".4f"), _mean(shares, ".2f")]
        rows.append([visible(group.name), str(len(laws)), *figures, str(over)])
    return aligned_table(rows)


def _mean(values: Sequence[float], spec: str) -> str:
    return format(values[0], spec) if len(values) == 1 else with_interval(*mean_interval(values), spec)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read runs, print a table, write the figure; returns the exit code of `exit_code`."""
    with quitting_on_interrupt(__name__):
        options = parse(Options, prog="python -m agents.compare", args=arguments, description=Options.__doc__)
    return exit_code(lambda: _compare(options))


def _compare(options: Options) -> None:
    tree, gamma, cost, groups = read_groups(options.runs)
    out = options.out if options.out is not None else options.runs[0].parent / "compare.png"
    figure_format(out)
    check_output(out, "choose another --out", FIGURE_MARK)
    say(compare_table(tree, gamma, cost, groups))
    save_figure(compare_figure(tree, gamma, cost, groups), out)
    say(str(out))


if __name__ == "__main__":
    run_command(main)
