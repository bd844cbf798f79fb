"""Build a state tree: a language model and prompts in, one file out.

    python -m wm_env.lm.build --model mini --prompts shipped --prompt-count 50 --out runs/tree.safetensors
    torchrun --nproc-per-node 4 -m wm_env.lm.build --model DIR --device cuda --dtype bfloat16 --out tree.safetensors

The cost is told first; `--dry-run` stops there. A build that was killed goes on where it stopped when the same command
is given again: finished batches are in a folder beside the output until the tree is written. Under torchrun all
processes take batches until none is left, on one machine or, with the output in a shared folder, on several; the tree
is the one that a single process builds.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from wm_env.startup import INTERRUPTED, quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import torch
    import tyro
    from torch.distributed import DistError
    from tqdm import tqdm

    from wm_env.files import check_seed, check_writable, first_line
    from wm_env.information import entropy
    from wm_env.lm.candidates import PoolSettings, check_pool_size
    from wm_env.lm.cost import (
        estimate,
        free_bytes,
        matrix_peak,
        measure_speed,
        pass_bytes,
        rows_that_fit,
        weight_bytes,
    )
    from wm_env.lm.crew import Crew, StoppedError
    from wm_env.lm.forward import can_compile, is_layer_stack
    from wm_env.lm.llada import MaskedLM, compiled_lm, load_lm
    from wm_env.lm.partial import Context, delete_parts, parts_folder, recorded_rows
    from wm_env.lm.progress import progress
    from wm_env.lm.prompts import read_prompts
    from wm_env.lm.states import Grown, encode_prompts, grow_tree, pool_law
    from wm_env.lm.text import prefix_pairs
    from wm_env.tree import save_tree, state_reach

GIB = 2.0**30


@dataclass(frozen=True)
class BuildOptions:
    """Turn a language model and prompts into a state tree."""

    out: Path
    """File to write (*.safetensors)."""
    model: str = "mini"
    """"mini" (comes with the package), a folder with a checkpoint of LLaDA, Dream or a masked LM of transformers, or a
    hub id OWNER/NAME."""
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
    batch_size: int | None = None
    """States computed together; by default as many as fill a pass. Changes the speed, never the tree."""
    rows: int | None = None
    """Canvases in a forward pass. Part of the tree, because floating-point sums depend on the shape of a pass. By
    default 8 on a CPU and what the free memory allows on a GPU, half of it whenever memory runs out; a build that goes
    on keeps the number that it began with."""
    device: str = "cpu"
    """Where the model runs, such as cpu or cuda:0; "cuda" is a GPU for every process of torchrun."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the model."""
    compile: bool | None = None
    """Let torch.compile make the layers' kernels, which takes half a minute and on a CPU a C++ compiler; by default on
    a GPU. Part of the tree."""
    dry_run: bool = False
    """Tell the cost and stop."""

    def settings(self) -> PoolSettings:
        """How candidates are chosen, checked; `rows` is 1 where it is still open."""
        beam_width = self.candidates + 4 if self.beam_width is None else self.beam_width
        return PoolSettings(
            pool=self.pool,
            block_length=self.block_length,
            candidates=self.candidates,
            temperature=self.temperature,
            beam_width=beam_width,
            rows=1 if self.rows is None else self.rows,
            key=str(self.seed).encode(),
        )


