"""Rates of short codes at total variation 0 behind edits, beside the limits of every code; n = 8 .. 1024 tokens.

    python benchmarks/codes.py --folder runs/codes --out docs/figures/codes.png

The source is the Corollary's cover of 64 tokens, two labels: tokens are free or stuck (`wm_env.theory.free_tokens`).
A share of the tokens is replaced by others on the way. The rate of a scheme is that of its longest message whose block
error, with the encoder's failures, is at most `--block-error`: a length is found on some frames by bisection, together
with the scheme's check and trust, and then lowered on fresh frames until the error measured there fits. It takes about
an hour of processor time; points that the folder holds are not searched again.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from command import MANY, SEEDS, draw_bits, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.figure import Figure
    from results import Results

    from polar.code.lists.covert import (
        SC,
        ListScheme,
        decode_list,
        design,
        draw_covert_states,
        encode,
        label_code,
        prices,
    )
    from polar.code.lists.precoding import CHECKS, PAC_TAPS
    from wm_env.common.arguments import parse
    from wm_env.common.files import check_output, write_atomically
    from wm_env.common.progress import ProgressBar
    from wm_env.theory.free_tokens import FreeTokens, corollary_labels, label_capacity, message_limit

VOCABULARY = 64
TRUSTS = (0.5, 1.0, 2.0, 4.0)
CHECK_BITS = (0, 4, 6, 8, 11)
SCHEMES = ("SC", "CRC-SCL", "PAC")


@dataclass(frozen=True)
class Options:
    """What is compared, and how thoroughly."""

    folder: Path = Path("runs/codes")
    """Where the points are kept, a file each."""
    out: Path | None = None
    """Figure file; none by default."""
    log_lengths: tuple[int, ...] = (3, 4, 5, 6, 7, 8, 9, 10)
    """log2 n."""
    replaced: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2)
    """Shares of tokens replaced."""
    block_error: float = 0.01
    """Largest block error."""
    paths: int = 32
    """Paths of encoder and decoder, of CRC-SCL and PAC."""
    frames: int = 400
    """Frames at each step of a bisection."""
    fresh: int = 4000
    """Fresh frames of every length that is measured."""
    processes: int = 1
    """Processes at once."""
    seed: int = 0
    """Of all randomness."""

    def name(self, scheme: str, log_length: int, replaced: float) -> str:
        """The name of a point in the folder."""
        frames = f"{self.frames}-{self.fresh}-{self.block_error:g}"
        return f"{scheme}-{2**log_length}-{replaced:g}-{self.paths}-{frames}-{self.seed}"


@dataclass(frozen=True)
class Found:
    """The longest message of one scheme at one point, and the settings that were chosen for it."""

    bits: int
    check: int
    trust: float
    wrong: int
    frames: int


def candidates(name: str, paths: int) -> list[ListScheme]:
    """The settings of a scheme among which the search chooses."""
    if name == "SC":
        return [dataclasses.replace(SC, trust=trust) for trust in TRUSTS]
    if name == "PAC":
        return [ListScheme(paths, PAC_TAPS, trust=trust) for trust in TRUSTS]
    checks = [check for check in CHECKS if check.bits in CHECK_BITS]
    return [ListScheme(paths, check=check, trust=trust) for check in checks for trust in TRUSTS]


class Point:
    """One law at one length."""

    def __init__(self, law: FreeTokens, log_length: int) -> None:
        self.law, self.tokens = law, 2**log_length
        self.code = label_code(law)
        self.priced = prices(self.code, log_length)

    def wrong(self, scheme: ListScheme, bits: int, frames: int, rng: np.random.Generator) -> int:
        """Frames of `frames` whose message is not what is read."""
        sets = design(self.priced, bits, scheme)
        states, messages = draw_covert_states(self.law, frames, self.tokens, rng), draw_bits(rng, frames, bits)
        keys = draw_bits(rng, frames, sets.key_bits)
        sent = encode(self.code, sets, scheme, states, messages, keys, rng)
        received = sent ^ (rng.random(sent.shape) < self.law.flip)
        return int((decode_list(self.code, sets, scheme, received, keys) != messages).any(1).sum())

    def longest(self, scheme: ListScheme, options: Options, least: int, rng: np.random.Generator) -> int:
        """The longest message that seems to fit, by bisection; 0 if `least` + 1 bits do not."""
        low, high = least, self.tokens - scheme.check.bits + 1
        while high - low > 1:
            middle = least + 1 if low == least and high > self.tokens - scheme.check.bits else (low + high) // 2
            fits = self.wrong(scheme, middle, options.frames, rng) <= options.block_error * options.frames
            low, high = (middle, high) if fits else (low, middle)
        return low if low > least else 0


def search(name: str, log_length: int, replaced: float, options: Options) -> Found:
    """The best setting of a scheme at one point, measured on fresh frames."""
    rng = np.random.default_rng([options.seed, SCHEMES.index(name), log_length, round(1000 * replaced)])
    point = Point(corollary_labels(VOCABULARY, replaced), log_length)
    best, bits = candidates(name, options.paths)[0], 0
    for scheme in candidates(name, options.paths):
        longest = point.longest(scheme, options, bits, rng)
        best, bits = (scheme, longest) if longest > bits else (best, bits)
    while bits:
        wrong = point.wrong(best, bits, options.fresh, rng)
        if wrong <= options.block_error * options.fresh:
            return Found(bits, best.check.bits, best.trust, wrong, options.fresh)
        bits -= max(1, bits // 50)
    return Found(0, best.check.bits, best.trust, 0, options.fresh)


def search_all(points: Sequence[tuple[str, int, float]], options: Options) -> dict[tuple[str, int, float], Found]:
    """All points, those that are missing in the folder searched first."""
    results = Results(options.folder, Found)
    results.check()
    found = {point: kept for point in points if (kept := results.read(options.name(*point))) is not None}
    missing = [point for point in points if point not in found]
    with ProcessPoolExecutor(options.processes) as pool, ProgressBar(len(missing), "point") as bar:
        pending = {pool.submit(search, *point, options): point for point in missing}
        for done, future in enumerate(as_completed(pending), 1):
            point = pending[future]
            found[point] = results.write(options.name(*point), future.result())
            bar.update(done)
    return found


def main() -> None:
    options = parse(Options, description=__doc__)
    within(options, paths=(1, 1024), frames=MANY, fresh=MANY, processes=MANY, seed=SEEDS)
    if options.out is not None:
        check_output(options.out, "choose another --out")
    points = [(name, p, q) for p in reversed(options.log_lengths) for q in options.replaced for name in SCHEMES]
    found = search_all(points, options)
    limits = {(p, q): limit(p, q, options) for p in options.log_lengths for q in options.replaced}
    show(found, limits, options)
    if options.out is not None:
        figure = draw(found, limits, options)
        write_atomically(options.out, lambda temporary: figure.savefig(temporary, dpi=150, format="png"))


def limit(log_length: int, replaced: float, options: Options) -> float:
    """Bits per token that no code exceeds at this length."""
    law = corollary_labels(VOCABULARY, replaced)
    return message_limit(law, 1 << log_length, options.block_error) / (1 << log_length)


def show(
    found: Mapping[tuple[str, int, float], Found], limits: Mapping[tuple[int, float], float], options: Options
) -> None:
    """The table: bits per token, and the settings that were chosen."""
    columns = ("replaced", "n", "capacity", "limit at n", *SCHEMES, "wrong frames", "checks and trusts")
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    for q in options.replaced:
        rate = label_capacity(corollary_labels(VOCABULARY, q)).rate
        for p in options.log_lengths:
            mine = [found[name, p, q] for name in SCHEMES]
            rates = " | ".join(f"{each.bits / 2**p:.4f}" for each in mine)
            wrong = ", ".join(f"{each.wrong}" for each in mine)
            settings = ", ".join(f"{each.check}/{each.trust:g}" for each in mine)
            print(f"| {q:g} | {2**p} | {rate:.4f} | {limits[p, q]:.4f} | {rates} | {wrong} | {settings} |")


def draw(
    found: Mapping[tuple[str, int, float], Found], limits: Mapping[tuple[int, float], float], options: Options
) -> Figure:
    """One panel for every share of replaced tokens."""
    count = len(options.replaced)
    figure, axes = plt.subplots(1, count, figsize=(3.2 * count, 3.2), sharey=True, layout="constrained", squeeze=False)
    lengths = [2**p for p in options.log_lengths]
    for axis, q in zip(axes[0], options.replaced, strict=True):
        axis.axhline(
            label_capacity(corollary_labels(VOCABULARY, q)).rate, color="0.6", label="capacity (n to infinity)"
        )
        axis.plot(lengths, [limits[p, q] for p in options.log_lengths], "k--", label="no code of n tokens has more")
        for name, marker in zip(SCHEMES, "os^", strict=True):
            axis.plot(lengths, [found[name, p, q].bits / 2**p for p in options.log_lengths], marker=marker, label=name)
        axis.set(xscale="log", xlabel="n, tokens", title=f"{100 * q:g} % replaced")
        axis.set_xticks(lengths, [str(n) for n in lengths], rotation=60)
        axis.minorticks_off()
    axes[0][0].set(ylabel=f"bits per token, TV 0, block error {options.block_error:g}", ylim=(0, None))
    axes[0][-1].legend(fontsize=7)
    return figure


if __name__ == "__main__":
    run_benchmark(main)
