"""Ten rules for a cost limit on twenty problems whose optimum is certified: python benchmarks/constrained.py --help.

All rules drive one learner: Gaussian logits of the marginals q(x|s), a table of means, the score-function gradient
with credit by state, copies in pairs with opposite noise, Adam. Rates, costs and the optimum are exact. Rows go to a
CSV file as they are finished, and rows that it has already are not run again. Constants: constrained.yaml.
"""

import csv
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from command import MANY, SEEDS, run_benchmark, within
from constraint_rules import read_rules

from wm_env.common.command import quitting_on_interrupt, tell

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch

    from agents.ppo_lagrangian.buffer import tree_advantages
    from wm_env.common.arguments import parse
    from wm_env.common.figures import FIGURE_MARK, figure_format, save_figure
    from wm_env.common.files import check_output, write_atomically
    from wm_env.common.progress import ProgressBar
    from wm_env.criteria.credit import COST, PARENT, RATE
    from wm_env.env import CovertWatermarkEnv
    from wm_env.optimum import FEASIBLE
    from wm_env.synthetic import synthetic_tree
    from wm_env.tensor_env import MarginalTensorEnv
    from wm_env.tree import save_tree


@dataclass(frozen=True)
class Problem:
    """A problem by its name; of the shipped tree, or synthetic if it has an entropy."""

    prompts: int = 4
    candidates: int = 8
    labels: int = 8
    blocks: int = 2
    epsilon: float = 0.1
    gamma: float = 1.0
    entropy: float | None = None
    overlap: float = 0.0

    @property
    def name(self) -> str:
        kind = "news" if self.entropy is None else f"synthetic {self.entropy:g} bits, overlap {self.overlap:g}"
        discount = "" if self.gamma == 1 else f" gamma={self.gamma:g}"
        sizes = f"prompts={self.prompts} Q={self.candidates} M={self.labels} B={self.blocks} epsilon={self.epsilon:g}"
        return f"{kind}: {sizes}{discount}"

    def arguments(self, folder: Path) -> dict[str, Any]:
        """Of the environment; a synthetic tree is written to a file."""
        tree = "news"
        if self.entropy is not None:
            tree = str(folder / "tree.safetensors")
            made = synthetic_tree(
                self.prompts, self.blocks, self.candidates, entropy=self.entropy, overlap=self.overlap, seed=0
            )
            save_tree(made, Path(tree))
        given = asdict(self) | {"tree": tree}
        return {name: value for name, value in given.items() if name not in ("entropy", "overlap")}

    def certified(self) -> tuple[float, float]:
        """The optimum and the optimum at cost 0, which is the cover's rate, bits: they tell trees apart."""
        with tempfile.TemporaryDirectory() as folder:
            task = CovertWatermarkEnv(**self.arguments(Path(folder))).problem
        return task.rate_bound.rate, replace(task, epsilon=0.0).rate_bound.rate


PROBLEMS = (
    Problem(),
    Problem(epsilon=0.01),
    Problem(epsilon=0.03),
    Problem(epsilon=0.2),
    Problem(epsilon=1.0),
    Problem(gamma=0.8),
    Problem(blocks=1, epsilon=0.05),
    Problem(prompts=1),
    Problem(prompts=12, labels=16),
    Problem(candidates=4, labels=4),
    Problem(candidates=16, labels=16),
    Problem(prompts=2, candidates=20, labels=32),
    Problem(prompts=4, blocks=1, entropy=2.0),
    Problem(prompts=4, entropy=1.0),
    Problem(prompts=4, entropy=2.0, overlap=0.5),
    Problem(prompts=4, entropy=2.8),
    Problem(prompts=2, candidates=4, labels=4, blocks=3, entropy=1.2),
    Problem(prompts=2, candidates=4, labels=4, blocks=4, entropy=1.2, epsilon=0.2),
    Problem(prompts=8, candidates=16, labels=16, blocks=1, entropy=3.0, epsilon=0.02),
    Problem(prompts=16, candidates=8, labels=16, blocks=1, entropy=2.0, overlap=0.25, epsilon=0.05),
)


