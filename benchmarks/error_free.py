"""Bits per token without a single error on the shipped tree, for classes of codes, and the planner's prefix codes.

python benchmarks/error_free.py               total variation 0: some minutes
python benchmarks/error_free.py --rounds 12   more rounds of column generation

For a decoder that knows the state, with any key. Where the package is not installed: PYTHONPATH=. before the command.
"""

import argparse

from command import run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    from agents.planner.prefix_codes import plan_prefix_codes
    from wm_env.law import state_reach
    from wm_env.optimum import solve
    from wm_env.theory.error_free import error_free_bits, error_free_bits_by_state
    from wm_env.tree import shipped_tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=float, nargs="*", default=[0.0], help="total variations a block")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of column generation")
    options = parser.parse_args()
    within(options, rounds=(1, 1000))
    tree = shipped_tree()
    covers, reach = [block.cover for block in tree.blocks], state_reach(tree)
    blocks, tokens = len(tree.blocks), tree.block_length * len(tree.blocks)
    print("| TV | by state | by state and key | no code at all |")
    print("| --- | --- | --- | --- |")
    for budget in (0.0, 0.01, 0.05, 0.1):
        by_state = error_free_bits_by_state(covers, reach, budget) / tree.block_length
        by_key = error_free_bits(covers, reach, budget) / tree.block_length
        print(f"| {budget:g} | {by_state:.4f} | {by_key:.4f} | {solve(tree, blocks * budget).rate / tokens:.4f} |")
    print("\n| TV budget | TV | prefix codes | no code at all |")
    print("| --- | --- | --- | --- |", flush=True)
    for budget in options.budgets:
        plan = plan_prefix_codes(tree, blocks * budget, rounds=options.rounds)
        rates = f"{plan.bits / tokens:.4f} | {plan.most / tokens:.4f}"
        print(f"| {budget:g} | {plan.cost / blocks:.1e} | {rates} |", flush=True)


if __name__ == "__main__":
    run_benchmark(main)
