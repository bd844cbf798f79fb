"""The coded planner against the limits of one block, the paper's recipe and fixed lengths, on the shipped tree.

python benchmarks/coded.py                     limits, codes that steer, lengths that follow the state: minutes
python benchmarks/coded.py --run RUN ...       also 3 bits in 8 tokens of these runs, trained with train.py

Everything goes through `polar.evaluation.exact`: the encoder, decoders and enumeration of evaluate.py. A TV budget t is
a mean over blocks; the planner's epsilon is a sum, epsilon = B t. Limits are taken at the law of states that the coded
blocks themselves lead to. Where the package is not installed: PYTHONPATH=. before the command.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from command import run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np

    from agents.planner.adaptive import plan_adaptive
    from agents.planner.coded import plan_coded
    from polar.code.adaptive import AdaptiveSettings
    from polar.code.decoders import Knowledge, observations
    from polar.evaluation.adaptive import evaluate_adaptive
    from polar.evaluation.exact import evaluate
    from polar.evaluation.points import CodeFigures
    from polar.evaluation.report import measured
    from polar.evaluation.settings import EvaluationSettings
    from wm_env.law import JointLaw
    from wm_env.runs import load_run
    from wm_env.theory.limits import Limit, law_limit, tree_limit
    from wm_env.theory.steering import steered_limit
    from wm_env.tree import StateTree, shipped_tree

BUDGETS = (0.0, 0.01, 0.05, 0.1)
DITHER_BITS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, nargs="*", default=[], help="runs to compare at 3 message bits")
    parser.add_argument("--transmissions", type=int, default=1000, help="Monte Carlo texts of every point")
    options = parser.parse_args()
    within(options, transmissions=(0, 10**9))
    tree = shipped_tree()
    laws = load_laws(tree, options.run)
    show_limits(tree, options.transmissions)
    show_steering(tree)
    show_recipes(tree, laws)
    show_lengths(tree, options.transmissions)


def show_limits(tree: StateTree, transmissions: int) -> None:
    """Block and bit errors of the planner's law with a pad of l bits, and with 4 bits of dither beyond it."""
    print("| state | l | TV budget | TV | block error | limit | bit error | measured | floor | with dither | limit |")
    print("|" + " --- |" * 11)
    for knowledge in ("marginal", "path"):
        for bits in (1, 2, 3, 4):
            for budget in BUDGETS:
                law = plan(tree, bits, budget, knowledge)
                limit = law_limit(law, bits)
                keys = (1 << bits, 1 << bits + DITHER_BITS)
                settings = EvaluationSettings(
                    (bits,), keys, ("map",), (knowledge,), ("dither",), transmissions=transmissions
                )
                pad, dither = evaluate(tree, law, settings)
                print(
                    f"| {'unknown' if knowledge == 'marginal' else 'path'} | {bits} | {budget:g} | {pad.tv_mean:.4f} | "
                    f"{pad.bler:.4f} | {limit.block_error(pad.tv_mean):.4f} | {pad.ber:.4f} | {measured(pad)} | "
                    f"{pad_floor(limit, pad.tv_mean):.4f} | {dither.bler:.4f} | "
                    f"{limit.shared_key_block_error(dither.tv_mean):.4f} |",
                    flush=True,
                )


def pad_floor(limit: Limit, budget: float) -> float:
    """No code with a pad of l bits has a smaller bit error rate.

    A wrong block has at least one wrong bit, and P(more than d wrong bits) is at least what `distance_masses` says.
    """
    beyond = np.cumsum(limit.distance_masses[::-1])[::-1][2:]
    bits = len(limit.distance_masses) - 1
    return (limit.block_error(budget) + float(np.maximum(beyond - budget, 0).sum())) / bits


