"""Competing schemes beside ours, on the same states and on the same prompts; see docs/peers.md.

    python benchmarks/peers.py              both parts; figure to docs/figures/peers.png
    python benchmarks/peers.py --texts 0    block by block only
    python benchmarks/peers.py --no-block-by-block --texts 0 --block-texts 8 --device cuda

The last one writes texts with the scheme block, for which a CPU takes minutes each. Prints Markdown tables. Times are
processor times of one thread, on a GPU those of the wall.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from command import SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    from peer_blocks import (
        Coded,
        Figures,
        Knowledge,
        colours_code,
        discop_code,
        imec_code,
        measure,
        our_code,
        paper_code,
        shared_mass,
        sparsamp_code,
    )
    from peer_figure import Row, draw
    from peer_texts import compare_texts

    from wm_env.common.arguments import parse
    from wm_env.common.figures import FIGURE_MARK
    from wm_env.common.files import check_output
    from wm_env.synthetic import synthetic_tree
    from wm_env.tree import StateTree, shipped_tree

BUDGETS = (0.01, 0.05, 0.1)
OVERLAPS = (0.0, 0.25, 0.5, 0.75, 1.0)
LENGTHS = (1, 2, 3, 4)
DELTAS = (1.0, 2.0, 4.0)
REGIMES: tuple[Knowledge, ...] = ("state", "law")
DITHER_BITS = 4


@dataclass(frozen=True)
class Options:
    """What is compared, and on how much."""

    block_by_block: bool = True
    """Compare the schemes on single blocks, and draw the figure."""
    texts: int = 10
    """Whole texts of every scheme but block, each behind a prompt; 0 leaves them out."""
    block_texts: int = 0
    """Whole texts of the scheme block, behind the first of the same prompts; 0 leaves them out."""
    device: str = "cpu"
    """Where the model of the whole texts runs, such as cpu or cuda."""
    message_bytes: int = 16
    """Bytes of a message in a text."""
    draws: int = 32
    """Draws of shared randomness where a scheme's errors are averaged over it; a multiple of 16."""
    states: int = 30
    """States of the synthetic trees."""
    figure: Path = Path("docs/figures/peers.png")
    """Where the figure goes."""
    seed: int = 0
    """Draws of shared randomness, messages and synthetic trees."""


def exact_codes(tree: StateTree, bits: int, knowledge: Knowledge, options: Options) -> Iterable[Coded]:
    """The schemes that aim at total variation 0."""
    rng = np.random.default_rng([options.seed, bits])
    yield our_code(tree, bits, 0.0, knowledge)
    yield our_code(tree, bits, 0.0, knowledge, DITHER_BITS)
    yield paper_code(tree, bits, 0.0)
    yield imec_code(tree, bits)
    yield sparsamp_code(tree, bits, options.draws, rng)
    yield discop_code(tree, bits, options.draws, rng)


def budget_codes(tree: StateTree, bits: int, knowledge: Knowledge, options: Options) -> Iterable[Coded]:
    """The schemes that trade total variation for errors."""
    for budget in BUDGETS:
        yield our_code(tree, bits, budget, knowledge)
        yield paper_code(tree, bits, budget)
        yield imec_code(tree, bits, budget)
    rng = np.random.default_rng([options.seed, bits, 1])
    for delta in DELTAS:
        yield colours_code(tree, bits, delta, options.draws, rng)


def tabulate(tree: StateTree, bits: int, regime: Knowledge, codes: Iterable[Coded], overlap: float = 0.0) -> list[Row]:
    """Measure and print, a line for every scheme."""
    rows = []
    for coded in codes:
        figures = measure(tree, coded, regime)
        print(line(tree, bits, regime, coded, figures), flush=True)
        rows.append(Row(coded.name, bits, regime, overlap, figures))
    return rows


