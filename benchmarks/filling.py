"""Plain successive-cancellation filling against the paper's look-ahead rule, enumerated at small n.

    python benchmarks/filling.py

Forced bits are uniform. Plain filling draws each other bit given the bits before it; look-ahead conditions on all
forced bits at once. Both laws of V are compared with the cover's, averaged over states.
"""

import math
from dataclasses import dataclass

from command import MANY, SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from polar.code.index_sets import choose_sets, spectrum, token_code
    from polar.code.memoryless import draw_states
    from polar.code.successive import conditional_llrs
    from polar.code.transform import label_words
    from wm_env.common.arguments import parse
    from wm_env.information import total_variation
    from wm_env.theory.capacity import block_law, dense_cover, partition_assignment


@dataclass(frozen=True)
class Options:
    """Size of the experiment."""

    log_length: int = 4
    """log2 n; all 2^n words are enumerated."""
    states: int = 12
    """State sequences averaged over."""
    seed: int = 0
    """Seed of the cover and the states."""


def main() -> None:
    options = parse(Options, description=__doc__)
    within(options, log_length=(1, 4), states=MANY, seed=SEEDS)
    rng = np.random.default_rng(options.seed)
    rows = torch.from_numpy(rng.dirichlet(np.ones(2), 6))
    cover = dense_cover(torch.full((6,), 1 / 6, dtype=torch.float64), rows)
    code = token_code(block_law(cover, partition_assignment(cover, torch.arange(2), 2)))
    n = 2**options.log_length
    polarised = spectrum(code, options.log_length)
    states = draw_states(code, options.states, n, torch.Generator().manual_seed(options.seed))
    words = label_words(np.arange(2**n), n).astype(np.uint8)
    print(
        f"H(X|S) = {1 - polarised.deficit.mean():.4f} bits per token, n = {n}; total variation and divergence in bits"
    )
    print("message bits   plain filling      look-ahead")
    for bits in range(1, n + 1):
        forced = choose_sets(polarised, bits).message[0]
        gaps = np.mean([gaps_of(code.encoder[0].llr[side, 0], words, forced) for side in states], axis=0)
        print(f"{bits:>12}   {gaps[0]:.4f} {gaps[1]:>8.4f}    {gaps[2]:.4f} {gaps[3]:>8.4f}")


def gaps_of(llr: NDArray[np.float64], words: NDArray[np.uint8], forced: NDArray[np.bool_]) -> tuple[float, ...]:
    """Total variation and D(cover || encoder) of plain filling, then of look-ahead, for one state sequence."""
    leaves = conditional_llrs(np.tile(llr, (len(words), 1)), words)
    step = -np.logaddexp(0, np.where(words == 1, leaves, -leaves)) / math.log(2)
    cover = step.sum(1)
    filled = step[:, ~forced].sum(1) - forced.sum()
    place = words[:, forced].astype(np.int64) @ (1 << np.arange(forced.sum()))
    of_forced = np.bincount(place, 2**cover, minlength=2 ** int(forced.sum()))
    ahead = cover - np.log2(of_forced[place]) - forced.sum()
    result: list[float] = []
    for law in (filled, ahead):
        result.append(float(total_variation(torch.from_numpy(2**law), torch.from_numpy(2**cover))))
        result.append(float((2**cover * (cover - law)).sum()))
    return tuple(result)


if __name__ == "__main__":
    run_benchmark(main)