@dataclass(frozen=True)
class Plan:
    """Everything that a build needs, checked before the work starts; `settings.rows` may still change."""

    options: BuildOptions
    settings: PoolSettings
    prompts: tuple[str, ...]
    contexts: tuple[Context, ...]
    lm: MaskedLM

    @property
    def longest(self) -> int:
        """Tokens of the longest canvas."""
        return max(map(len, self.contexts)) + self.options.blocks * self.options.block_length

    @property
    def batch_size(self) -> int:
        """States computed together: by default those of whole passes, and not fewer than a first step's pass holds."""
        states = max(1, self.settings.rows // self.settings.width)
        return self.options.batch_size or states * -(-8 // states)


def prepare(options: BuildOptions) -> Plan:
    """Check the options, the output, the prompts and the model, the cheapest first.

    Raises:
        ValueError, OSError, ImportError: one line that says what to do.
    """
    settings = options.settings()
    if options.blocks < 1 or (options.batch_size is not None and options.batch_size < 1):
        raise ValueError("--blocks and --batch-size must be at least 1")
    check_seed(options.seed)
    if options.out.is_dir():
        raise IsADirectoryError(f"{options.out} is a folder: name a file to write")
    check_writable(options.out.parent, "choose another --out")
    prompts = read_prompts(options.prompts, options.prompt_count, options.seed)
    device = checked_device(options.device)
    lm = load_lm(options.model, device=device, dtype=getattr(torch, options.dtype))
    pays = device.startswith("cuda") and is_layer_stack(lm.network) and can_compile()
    if pays if options.compile is None else options.compile:
        lm = compiled_lm(lm)
    contexts = tuple(encode_prompts(lm, prompts, options.blocks * options.block_length))
    check_pool_size(lm, settings)
    return Plan(options, settings, tuple(prompts), contexts, lm)


def checked_device(name: str) -> str:
    """`name`, if torch can compute there; "cuda" is the GPU that torchrun means for this process.

    Raises:
        ValueError: it cannot.
    """
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used here: {first_line(error)}") from None
    return name


def with_rows(plan: Plan, crew: Crew) -> Plan:
    """The plan with the number of rows that was asked for, that an earlier build began with, or that fits."""
    if plan.options.rows is not None:
        return plan
    law = pool_law(plan.lm, plan.settings)
    rows = recorded_rows(parts_folder(plan.options.out), law) or rows_that_fit(plan.lm, plan.settings, plan.longest)
    return replace(plan, settings=replace(plan.settings, rows=int(crew.agree("rows", str(rows)))))


@dataclass(frozen=True)
class Speed:
    """FLOP/s of this process, measured: of large matrix products, and of the model."""

    peak: float
    model: float


def tell_cost(plan: Plan, crew: Crew) -> tuple[int, Speed]:
    """Measure the speed and print what the build costs; returns the number of states and the speed."""
    settings, lm, lengths = plan.settings, plan.lm, [len(context) for context in plan.contexts]
    cost = estimate(lm, plan.contexts, settings, blocks=plan.options.blocks, batch_size=plan.batch_size)
    device = lm.banned.device
    speed = Speed(matrix_peak(device, lm.network.dtype), measure_speed(lm, plan.longest, settings))
    free = f" of {free_bytes(device) / GIB:.3g} GiB that are free" if device.type == "cuda" else ""
    if crew.first:
        print(
            f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens: at most {cost.states} states, "
            f"{cost.canvases} canvases in passes of {settings.rows}, {cost.flops / 1e12:.4g} TFLOP "
            f"({cost.wanted_flops / cost.flops:.0%} of it wanted, the rest fills passes)\n"
            f"memory: weights {weight_bytes(lm) / GIB:.3g} GiB, a pass at most "
            f"{pass_bytes(lm, settings.rows, plan.longest) / GIB:.3g} GiB{free}\n"
            f"matrix products run at {speed.peak / 1e12:.4g} TFLOP/s, the model at {speed.model / 1e12:.4g} "
            f"({speed.model / speed.peak:.0%}), measured now: about "
            f"{tqdm.format_interval(round(cost.flops / speed.model / crew.size))} with {crew.size} process(es)",
            flush=True,
        )
    return cost.states, speed


def build(plan: Plan, crew: Crew) -> Grown:
    """Grow the tree of `plan`; the first process writes it and removes the finished batches.

    Where the number of rows is open and memory runs out in any process, all begin again with half of it.

    Raises:
        ValueError: a state has no candidates, or the processes do not agree.
        OSError: a file cannot be written.
        torch.OutOfMemoryError: with the rows that were asked for, or with one.
        StoppedError: another process failed.
    """
    plan = with_rows(plan, crew)
    while True:
        rows = plan.settings.rows
        attempt = crew.within(f"rows {rows}")
        try:
            with attempt.together():
                return _grow_and_write(plan, attempt)
        except (torch.OutOfMemoryError, StoppedError) as error:
            out_of_memory = torch.OutOfMemoryError.__name__ in (type(error).__name__, getattr(error, "kind", ""))
            if not out_of_memory or plan.options.rows is not None or rows == 1:
                raise
        torch.cuda.empty_cache()
        plan = replace(plan, settings=replace(plan.settings, rows=rows // 2))
        if crew.first:
            print(
                f"out of memory with passes of {rows} canvases: all states are made again in passes of {rows // 2}",
                file=sys.stderr,
                flush=True,
            )


def _grow_and_write(plan: Plan, crew: Crew) -> Grown:
    options = plan.options
    parts = parts_folder(options.out)
    states, speed = tell_cost(plan, crew)
    with progress(states, speed.peak, crew) as report:
        grown = grow_tree(
            plan.lm,
            plan.prompts,
            plan.settings,
            blocks=options.blocks,
            batch_size=plan.batch_size,
            parts=parts,
            seed=options.seed,
            report=report,
            crew=crew,
        )
    if crew.first:
        save_tree(grown.tree, options.out)
        delete_parts(parts)
    return grown


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
    """Command line: exit code 0 when done, 1 if the build fails, 2 for bad options or input, 130 after Ctrl-C."""
    try:
        options = tyro.cli(BuildOptions, args=arguments)
        with Crew.join() as crew:
            return _run(options, crew)
    except StoppedError:
        # The process that failed has told why.
        return 1
    except DistError as error:
        print(f"error: the other processes of torchrun are gone: {first_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: give the same command again to go on", file=sys.stderr)
        return INTERRUPTED


def _run(options: BuildOptions, crew: Crew) -> int:
    try:
        with crew.together():
            plan = prepare(options)
            if options.dry_run:
                tell_cost(with_rows(plan, crew), crew)
                return 0
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        grown = build(plan, crew)
        if crew.first:
            print(summary(grown, options.out))
    except torch.OutOfMemoryError:
        print(f"error: out of memory on {options.device}: give a smaller --rows", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