def show_steering(tree: StateTree) -> None:
    """The least block error with any key: with the states as the model reaches them, and of codes that steer."""
    print("\n| l | TV budget | fixed states | all codes |\n| --- | --- | --- | --- |")
    for bits in (3, 4):
        fixed = tree_limit(tree, bits)
        for budget in BUDGETS:
            steered = steered_limit(tree, bits, len(tree.blocks) * budget).block_error
            print(f"| {bits} | {budget:g} | {fixed.shared_key_block_error(budget):.4f} | {steered:.4f} |", flush=True)


def load_laws(tree: StateTree, runs: Sequence[Path]) -> dict[str, JointLaw]:
    """The laws of run folders, which must have this tree, by the names of the folders."""
    found = {str(path): load_run(path) for path in runs}
    for name, run in found.items():
        if run.tree.fingerprint != tree.fingerprint:
            raise ValueError(f"{name} has another tree than the shipped one: leave it out")
    return {name: run.law for name, run in found.items()}


def show_recipes(tree: StateTree, laws: Mapping[str, JointLaw]) -> None:
    """3 bits in 8 tokens with 8 keys; D is the block error plus the TV, at least 1 - E[P0] for every code."""
    print(f"\n3 bits in 8 tokens, 8 keys, successive decoding; 1 - E[P0] = {tree_limit(tree, 3).block_error(0):.4f}\n")
    print("| law | TV | bit error | block error | D |\n| --- | --- | --- | --- | --- |")
    planned = {f"planner, TV budget {budget:g}": plan(tree, 3, budget, "marginal") for budget in BUDGETS}
    for name, law in {**laws, **planned}.items():
        point = evaluate(tree, law, EvaluationSettings((3,), (8,), ("sc",), ("marginal",), transmissions=0))[0]
        print(
            f"| {name} | {point.tv_mean:.4f} | {point.ber:.5f} | {point.bler:.4f} | {point.bler + point.tv_mean:.4f} |"
        )


def show_lengths(tree: StateTree, transmissions: int) -> None:
    """Lengths that follow the state, planned free of errors, against the longest fixed length free of errors."""
    print("\n| lengths | TV | bits per token | limit | bit error | measured |")
    print("|" + " --- |" * 6)
    for dither_bits in (0, DITHER_BITS):
        for budget in BUDGETS:
            law = plan_adaptive(tree, len(tree.blocks) * budget, dither_bits=dither_bits).law
            adapted = evaluate_adaptive(tree, law, AdaptiveSettings(dither_bits=dither_bits), transmissions)
            rate, limit = adapted.mean_bits / tree.block_length, adapted.limit / tree.block_length
            print(
                f"| auto, {dither_bits} bits of dither, TV budget {budget:g} | {adapted.tv_mean:.4f} | {rate:.4f} | "
                f"{limit:.4f} | {adapted.ber:.5f} | {measured_or_none(adapted)} |",
                flush=True,
            )
    for bits in (1, 2, 3, 4):
        for budget in (0.0, 0.01):
            law = plan(tree, bits, budget, "path")
            settings = EvaluationSettings((bits,), (1 << bits,), ("map",), ("path",), transmissions=transmissions)
            point = evaluate(tree, law, settings)[0]
            rate = point.rate_bits_per_token
            print(
                f"| {bits} bits, TV budget {budget:g} | {point.tv_mean:.4f} | {rate:.4f} | | {point.ber:.5f} | "
                f"{measured_or_none(point)} |",
                flush=True,
            )


def plan(tree: StateTree, bits: int, budget: float, knowledge: Knowledge) -> JointLaw:
    """The planner's law at a mean TV per block, for a decoder with this knowledge of the state."""
    seen = [numbers.numpy() for numbers in observations(tree, knowledge)]
    return plan_coded(tree, bits, len(tree.blocks) * budget, seen=seen).law


def measured_or_none(point: CodeFigures) -> str:
    return "no bits sent" if point.ber_mc is None else measured(point)


if __name__ == "__main__":
    run_benchmark(main)
