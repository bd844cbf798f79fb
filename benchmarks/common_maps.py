"""Is U within reach of a decoder that knows only the law? One linear programme for each group of states that share.

python benchmarks/common_maps.py                   four bits, groups of up to 21 states: two minutes
python benchmarks/common_maps.py --largest 49      all groups of the shipped tree: three minutes

For every group: the success probability of the coded planner's law with 4 bits of dither, by enumeration; the most that
its 16 maps of symbols to words allow if they need not be equally likely; and with further maps
(`wm_env.theory.common_maps`), which takes more key. All at total variation 0, weighted with the probability of the
states in their block. Where the package is not installed: PYTHONPATH=. before the command.
"""

import argparse

from command import run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np

    from agents.planner.coded import plan_coded
    from agents.planner.word_maps import confusable_states
    from wm_env.common.arrays import Floats, Ints
    from wm_env.law import BlockLaw, symbol_label_probs
    from wm_env.theory.common_maps import common_map_success
    from wm_env.theory.limits import shared_key_success
    from wm_env.tree import shipped_tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--message-bits", type=int, default=4)
    parser.add_argument("--largest", type=int, default=21, help="most states of a group")
    parser.add_argument("--rounds", type=int, default=30, help="most maps to add")
    options = parser.parse_args()
    within(options, message_bits=(1, 4), largest=(2, 10**9), rounds=(0, 10**9))
    tree = shipped_tree()
    law = plan_coded(tree, options.message_bits, 0.0).law
    print("| block | states | probability | 1 - U | planner | its maps, any odds | with further maps |")
    print("|" + " --- |" * 7)
    for number, block in enumerate(law.blocks):
        show_block(number, block, options.message_bits, options.largest, options.rounds)


def show_block(number: int, block: BlockLaw, bits: int, largest: int, rounds: int) -> None:
    """One row for every group of several states, then their sum; block errors are shares of the block's."""
    cover, weights = block.cover.numpy(), block.state_probs.numpy()
    maps, right = decode(block, bits)
    total = np.zeros(5)
    group = confusable_states(cover, block.symbol.numpy())
    for members in sorted((np.flatnonzero(group == each) for each in np.unique(group)), key=len):
        if not 1 < len(members) <= largest:
            continue
        inside, seen = np.unique(block.symbol.numpy()[members], return_inverse=True)
        arguments = cover[members], seen.reshape(len(members), -1), weights[members], bits, maps[:, inside]
        mass = float(weights[members].sum())
        errors = [
            mass - float(weights[members] @ shared_key_success(cover[members], bits)),
            mass - float(weights[members] @ right[members]),
            mass - common_map_success(*arguments, rounds=0),
            mass - common_map_success(*arguments, rounds=rounds),
        ]
        total += [mass, *errors]
        print(row(number, str(len(members)), mass, errors), flush=True)
    print(row(number, "together", total[0], total[1:].tolist()), flush=True)


def row(number: int, states: str, mass: float, errors: list[float]) -> str:
    return f"| {number + 1} | {states} | {mass:.4f} | " + " | ".join(f"{max(error, 0):.5f}" for error in errors) + " |"


def decode(block: BlockLaw, bits: int) -> tuple[Ints, Floats]:
    """The word of every symbol for every dither, shape (16, symbols), and the success in every state, shape (N,)."""
    slots = block.labels >> bits
    by_slot = symbol_label_probs(block).reshape(-1, 1 << bits, slots)
    maps = by_slot.argmax(1).T.numpy()
    channel = block.p_candidate.reshape(len(block.cover), 1 << bits, slots, -1).numpy()
    words = maps[:, block.symbol.numpy()].transpose(1, 0, 2)
    right: Floats = np.take_along_axis(channel, words[:, None], axis=1).sum((1, 2, 3)) / (slots << bits)
    return maps, right


if __name__ == "__main__":
    run_benchmark(main)