HEADER = (
    "| l | decoder knows | scheme | BER | block error | TV | TV, 2^l keys | key bits | bits/token | utilisation | "
    "blocks/s | draws |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(tree: StateTree, bits: int, regime: Knowledge, coded: Coded, figures: Figures) -> str:
    """A row of the tables; bits per token and utilisation are those of the information that arrives."""
    draws = str(coded.draws) if coded.draws else "exact"
    return (
        f"| {bits} | {regime} | {coded.name} | {figures.ber:.4f} | {figures.bler:.4f} | {rounded(figures.tv)} | "
        f"{rounded(figures.tv_short)} | {coded.key_bits} | {figures.information / tree.block_length:.3f} | "
        f"{figures.information / figures.entropy:.1%} | {coded.blocks_per_second:,.0f} | {draws} |"
    )


def rounded(variation: float) -> str:
    """A total variation; what float64 makes of 0 is shown as 0."""
    return "0" if variation < 1e-12 else f"{variation:.4f}"


def compare_blocks(options: Options) -> None:
    """The part block by block: three tables and the figure."""
    tree = shipped_tree()
    print(f"\nShipped tree, no budget; mass on texts that several states share: {shared_mass(tree):.1%}\n\n{HEADER}")
    exact = [
        row
        for bits in LENGTHS
        for regime in REGIMES
        for row in tabulate(tree, bits, regime, exact_codes(tree, bits, regime, options))
    ]
    check_imec(exact)
    print(f"\nShipped tree, total-variation budgets {', '.join(map(str, BUDGETS))} per block\n\n{HEADER}")
    budgets = {regime: tabulate(tree, 3, regime, budget_codes(tree, 3, regime, options)) for regime in REGIMES}
    overlaps = []
    for overlap in OVERLAPS:
        synthetic = synthetic_tree(options.states, blocks=1, overlap=overlap, seed=options.seed)
        print(f"\nSynthetic, {options.states} states of 4 bits, overlap {overlap:.0%}\n\n{HEADER}")
        for regime in REGIMES:
            codes = exact_codes(synthetic, 3, regime, options)
            overlaps += tabulate(synthetic, 3, regime, codes, overlap)
    shown = [row for row in overlaps if row.knowledge == "law" and row.figures.tv < 1e-9]
    zero = [row for row in exact if row.bits == 3 and row.knowledge == "state" and row.name in FIGURE_ORIGINS]
    draw(exact, zero + budgets["state"], shown, options.figure)
    print(f"\nFigure: {options.figure}")


FIGURE_ORIGINS = ("coded plan + polar", "GP plan + polar")
"""Schemes whose curve over the budget begins at 0."""


def check_imec(rows: Sequence[Row]) -> None:
    """Print block errors beside iMEC's, with as many key bits and at TV 0."""
    print("\n| l | decoder knows | iMEC | ours | smaller |\n|---|---|---|---|---|")
    for row in rows:
        if row.name == "iMEC":
            ours = next(
                other
                for other in rows
                if (other.name, other.bits, other.knowledge) == ("coded plan + polar", row.bits, row.knowledge)
            )
            print(
                f"| {row.bits} | {row.knowledge} | {row.figures.bler:.6f} | {ours.figures.bler:.6f} | "
                f"{'yes' if ours.figures.bler < row.figures.bler else 'NO'} |"
            )


def main() -> None:
    """Compare and print."""
    options = parse(Options, description=__doc__)
    within(options, texts=(0, 10**9), block_texts=(0, 10**9), message_bytes=(1, 4096), draws=(16, 4096))
    within(options, states=(1, 10_000), seed=SEEDS)
    if options.draws % 16:
        raise ValueError(f"--draws {options.draws}: a multiple of 16 is needed")
    check_output(options.figure, "name another --figure", FIGURE_MARK)
    torch.set_num_threads(1)
    if options.block_by_block:
        compare_blocks(options)
    if options.texts or options.block_texts:
        print("\nWhole texts\n")
        for text in compare_texts(
            options.texts, options.block_texts, options.message_bytes, options.seed, options.device
        ):
            print(text, flush=True)


if __name__ == "__main__":
    run_benchmark(main)
