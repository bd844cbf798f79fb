"""Build a state tree: a language model and prompts in, one file out.

    python -m wm_env.lm.build --model mini --prompts shipped --prompt-count 50 --out runs/tree.safetensors

The cost is told first; `--dry-run` stops there. A build that was killed goes on where it stopped when the same command
is given again: finished batches are in a folder beside the output until the tree is written.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro
from tqdm import tqdm

from wm_env.files import check_seed, check_writable
from wm_env.information import entropy
from wm_env.lm.candidates import PoolSettings, check_pool_size
from wm_env.lm.cost import estimate, measure_speed
from wm_env.lm.llada import MaskedLM, load_lm
from wm_env.lm.partial import delete_parts, parts_folder
from wm_env.lm.prompts import read_prompts
from wm_env.lm.states import Grown, encode_prompts, grow_tree
from wm_env.lm.text import prefix_pairs
from wm_env.tree import save_tree, state_reach

SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class BuildOptions:
    """Turn a language model and prompts into a state tree."""

    out: Path
    """File to write (*.safetensors)."""
    model: str = "mini"
    """"mini" (comes with the package), a folder with a LLaDA checkpoint, or a hub id OWNER/NAME."""
    prompts: str = "shipped"
    """"shipped", "c4", or a file: one prompt a line, or *.jsonl with a "text" field; also *.gz."""
    prompt_count: int | None = None
    """Draw this many prompts, without replacement; all by default."""
    pool: Literal["top", "sampled"] = "top"
    """"top": the Q most likely blocks. "sampled": Q independent draws; averaged over seeds, the model itself."""
    blocks: int = 2
    """B, blocks per text."""
    block_length: int = 8
    """L, tokens per block; a power of two."""
    candidates: int = 20
    """Q, candidates per state."""
    temperature: float = 4.0
    """tau of p_tau = softmax(logits / tau)."""
    beam_width: int | None = None
    """W >= Q, prefixes that the search for the top blocks keeps; Q + 4 by default, so that a few may merge."""
    seed: int = 0
    """Decides which prompts are drawn, and the draws of a sampled pool."""
    batch_size: int = 20
    """States computed together. Changes the speed, never the tree."""
    rows: int | None = None
    """Canvases in every forward pass; the beam width (top) or Q (sampled) by default. Part of the tree, because
    floating-point sums depend on the shape of a pass."""
    device: str = "cpu"
    """Where the model runs, such as cpu or cuda:0."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the model."""
    dry_run: bool = False
    """Tell the cost and stop."""

    def settings(self) -> PoolSettings:
        """How candidates are chosen, checked."""
        beam_width = self.candidates + 4 if self.beam_width is None else self.beam_width
        return PoolSettings(
            pool=self.pool,
            block_length=self.block_length,
            candidates=self.candidates,
            temperature=self.temperature,
            beam_width=beam_width,
            rows=self.rows or (beam_width if self.pool == "top" else self.candidates),
            key=str(self.seed).encode(),
        )


@dataclass(frozen=True)
class Plan:
    """Everything that a build needs, checked before the work starts."""

    options: BuildOptions
    settings: PoolSettings
    prompts: tuple[str, ...]
    lm: MaskedLM


def prepare(options: BuildOptions) -> Plan:
    """Check the options, the output, the prompts and the model, the cheapest first.

    Raises:
        ValueError, OSError, ImportError: one line that says what to do.
    """
    settings = options.settings()
    if options.blocks < 1 or options.batch_size < 1:
        raise ValueError("--blocks and --batch-size must be at least 1")
    check_seed(options.seed)
    if options.out.is_dir():
        raise IsADirectoryError(f"{options.out} is a folder: name a file to write")
    check_writable(options.out.parent, "choose another --out")
    prompts = read_prompts(options.prompts, options.prompt_count, options.seed)
    lm = load_lm(options.model, device=checked_device(options.device), dtype=getattr(torch, options.dtype))
    encode_prompts(lm, prompts, options.blocks * options.block_length)
    check_pool_size(lm, settings)
    return Plan(options, settings, prompts, lm)


def checked_device(name: str) -> str:
    """`name`, if torch can compute there.

    Raises:
        ValueError: it cannot.
    """
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ValueError(f"device {name!r} cannot be used here: {first_line}") from None
    return name


