"""Messages over many blocks at total variation 0, the total variation of whole texts, and what a budget for it buys.

python benchmarks/long_texts.py               all tables: minutes
python benchmarks/long_texts.py --texts 0     limits and bounds only: a minute

The source is stationary: every block draws its state from the states of the shipped tree, as often as the model reaches
them, and both ends know it. A text of n blocks has 8 n tokens. Where the package is not installed: PYTHONPATH=. before
the command.
"""

import argparse
import math
from collections.abc import Sequence

from command import run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    from scipy.special import entr
    from scipy.stats import beta

    from agents.planner.coded import plan_coded
    from polar.text.offset_coding import block_weights, decode_text, draw_offset, encode_text
    from wm_env.common.arrays import Floats
    from wm_env.information import total_variation
    from wm_env.law import induced_cover, state_reach
    from wm_env.optimum import solve_blocks
    from wm_env.theory.long_texts import longest_message, pinsker_bound, product_variation, tilt_texts
    from wm_env.tree import StateTree, shipped_tree

BLOCK_ERROR = 1e-3
LENGTHS = (1, 2, 4, 8, 16, 64, 256, 1024)
TEXTS = (2, 4, 8, 16, 32, 64, 128)
BUDGET = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2000, help="texts that are sent and read at each length")
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS, help="blocks of a text, in the first table")
    options = parser.parse_args()
    within(options, texts=(0, 10**6), lengths=(1, 1024))
    tree = shipped_tree()
    covers = np.concatenate([block.cover for block in tree.blocks])
    chances = np.concatenate(state_reach(tree)) / len(tree.blocks)
    show_messages(covers, chances, tree.block_length, options.texts, options.lengths)
    show_variations(tree)
    show_budgets(covers, chances, tree.block_length)


def show_messages(covers: Floats, chances: Floats, length: int, texts: int, lengths: Sequence[int]) -> None:
    """Bits per token at a block error of 1e-3: reached and limit at TV 0, limit at TV 0.05, errors measured."""
    print(
        "| n | bits, TV 0 | bits per token | limit | limit at TV 0.05 | wrong texts, 95 % interval |\n|" + " --- |" * 6
    )
    rng = np.random.default_rng(0)
    weights = [block_weights(cover) for cover in covers]
    for blocks in lengths:
        exact = longest_message(covers, chances, blocks, BLOCK_ERROR)
        looser = longest_message(covers, chances, blocks, BLOCK_ERROR, 0.05)
        bits, tokens = exact.reached, blocks * length
        count = min(texts, texts * 64 // blocks)
        wrong = 0
        for _ in range(count):
            laws = [weights[state] for state in rng.choice(len(covers), size=blocks, p=chances)]
            offset = draw_offset(blocks, rng)
            message = int.from_bytes(rng.bytes(bits // 8 + 1), "big") >> 8 - bits % 8
            text = encode_text(laws, message, bits, offset)
            wrong += decode_text(laws, text, bits, offset) != message
        print(
            f"| {blocks} | {bits} | {bits / tokens:.4f} | {exact.limit / tokens:.4f} | {looser.limit / tokens:.4f} | "
            f"{interval(wrong, count)} |",
            flush=True,
        )


def interval(wrong: int, count: int) -> str:
    """Share of wrong texts with the interval of Clopper and Pearson."""
    if not count:
        return "not sent"
    low = beta.ppf(0.025, wrong, count - wrong + 1) if wrong else 0.0
    high = beta.ppf(0.975, wrong + 1, count - wrong) if wrong < count else 1.0
    return f"{wrong / count:.4f} [{low:.4f}, {high:.4f}] of {count}"


def show_variations(tree: StateTree) -> None:
    """Total variation of n blocks of the coded planner's 3-bit law: sum, exact between two bounds, Pinsker."""
    law = plan_coded(tree, 3, 2 * 0.047).law
    covers = np.concatenate([block.cover.numpy() for block in law.blocks])
    laws = np.concatenate([induced_cover(block).numpy() for block in law.blocks])
    chances = np.concatenate([block.state_probs.numpy() for block in law.blocks]) / len(law.blocks)
    of_block = float(sum(float(b.state_probs @ total_variation(induced_cover(b), b.cover)) for b in law.blocks)) / 2
    print("\n| n | sum | exact, between | Pinsker |\n| --- | --- | --- | --- |")
    for blocks in TEXTS:
        exact = product_variation(laws, covers, chances, blocks)
        print(
            f"| {blocks} | {min(1.0, blocks * of_block):.4f} | {exact.lower:.4f} and {exact.upper:.4f} | "
            f"{pinsker_bound(laws, covers, chances, blocks):.4f} |",
            flush=True,
        )


def show_budgets(covers: Floats, chances: Floats, length: int) -> None:
    """Rate that a total variation of 0.1 of the whole text buys: shared out over the blocks' sums, or by tilting."""
    print(f"\nGain of rate, bits per token, at a total variation of {BUDGET:g} of the text")
    print("| n | budget for the sum | tilting | a | exact, between |\n| --- | --- | --- | --- | --- |")

    def entropy(laws: Floats) -> float:
        return float(chances @ entr(laws).sum(1)) / math.log(2)

    for blocks in TEXTS:
        shared = solve_blocks(chances, [covers], [np.full(covers.shape, -1)], BUDGET / blocks)
        tilted = tilt_texts(covers, chances, blocks, BUDGET)
        print(
            f"| {blocks} | {(shared.rate - entropy(covers)) / length:.5f} | "
            f"{(entropy(tilted.laws) - entropy(covers)) / length:.5f} | {tilted.exponent:.4f} | "
            f"{tilted.variation.lower:.4f} and {tilted.variation.upper:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    run_benchmark(main)
