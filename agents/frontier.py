"""The rate-variation frontier of a tree, and where the laws of runs lie below it.

python -m agents.frontier runs/primal-dual runs/ppo runs/planner --out frontier.png
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from matplotlib.figure import Figure

from agents.runs import RunFolder, read_config
from wm_env.files import write_atomically
from wm_env.information import measure
from wm_env.law import JointLaw, load_law
from wm_env.optimum import Optimum, percent_of_optimum, solve
from wm_env.tree import StateTree, load_tree

_CURVE_POINTS = 61
_MARKERS = "osD^vPX*"


@dataclass(frozen=True)
class Achieved:
    """What a law achieves on its tree.

    Attributes:
        rate: sum_b gamma^b r_b in bits, b = 1..B.
        cost: sum_b gamma^b c_b.
    """

    rate: float
    cost: float


@dataclass(frozen=True)
class Options:
    """Draw the exact rate-variation frontier of a tree with the laws that runs found on it."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders of the gp objective, all on the same tree and with the same discount."""
    out: Path = Path("frontier.png")
    """The figure, a PNG."""


def achieved(law: JointLaw, gamma: float = 1.0) -> Achieved:
    """Rate and cost of a joint law, discounted."""
    measures = [measure(block) for block in law.blocks]
    weights = [gamma ** (number + 1) for number in range(len(measures))]
    return Achieved(
        rate=sum(weight * float(one.rate) for weight, one in zip(weights, measures, strict=True)),
        cost=sum(weight * float(one.cost) for weight, one in zip(weights, measures, strict=True)),
    )


def frontier(tree: StateTree, budgets: Sequence[float], gamma: float = 1.0) -> list[Optimum]:
    """The exact optimum for every budget; the rate is a concave, non-decreasing function of the budget."""
    return [solve(tree, budget, gamma) for budget in budgets]


def frontier_figure(tree: StateTree, laws: Mapping[str, Achieved], gamma: float = 1.0) -> Figure:
    """Rate in bits per token against total variation: the optimum as a curve, one marker per named law.

    The curve ends where more budget buys nothing, or at one and a half times the cost of the dearest law, at least 0.2.
    The legend says how much of the optimum at its own cost every law reaches.
    """
    tokens = tree.block_length * sum(gamma ** (number + 1) for number in range(len(tree.blocks)))
    dearest = max((law.cost for law in laws.values()), default=0.0)
    last = min(max(0.2, 1.5 * dearest), max(solve(tree, np.inf, gamma).cost, dearest))
    budgets = np.linspace(0, last, _CURVE_POINTS)
    rates = [optimum.rate / tokens for optimum in frontier(tree, budgets.tolist(), gamma)]
    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(budgets, rates, color="black", label="exact optimum")
    for number, (name, law) in enumerate(laws.items()):
        percent = percent_of_optimum(law.rate, solve(tree, law.cost, gamma))
        axes.plot(
            [law.cost],
            [law.rate / tokens],
            color=f"C{number % 10}",
            marker=_MARKERS[number % len(_MARKERS)],
            linestyle="none",
            label=f"{name}: {percent:.1f} % of the optimum at its cost",
        )
    discounted = "" if gamma == 1 else f", discount {gamma:g}"
    axes.set_xlabel(f"total variation, sum over {len(tree.blocks)} blocks{discounted}")
    axes.set_ylabel("rate I(U;X) - I(U;S), bits per token")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    # Below the axes: there is no corner that no law can lie in.
    figure.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    return figure


def read_runs(paths: Sequence[Path]) -> tuple[StateTree, float, dict[str, Achieved]]:
    """The common tree and discount of runs, and what their laws achieve, by the names of their folders.

    Raises:
        FileNotFoundError: a folder without a finished run.
        ValueError: no run, damaged files, runs of the coded objective, or runs on different trees or discounts.
    """
    if not paths:
        raise ValueError("name at least one run folder")
    laws: dict[str, Achieved] = {}
    trees: dict[str, StateTree] = {}
    discounts = set()
    for path in paths:
        folder = RunFolder(path)
        settings = read_config(folder)["settings"]
        if settings["objective"] != "gp":
            raise ValueError(f"{path} has the coded objective: the frontier is that of the gp objective")
        tree = load_tree(folder.tree)
        trees[tree.fingerprint] = tree
        discounts.add(float(settings["gamma"]))
        laws[path.name] = achieved(load_law(folder.law, tree), float(settings["gamma"]))
    if len(trees) > 1 or len(discounts) > 1:
        raise ValueError("these runs have different trees or discounts: draw one figure for each")
    return trees.popitem()[1], discounts.pop(), laws


def main(arguments: Sequence[str] | None = None) -> int:
    """Read runs and write the figure; returns the exit code: 0 done, 2 bad input."""
    options = tyro.cli(Options, args=arguments, description=Options.__doc__)
    try:
        tree, gamma, laws = read_runs(options.runs)
        figure = frontier_figure(tree, laws, gamma)
        write_atomically(options.out, lambda temporary: figure.savefig(temporary, format="png", dpi=150))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, law in laws.items():
        percent = percent_of_optimum(law.rate, solve(tree, law.cost, gamma))
        print(f"{name}: rate {law.rate:.4f} bits, total variation {law.cost:.4f}, {percent:.2f} % of the optimum there")
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