def tell_cost(plan: Plan) -> int:
    """Print what the build costs; returns the number of states."""
    options, settings = plan.options, plan.settings
    contexts = encode_prompts(plan.lm, plan.prompts, options.blocks * options.block_length)
    cost = estimate(plan.lm, contexts, settings, blocks=options.blocks, batch_size=options.batch_size)
    middle = sorted(map(len, contexts))[len(contexts) // 2] + options.blocks * options.block_length
    speed = measure_speed(plan.lm, middle, settings)
    print(
        f"{len(contexts)} prompts of {min(map(len, contexts))} to {max(map(len, contexts))} tokens: "
        f"at most {cost.states} states, {cost.canvases} canvases, {cost.flops / 1e12:.3g} TFLOP\n"
        f"at {speed / 1e9:.4g} GFLOP/s, measured now, about {tqdm.format_interval(round(cost.flops / speed))}",
        flush=True,
    )
    return cost.states


def build(plan: Plan) -> Grown:
    """Grow the tree of `plan`, write it, and remove the finished batches.

    Raises:
        ValueError: a state has no candidates.
        OSError: a file cannot be written.
    """
    options = plan.options
    parts = parts_folder(options.out)
    states = tell_cost(plan)
    with progress(states) as report:
        grown = grow_tree(
            plan.lm,
            plan.prompts,
            plan.settings,
            blocks=options.blocks,
            batch_size=options.batch_size,
            parts=parts,
            seed=options.seed,
            report=report,
        )
    save_tree(grown.tree, options.out)
    delete_parts(parts)
    return grown


@contextmanager
def progress(total: int, unit: str = "state") -> Iterator[Callable[[int], None]]:
    """A bar with the time left on a terminal, else a plain line every few seconds; yields the function to call."""
    if sys.stderr.isatty():
        with tqdm(total=total, unit=unit) as bar:

            def advance(states: int) -> None:
                bar.update(states)

            yield advance
        return
    start = last = time.monotonic()
    done = done_before = 0

    def write_line(states: int) -> None:
        nonlocal last, done, done_before
        done += states
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES or done == total:
            # The rate since the last line: states that an earlier build finished took no time in this one.
            rate = (done - done_before) / (now - last)
            last, done_before = now, done
            line = tqdm.format_meter(done, total, now - start, ncols=0, unit=unit, rate=rate)
            print(line, file=sys.stderr, flush=True)

    yield write_line


def summary(grown: Grown, path: Path) -> str:
    """What was built: one line a block, then the file."""
    tree = grown.tree
    lines = []
    for number, (block, reach, pools) in enumerate(zip(tree.blocks, state_reach(tree), grown.pools, strict=True), 1):
        cover = torch.from_numpy(block.cover)
        bits = entropy(cover)
        h_min = -cover.amax(1).log2()
        pairs = [prefix_pairs(pool.text) for pool in pools]
        short = sum(len(pool.text) < tree.meta.candidates for pool in pools)
        lines.append(
            f"block {number}: {len(cover)} states, {int(block.symbol.max()) + 1} symbols, "
            f"H(X|S) {float(torch.from_numpy(reach) @ bits):.3f} bits (min {float(bits.min()):.3f}), "
            f"H_min {float(torch.from_numpy(reach) @ h_min):.3f} (min {float(h_min.min()):.3f}), "
            f"retained mass {float(reach @ block.retained):.3g} (min {float(block.retained.min()):.3g}), "
            f"exact {block.exact.mean():.1%}, fewer than Q {short}, "
            f"merged {sum(pool.merged for pool in pools)}, not text {sum(pool.dropped for pool in pools)}, "
            f"prefix pairs {sum(pairs)} in {sum(count > 0 for count in pairs)} states"
        )
    return "\n".join([*lines, f"{path}: {path.stat().st_size} bytes, fingerprint {tree.fingerprint}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: exit code 0 when done, 1 if the build fails, 2 for bad options or input."""
    options = tyro.cli(BuildOptions, args=arguments)
    try:
        plan = prepare(options)
        if options.dry_run:
            tell_cost(plan)
            return 0
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        print(summary(build(plan), options.out))
    except torch.OutOfMemoryError:
        print(f"error: out of memory on {options.device}: give a smaller --rows", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: give the same command again to go on", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
