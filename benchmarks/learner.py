"""Algorithm 1 by automatic differentiation and in closed form, and the planner, side by side in one process.

python benchmarks/learner.py                          forms, planner and growth on the CPU
python benchmarks/learner.py --device cuda            the same on a GPU
python benchmarks/learner.py --iterations 6000        also a whole run at the paper's settings

Prints Markdown tables. Forms are timed in turn, round by round, and compared by the median of the ratios within a
round, so that a busy machine slows all of them; on the CPU processor time stands beside wall-clock time. Where the
package is not installed: PYTHONPATH=. before the command.
"""

import argparse
import datetime
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from command import MANY, SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import torch

    from agents.common.evaluation import evaluate_policy
    from agents.planner.rate import plan
    from agents.primal_dual.algorithm import AutogradLagrangian, PrimalDual, initial_policy
    from agents.primal_dual.closed_form import ClosedFormLagrangian
    from agents.primal_dual.settings import LearnerSettings
    from wm_env.common.foreign.devices import usable_device
    from wm_env.criteria.objectives import Objective, make_objective
    from wm_env.problem import Problem
    from wm_env.synthetic import synthetic_tree
    from wm_env.tree import StateTree, shipped_tree

EPSILON = 0.1
IN_A_ROW = 5
"""Iterations that a form takes before the next form has its turn: in a run, too, one follows another."""

Step = Callable[[], object]


@dataclass(frozen=True)
class Seconds:
    """How long a call took, on the average of a few."""

    wall: float
    processor: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the learners compute")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of an operation")
    parser.add_argument("--labels", type=int, default=256, help="M, labels of the comparison and of the run")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of the comparison")
    parser.add_argument("--iterations", type=int, default=0, help="T, iterations of a whole run; 0 for none")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial policy")
    options = parser.parse_args()
    within(options, threads=(1, 1024), labels=(2, 256), rounds=MANY, iterations=(0, 10**9), seed=SEEDS)
    usable_device(options.device)
    torch.set_num_threads(options.threads)
    hardware = torch.cuda.get_device_name() if options.device == "cuda" else f"{platform.machine()} CPU"
    print(f"{hardware}, {options.threads} threads, torch {torch.__version__}, {datetime.date.today()}\n")
    tree = shipped_tree()
    compare_forms(tree, options.labels, options.device, options.rounds)
    time_planner(tree, options.labels)
    show_growth(options.device)
    if options.iterations:
        run_whole(tree, options.labels, options.device, options.iterations, options.seed)


def compare_forms(tree: StateTree, labels: int, device: str, rounds: int) -> None:
    """One iteration of every form, interleaved."""
    plain = "autograd, float64"
    steps: dict[str, Step] = {
        plain: learner(tree, labels, device, torch.float64, closed=False).step,
        "autograd, float32": learner(tree, labels, device, torch.float32, closed=False).step,
        "closed form, float64": learner(tree, labels, device, torch.float64, closed=True).step,
        "closed form, float32": learner(tree, labels, device, torch.float32, closed=True).step,
    }
    for step in steps.values():
        seconds(step, device)
    times = [{name: seconds(step, device, IN_A_ROW) for name, step in steps.items()} for _ in range(rounds)]

    def ratio(name: str, other: str) -> str:
        wall, processor = (
            statistics.median(getattr(t[other], kind) / getattr(t[name], kind) for t in times)
            for kind in ("wall", "processor")
        )
        return f"{wall:.2f} ({processor:.2f})" if device == "cpu" else f"{wall:.2f}"

    print(
        f"One iteration, {tree.states} states, Q = {tree.meta.candidates}, M = {labels}, {rounds} rounds of {IN_A_ROW}."
        "\nRatios of wall-clock time, on the CPU in brackets those of processor time:\n"
    )
    print("| form | median ms | times as fast as autograd, float64 | as autograd, float32 |\n| --- | --- | --- | --- |")
    for name in steps:
        median = 1e3 * statistics.median(t[name].wall for t in times)
        print(f"| {name} | {median:.1f} | {ratio(name, plain)} | {ratio(name, 'autograd, float32')} |")


def time_planner(tree: StateTree, labels: int) -> None:
    """The exact optimum of the same problem."""
    times = [seconds(lambda: plan(tree, EPSILON, 1.0, labels), "cpu").wall for _ in range(9)]
    print(f"\nPlanner, the same problem, on the CPU: {1e3 * statistics.median(times):.0f} ms for the exact optimum\n")