@dataclass(frozen=True)
class Row:
    """A finished run. Gaps are in percent of the optimum; costs of the deterministic policy."""

    problem: str
    rule: str
    seed: int
    optimum: float
    cover_gap: float
    """Of the cover, where every run starts."""
    last_gap: float
    last_cost: float
    """Of the last iterate; a gap below 0 has a cost over the limit."""
    violation: float
    """max(0, cost - epsilon) of the last iterate."""
    best_gap: float
    """The smallest gap of an iterate within the limit."""
    mean_violation: float
    """max(0, cost - epsilon), averaged over the run."""
    steps_to_half: int
    """Environment steps until an iterate within the limit has half of the cover's gap; -1 if none has."""
    steps: int
    seconds: float

    def fits(self, optimum: float, cover_rate: float) -> bool:
        """Whether the row is of a problem with this optimum and this rate of the cover."""
        return abs(self.optimum - optimum) < 2e-6 and abs(self.cover_gap - 100 * (1 - cover_rate / optimum)) < 2e-4


CONSTANTS = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class Options:
    """What to run, and where the rows go."""

    out: Path = Path("docs/constrained.csv")
    figure: Path | None = None
    """Draw the rows that the file has; runs nothing."""
    seeds: tuple[int, ...] = (0, 1, 2)
    rules: tuple[str, ...] | None = None
    """Names of rules; all that the file of constants has if not given."""
    constants: Path = CONSTANTS
    """Rules and their constants, a YAML file."""
    problems: int = len(PROBLEMS)
    """The first so many."""
    iterations: int = 400
    copies: int = 64
    learning_rate: float = 0.02
    jobs: int = 1
    """Processes side by side."""


