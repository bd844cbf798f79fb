"""Rates and errors behind a channel that edits texts, on the shipped tree.

python benchmarks/noise.py               all tables: an hour on a laptop CPU
python benchmarks/noise.py --budgets 0   total variation 0 only: minutes

The planner's rate I(U;Y) - I(U;S) beside the bound on all laws; errors of the coded planner's 3 bits after edits.
Where the package is not installed: PYTHONPATH=. before the command.
"""

import argparse

from command import run_benchmark

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    from agents.planner.coded import plan_coded
    from agents.planner.noisy import plan_noisy
    from polar.code.construction import BlockCode
    from polar.evaluation.edits import edited_error_rates
    from wm_env.criteria.channel import CHANNELS, tree_channels
    from wm_env.criteria.noise import noisy_rate_bound
    from wm_env.tree import shipped_tree

NOISES = (0.0, 0.01, 0.05, 0.1, 0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=float, nargs="*", default=[0.0, 0.01, 0.05], help="total variations a block")
    parser.add_argument("--iterations", type=int, default=40, help="updates of the planner at each multiplier")
    options = parser.parse_args()
    tree = shipped_tree()
    tokens, blocks = tree.block_length * len(tree.blocks), len(tree.blocks)
    law = plan_coded(tree, 3, blocks * 0.047).law
    codes = [BlockCode(tree.block_length, positions) for positions in law.message_sets or ()]
    print("| channel | tokens edited | bit error, 3 bits | block error |\n| --- | --- | --- | --- |")
    by_noise = {(name, noise): tree_channels(tree, name, noise) for name in CHANNELS for noise in NOISES}
    for (name, noise), channels in by_noise.items():
        bit, block = edited_error_rates(law, codes, channels)
        print(f"| {name} | {noise:g} | {bit:.4f} | {block:.4f} |", flush=True)
    print("\n| channel | tokens edited | TV budget | TV | planner, bits per token | bound | share |")
    print("|" + " --- |" * 7)
    for (name, noise), channels in by_noise.items():
        for budget in options.budgets:
            bound = noisy_rate_bound(tree, channels, blocks * budget)
            plan = plan_noisy(tree, channels, blocks * budget, iterations=options.iterations)
            print(
                f"| {name} | {noise:g} | {budget:g} | {plan.cost / blocks:.4f} | {plan.rate / tokens:.4f} | "
                f"{bound.rate / tokens:.4f} | {plan.rate / bound.rate:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    run_benchmark(main)
