"""Rates and errors behind a channel that edits texts, on the shipped tree.

python benchmarks/noise.py               all tables: an hour on a laptop CPU
python benchmarks/noise.py --budgets 0   total variation 0 only: minutes
python benchmarks/noise.py --budgets 0 --channels substitution --noises 0.2 --labels 256 --iterations 100 --parts
                                         the planner with many labels, and the limit for unknown states: ten minutes

The planner's rate I(U;Y) - I(U;S) beside the bound on all laws; errors of the coded planner's 3 bits after edits.
Where the package is not installed: PYTHONPATH=. before the command.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor

from command import run_benchmark

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    from agents.planner.coded import plan_coded
    from agents.planner.noisy import plan_noisy
    from polar.code.construction import BlockCode
    from polar.evaluation.edits import edited_error_rates
    from wm_env.criteria.channel import CHANNELS, tree_channels
    from wm_env.criteria.noise import noisy_rate_bound
    from wm_env.theory.channel_capacity import MOST_MAPS
    from wm_env.theory.noisy_groups import part_rate, parts_of
    from wm_env.tree import shipped_tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=float, nargs="*", default=[0.0, 0.01, 0.05], help="total variations a block")
    parser.add_argument("--iterations", type=int, default=40, help="updates of the planner at each multiplier")
    parser.add_argument("--labels", type=int, default=None, help="labels of the planner; by default a proper colouring")
    parser.add_argument("--channels", nargs="*", default=CHANNELS, choices=CHANNELS)
    parser.add_argument("--noises", type=float, nargs="*", default=[0.0, 0.01, 0.05, 0.1, 0.2], help="tokens edited")
    parser.add_argument("--parts", action="store_true", help="also the tighter limit at total variation 0")
    parser.add_argument("--part-maps", type=int, default=MOST_MAPS, help="most maps of a part of several states")
    parser.add_argument("--processes", type=int, default=1, help="processes at once, for the tighter limit")
    options = parser.parse_args()
    tree = shipped_tree()
    tokens, blocks = tree.block_length * len(tree.blocks), len(tree.blocks)
    law = plan_coded(tree, 3, blocks * 0.047).law
    codes = [BlockCode(tree.block_length, positions) for positions in law.message_sets or ()]
    print("| channel | tokens edited | bit error, 3 bits | block error |\n| --- | --- | --- | --- |")
    by_noise = {
        (name, noise): tree_channels(tree, name, noise) for name in options.channels for noise in options.noises
    }
    for (name, noise), channels in by_noise.items():
        bit, block = edited_error_rates(law, codes, channels)
        print(f"| {name} | {noise:g} | {bit:.4f} | {block:.4f} |", flush=True)
    columns = ("channel", "tokens edited", "TV budget", "TV", "planner, bits per token", "bound", "share")
    print("\n| " + " | ".join((*columns, *(("bound, state unknown", "share") if options.parts else ()))) + " |")
    print("|" + " --- |" * (9 if options.parts else 7))
    for (name, noise), channels in by_noise.items():
        for budget in options.budgets:
            bound = noisy_rate_bound(tree, channels, blocks * budget)
            plan = plan_noisy(tree, channels, blocks * budget, labels=options.labels, iterations=options.iterations)
            row = (
                f"| {name} | {noise:g} | {budget:g} | {plan.cost / blocks:.4f} | {plan.rate / tokens:.5f} | "
                f"{bound.rate / tokens:.5f} | {plan.rate / bound.rate:.4f} |"
            )
            if options.parts:
                with ProcessPoolExecutor(options.processes) as pool:
                    tighter = sum(pool.map(part_rate, parts_of(tree, channels, options.part_maps)))
                row += f" {tighter / tokens:.5f} | {plan.rate / tighter:.4f} |" if budget == 0 else " | |"
            print(row, flush=True)


if __name__ == "__main__":
    run_benchmark(main)