def run(problem: Problem, rule_name: str, seed: int, options: Options) -> Row:
    """Train with one rule."""
    torch.set_num_threads(1)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        # The last copy plays the mean: it tells what the deterministic policy is worth.
        env = MarginalTensorEnv(options.copies + 1, **problem.arguments(Path(folder)))
    task, blocks = env.single.problem, range(problem.blocks)
    if not task.rate_bound.exact:
        raise ValueError(f"{problem.name}: its optimum is not known")
    optimum = task.optimum
    rule = read_rules(options.constants)[rule_name](optimum.multiplier)
    generator = torch.Generator().manual_seed(seed)
    shown = [env._blocks[number].shown.double() for number in blocks]
    floor = torch.finfo(torch.float64).tiny
    means = [cover.clamp_min(floor).log().clamp_min(-env.bound).requires_grad_() for cover in shown]
    optimiser = torch.optim.Adam(means, lr=options.learning_rate)
    curve = []
    for iteration in range(options.iterations + 1):
        left = 1 - iteration / options.iterations
        std = 0.01 * 10**left
        optimiser.param_groups[0]["lr"] = options.learning_rate * max(left, 0.02)
        env.reset()
        rewards, weights, parents, noises = [], [], [], []
        spent = total = torch.zeros(env.num_envs, dtype=torch.float64)
        for number in blocks:
            half = torch.randn(options.copies // 2, means[number].shape[1], generator=generator, dtype=torch.float64)
            noise = torch.cat([half, -half, torch.zeros_like(half[:1])])
            weights.append(env._observation()["state_probs"].double())
            with torch.no_grad():
                _, reward, _, _, infos = env.step(means[number] + std * noise)
            discount = problem.gamma ** (number + 1)
            total = total + discount * reward
            spent = infos.get("final_info", infos)["cost_so_far"]
            credit = env.credit()
            rewards.append(torch.stack([credit[RATE], credit[COST]], -1).numpy())
            parents.append(credit[PARENT].numpy())
            noises.append(noise)
        curve.append((float(total[-1]), float(spent[-1])))
        if iteration == options.iterations:
            break
        stacked = np.stack(rewards)
        gained = tree_advantages(stacked, np.zeros_like(stacked), np.stack(parents), problem.gamma, 1.0)
        reward_weight, cost_weight = rule.weights(float(spent[:-1].mean()), problem.epsilon)
        scale = reward_weight + cost_weight
        for number in blocks:
            gains = torch.from_numpy(gained[number, :-1])
            combined = (reward_weight * gains[..., 0] - cost_weight * gains[..., 1]) / scale
            score = noises[number][:-1].view(*combined.shape, -1) / std
            means[number].grad = -(combined[..., None] * score).mean(0).flatten()[None]
        optimiser.step()
    return summarise(problem, rule_name, seed, curve, optimum.rate, options, time.perf_counter() - begin)


def summarise(
    problem: Problem,
    rule: str,
    seed: int,
    curve: list[tuple[float, float]],
    optimum: float,
    options: Options,
    seconds: float,
) -> Row:
    gaps = [100 * (1 - rate / optimum) for rate, _ in curve]
    over = [max(0.0, cost - problem.epsilon) for _, cost in curve]
    feasible = [gap for gap, excess in zip(gaps, over, strict=True) if excess <= FEASIBLE]
    done = [n for n, gap in enumerate(gaps) if over[n] <= FEASIBLE and gap <= gaps[0] / 2]
    per_iteration = options.copies * problem.blocks
    return Row(
        problem.name,
        rule,
        seed,
        round(optimum, 6),
        round(gaps[0], 4),
        round(gaps[-1], 4),
        round(curve[-1][1], 6),
        round(over[-1], 6),
        round(min(feasible), 4),
        round(statistics.mean(over), 6),
        done[0] * per_iteration if done else -1,
        options.iterations * per_iteration,
        round(seconds, 2),
    )


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        kinds = {
            one.name: {"str": str, "int": int, "float": float}[str(getattr(one.type, "__name__", one.type))]
            for one in fields(Row)
        }
        return [Row(**{name: kinds[name](value) for name, value in row.items()}) for row in csv.DictReader(file)]


def write_rows(path: Path, rows: list[Row], rules: Sequence[str]) -> None:
    order = {problem.name: number for number, problem in enumerate(PROBLEMS)}

    def write(temporary: Path) -> None:
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, [one.name for one in fields(Row)], lineterminator="\n")
            writer.writeheader()
            for row in sorted(rows, key=lambda row: (order[row.problem], rules.index(row.rule), row.seed)):
                writer.writerow(asdict(row))

    write_atomically(path, write)


def table(rows: list[Row], rules: Sequence[str]) -> Iterator[str]:
    """Medians over problems of the means over seeds; of the runs over the limit the share of all, and of steps the
    median of the runs that got there.
    """
    columns = (
        "rule",
        "gap of the last iterate, %",
        "best gap within the limit, %",
        "share of the cover's gap closed, %",
        "runs that end over the limit, %",
        "mean violation, % of the limit",
        "steps to half of the gap, median",
    )
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for rule in rules:
        mine = [row for row in rows if row.rule == rule]
        if not mine:
            continue
        by_problem = defaultdict(list)
        for row in mine:
            by_problem[row.problem].append(row)

        def median(value: Any, groups: Any = by_problem) -> float:
            return float(statistics.median(statistics.mean(map(value, group)) for group in groups.values()))

        limits = {problem.name: problem.epsilon for problem in PROBLEMS}
        closed = median(lambda row: 100 * (1 - row.best_gap / row.cover_gap))
        over = 100 * statistics.mean(row.violation > FEASIBLE for row in mine)
        excess = median(lambda row, limits=limits: 100 * row.mean_violation / limits[row.problem])
        reached = [row.steps_to_half for row in mine if row.steps_to_half >= 0]
        steps = f"{statistics.median(reached):,.0f} ({len(reached)} of {len(mine)})" if reached else "never"
        last, best = median(lambda row: row.last_gap), median(lambda row: row.best_gap)
        yield f"| {rule} | {last:.2f} | {best:.3f} | {closed:.1f} | {over:.0f} | {excess:.1f} | {steps} |"


