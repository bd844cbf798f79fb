"""Does this machine build the shipped tree? Random states of it are computed again and compared, to the last bit.

    python benchmarks/rebuild.py --states 4

A state takes 700 canvases: half a minute of a CPU core, or 0.4 s of a GPU.
"""

import time
from dataclasses import dataclass

from command import MANY, SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch

    from wm_env.common.arguments import parse
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.models.masked_lm import MaskedLM
    from wm_env.lm.models.stack import device_name
    from wm_env.lm.pools.candidates import make_pools
    from wm_env.lm.pools.settings import PoolSettings
    from wm_env.lm.text import token_bytes
    from wm_env.tree import StateTree, shipped_tree


@dataclass(frozen=True)
class Options:
    """Compute states of the shipped tree again."""

    states: int = 4
    """How many, drawn without replacement from all blocks."""
    device: str = "cpu"
    """Where the model runs."""
    threads: int = 2
    """Threads of torch on a CPU."""
    seed: int = 0
    """Which states."""


def context_of(lm: MaskedLM, tree: StateTree, block: int, state: int) -> list[int]:
    """The token ids before a state: its prompt and the candidates on the way."""
    said: list[int] = []
    for number in range(block - 1, -1, -1):
        parents, candidates = np.nonzero(tree.blocks[number].child == state)
        said = [*tree.blocks[number].tokens[parents[0], candidates[0]].tolist(), *said]
        state = int(parents[0])
    return [*lm.encode(tree.prompts[state]), *said]


def is_same(lm: MaskedLM, tree: StateTree, block: int, state: int) -> bool:
    """Whether the candidates of a state and their probabilities come out as stored."""
    meta, stored = tree.meta, tree.blocks[block]
    settings = PoolSettings(meta.pool, meta.block_length, meta.candidates, meta.temperature, meta.beam_width, rows=48)
    context = np.array([context_of(lm, tree, block, state)])
    pool = make_pools(lm, token_bytes(lm.tokenizer), context, settings)[0]
    count = len(pool.tokens)
    return (
        np.array_equal(pool.tokens, stored.tokens[state, :count])
        and np.array_equal(pool.log2_prob, stored.log2_prob[state, :count])
        and np.array_equal(pool.cover, stored.cover[state, :count])
    )


def work(options: Options) -> None:
    """Compare, and print a line for every state."""
    within(options, states=MANY, threads=(1, 1024), seed=SEEDS)
    torch.set_num_threads(options.threads)
    lm, tree = load_lm("mini", device=options.device), shipped_tree()
    print(f"{lm.number_format} on {device_name(lm.banned.device)}, torch {torch.__version__}")
    states = [(block, state) for block, stored in enumerate(tree.blocks) for state in range(len(stored.cover))]
    chosen = np.random.default_rng(options.seed).permutation(len(states))[: options.states]
    same = 0
    for number in chosen.tolist():
        start, (block, state) = time.perf_counter(), states[number]
        equal = is_same(lm, tree, block, state)
        same += equal
        verdict = "as shipped" if equal else "DIFFERS"
        print(f"block {block + 1}, state {state}: {verdict}, {time.perf_counter() - start:.0f} s", flush=True)
    print(f"{same} of {len(chosen)} states are those of the shipped tree")


def main() -> None:
    """Command line."""
    work(parse(Options, description=__doc__))


if __name__ == "__main__":
    run_benchmark(main)