def show_growth(device: str) -> None:
    """Time of an iteration and of the planner against prompts, candidates and labels, each over a factor of 16."""
    print(
        "Growth of the closed form in float32 and of the planner, which has at least 32 labels here. Linear means\n"
        "that a column of ns stays; an entry is a (state, candidate, label), a candidate a (state, candidate):\n"
    )
    print(
        "| varied | value | N x Q x M | iteration, ms | ns per entry "
        "| planner, ms | ns per entry | ns per candidate |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    for prompts in (8, 16, 32, 64, 128):
        tree = synthetic_tree(prompts, 2, 20, entropy=4.0, overlap=0.1)
        show_size("prompts (B = 2, Q = 20, M = 128)", prompts, tree, 128, device)
    for candidates in (4, 8, 16, 32, 64):
        tree = synthetic_tree(1000, 1, candidates, entropy=1.8, overlap=0.25)
        show_size("Q (1000 states, B = 1, M = 128)", candidates, tree, 128, device)
    tree = synthetic_tree(1000, 1, 20, entropy=4.0, overlap=0.1)
    for labels in (16, 32, 64, 128, 256):
        show_size("M (1000 states, B = 1, Q = 20)", labels, tree, labels, device)


def show_size(varied: str, value: int, tree: StateTree, labels: int, device: str) -> None:
    """One row of the table of growth: medians of 9."""
    step = learner(tree, labels, device, torch.float32, closed=True).step
    seconds(step, device)
    iteration = statistics.median(seconds(step, device).wall for _ in range(9))
    planning = statistics.median(
        seconds(lambda: plan(tree, EPSILON, 1.0, max(labels, 32)), "cpu").wall for _ in range(9)
    )
    candidates = tree.states * tree.meta.candidates
    entries = candidates * labels
    print(
        f"| {varied} | {value} | {entries:,} | {1e3 * iteration:.1f} | {1e9 * iteration / entries:.2f} "
        f"| {1e3 * planning:.1f} | {1e9 * planning / entries:.2f} | {1e9 * planning / candidates:.0f} |"
    )


def run_whole(tree: StateTree, labels: int, device: str, iterations: int, seed: int) -> None:
    """Algorithm 1 from start to end, with the best of the iterates that meet the limit, looked at every 100."""
    problem, objective = setup(tree, labels)
    running = learner(tree, labels, device, torch.float32, closed=True, seed=seed)
    best = evaluated = 0.0
    start = time.perf_counter()
    for _ in range(iterations // 100):
        for _ in range(100):
            running.step()
        before = time.perf_counter()
        evaluation = evaluate_policy(problem, objective, running.policy)
        if evaluation.feasible:
            best = max(best, evaluation.rate)
        evaluated += time.perf_counter() - before
    total = time.perf_counter() - start
    print(
        f"\n{running.iteration} iterations, M = {labels}, seed {seed}: {total - evaluated:.1f} s, "
        f"and {evaluated:.1f} s of exact evaluations. Best rate with cost <= {EPSILON}: {best:.4f} bits, "
        f"{100 * best / problem.rate_bound.rate:.2f} % of the optimum; last iterate {evaluation.rate:.4f} bits at cost "
        f"{evaluation.cost:.4f}, multiplier {float(running.multiplier):.3f} (optimum {problem.optimum.multiplier:.3f})"
    )


def learner(tree: StateTree, labels: int, device: str, dtype: torch.dtype, closed: bool, seed: int = 0) -> PrimalDual:
    problem, objective = setup(tree, labels)
    settings = LearnerSettings()
    policy = initial_policy(problem, labels, settings.policy, seed).to(device, dtype)
    if closed:
        return PrimalDual(policy, ClosedFormLagrangian(problem, objective, labels, dtype, device), EPSILON, settings)
    return PrimalDual(policy, AutogradLagrangian(problem, objective, dtype, device), EPSILON, settings)


def setup(tree: StateTree, labels: int) -> tuple[Problem, Objective]:
    return Problem(tree, EPSILON, 1.0, labels), make_objective("gp", tree.block_length, labels)


def seconds(step: Step, device: str, repeats: int = 1) -> Seconds:
    """Time of one of `repeats` calls in a row."""
    if device == "cuda":
        torch.cuda.synchronize()
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return Seconds((time.perf_counter() - wall) / repeats, (time.process_time() - processor) / repeats)


if __name__ == "__main__":
    run_benchmark(main)