def draw(rows: list[Row], rules: Sequence[str], path: Path) -> None:
    """Boxes of all runs of each rule: the gap that the best iterate within the limit left, and the last violation."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), constrained_layout=True)
    limits = {problem.name: problem.epsilon for problem in PROBLEMS}
    names = [rule for rule in rules if any(row.rule == rule for row in rows)]
    remaining = [[100 * row.best_gap / row.cover_gap for row in rows if row.rule == rule] for rule in names]
    violations = [[100 * row.violation / limits[row.problem] for row in rows if row.rule == rule] for rule in names]
    for axes, values, title in (
        (left, remaining, "gap that is left, % of the cover's gap: best iterate within the limit\n(logarithmic axis)"),
        (right, violations, "violation of the last iterate, % of the limit\n(logarithmic axis, linear below 1)"),
    ):
        axes.boxplot(values, orientation="horizontal", tick_labels=names, showfliers=True, flierprops={"markersize": 3})
        axes.set_xlabel(title)
        axes.set_xscale("symlog", linthresh=1)
        axes.invert_yaxis()
    runs = max(map(len, remaining), default=0)
    figure.suptitle(
        f"{runs} runs a rule; line: median, box: quartiles, whiskers: runs within 1.5 box lengths; lower is better"
    )
    save_figure(figure, path)


def main() -> None:
    options = parse(Options)
    counts = {"problems": (1, len(PROBLEMS)), "copies": (2, 4096), "jobs": (1, 1024)}
    within(options, seeds=SEEDS, iterations=MANY, learning_rate=(1e-9, 1e3), **counts)
    known = list(read_rules(options.constants))
    if unknown := set(options.rules or ()) - set(known):
        raise ValueError(f"--rules {' '.join(sorted(unknown))}: choose from {', '.join(known)}")
    check_output(options.out, "name another --out", ",".join(one.name for one in fields(Row)))
    if options.figure is not None:
        check_output(options.figure, "name another --figure", FIGURE_MARK)
        figure_format(options.figure)
    rows = read_rows(options.out)
    # Rows of rules that the constants no longer have come last.
    order = list(dict.fromkeys([*known, *(row.rule for row in rows)]))
    if options.figure is None:
        rows = run_missing(options, rows, order)
    else:
        draw(rows, order, options.figure)
    print("\n".join(table(rows, order)))


def run_missing(options: Options, rows: list[Row], rules: Sequence[str]) -> list[Row]:
    """Run what the file lacks, and what it has of another tree, whose optimum is another; tells the cost first."""
    certified = {problem.name: problem.certified() for problem in PROBLEMS[: options.problems]}
    kept = [row for row in rows if row.problem not in certified or row.fits(*certified[row.problem])]
    if len(kept) < len(rows):
        tell(f"{len(rows) - len(kept)} rows are of another tree and are left out")
    rows = kept
    known = {(row.problem, row.rule, row.seed) for row in rows}
    wanted = [
        (problem, rule, seed)
        for seed in options.seeds
        for problem in PROBLEMS[: options.problems]
        for rule in options.rules or read_rules(options.constants)
        if (problem.name, rule, seed) not in known
    ]
    if not wanted:
        return rows
    begin = time.perf_counter()
    rows.append(run(*wanted[0], options))
    each = time.perf_counter() - begin
    tell(f"{len(wanted)} runs of about {each:.0f} s: about {len(wanted) * each / options.jobs / 60:.0f} minutes")
    with ProcessPoolExecutor(options.jobs) as pool, ProgressBar(len(wanted), "run", 1) as bar:
        running = [pool.submit(run, *one, options) for one in wanted[1:]]
        for count, finished in enumerate(as_completed(running), start=2):
            rows.append(finished.result())
            bar.update(count)
            if count % 20 == 0:
                write_rows(options.out, rows, rules)
    write_rows(options.out, rows, rules)
    return rows


if __name__ == "__main__":
    run_benchmark(main)
