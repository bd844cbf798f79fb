"""What `python -m wm_env.lm.build` does: check, tell the cost, grow the tree, write it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.distributed import DistError

from wm_env.common.command import WorkFailedError, say, tell
from wm_env.common.files import check_output, check_writable, first_line, locked_folder
from wm_env.common.progress import duration
from wm_env.information import entropy
from wm_env.law import state_reach
from wm_env.lm.build.cost import (
    estimate,
    free_bytes,
    matrix_peak,
    measure_speed,
    pass_bytes,
    product_format,
    rows_that_fit,
    weight_bytes,
)
from wm_env.lm.build.crew import Crew, StoppedError
from wm_env.lm.build.options import BuildOptions
from wm_env.lm.build.partial import Context, delete_parts, parts_folder, recorded_rows
from wm_env.lm.build.progress import build_progress
from wm_env.lm.build.states import Grown, encode_prompts, grow_tree, pool_law
from wm_env.lm.models.forward import can_compile
from wm_env.lm.models.load import checked_device, dtype_named, load_lm
from wm_env.lm.models.masked_lm import MaskedLM, compiled_lm, is_layer_stack
from wm_env.lm.pools.candidates import check_pool_size
from wm_env.lm.pools.settings import PoolSettings
from wm_env.lm.prompts import read_prompts
from wm_env.lm.text import prefix_pairs
from wm_env.theory.limits import min_entropy
from wm_env.tree import save_tree

GIB = 2.0**30


@dataclass(frozen=True)
class BuildPlan:
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


def prepare(options: BuildOptions) -> BuildPlan:
    """Check the options, the output, the prompts and the model, the cheapest first.

    Raises:
        ValueError, OSError: one line that says what to do.
    """
    settings = options.check()
    if options.out is not None:
        if options.out.is_file() and not options.dry_run:
            raise FileExistsError(f"{options.out} exists already: choose another --out, or remove it first")
        check_output(options.out, "choose another --out")
        check_writable(parts_folder(options.out), "choose another --out")
    prompts = read_prompts(options.prompts, options.prompts_drawn, options.seed)
    device = checked_device(options.device)
    lm = load_lm(options.model, device=device, dtype=dtype_named(options.dtype), arithmetic=options.arithmetic)
    pays = device.startswith("cuda") and not lm.is_exact and is_layer_stack(lm.network) and can_compile()
    if pays if options.compile is None else options.compile:
        lm = compiled_lm(lm)
    contexts = tuple(encode_prompts(lm, prompts, options.blocks * options.block_length))
    check_pool_size(lm, settings)
    return BuildPlan(options, settings, tuple(prompts), contexts, lm)


def with_rows(plan: BuildPlan, crew: Crew) -> BuildPlan:
    """The plan with the number of rows that was asked for, that an earlier build began with, or that fits."""
    if plan.options.rows is not None:
        return plan
    law = pool_law(plan.lm, plan.settings)
    recorded = None if plan.options.out is None else recorded_rows(parts_folder(plan.options.out), law)
    rows = recorded or rows_that_fit(plan.lm, plan.settings, plan.longest)
    return replace(plan, settings=replace(plan.settings, rows=int(crew.agree("rows", str(rows)))))


@dataclass(frozen=True)
class Speed:
    """FLOP/s of this process, measured: of large matrix products, and of the model."""

    peak: float
    model: float


def tell_cost(plan: BuildPlan, crew: Crew) -> tuple[int, Speed]:
    """Measure the speed and print what the build costs; returns the number of states and the speed."""
    settings, lm, lengths = plan.settings, plan.lm, [len(context) for context in plan.contexts]
    cost = estimate(lm, plan.contexts, settings, blocks=plan.options.blocks, batch_size=plan.batch_size)
    device = lm.banned.device
    speed = Speed(matrix_peak(device, product_format(lm)), measure_speed(lm, plan.longest, settings))
    free = f" of {free_bytes(device) / GIB:.3g} GiB that are free" if device.type == "cuda" else ""
    if crew.first:
        say(
            f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens: at most {cost.states} states, "
            f"{cost.canvases} canvases in passes of {settings.rows}, {cost.flops / 1e12:.4g} TFLOP "
            f"({cost.wanted_flops / cost.flops:.0%} of it wanted, the rest fills passes)\n"
            f"memory: weights {weight_bytes(lm) / GIB:.3g} GiB, a pass at most "
            f"{pass_bytes(lm, settings.rows, plan.longest) / GIB:.3g} GiB{free}\n"
            f"matrix products run at {speed.peak / 1e12:.4g} TFLOP/s, the model at {speed.model / 1e12:.4g} "
            f"({speed.model / speed.peak:.0%}), measured now: about "
            f"{duration(cost.flops / speed.model / crew.size)} with {crew.size} process(es)"
        )
    return cost.states, speed


def build(plan: BuildPlan, crew: Crew) -> Grown:
    """Grow the tree of `plan`; the first process writes it and removes the finished batches.

    Where the number of rows is open and memory runs out in any process, all begin again with half of it.

    Raises:
        ValueError: a state has no candidates, or the processes do not agree.
        OSError: a file cannot be written, or another build writes the same.
        torch.OutOfMemoryError: with the rows that were asked for, or with one.
        StoppedError: another process failed.
    """
    with crew.together(), _parts_for_itself(plan, crew):
        return _build(with_rows(plan, crew), crew)


@contextmanager
def _parts_for_itself(plan: BuildPlan, crew: Crew) -> Iterator[None]:
    """The first process locks the folder of finished batches, so that no other build uses or removes it."""
    if not crew.first:
        yield
        return
    parts = parts_folder(plan.options.target())
    parts.mkdir(parents=True, exist_ok=True)
    with locked_folder(parts, "wait for that build, or choose another --out"):
        yield


def _build(plan: BuildPlan, crew: Crew) -> Grown:
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
            tell(f"out of memory with passes of {rows} canvases: all states are made again in passes of {rows // 2}")


def _grow_and_write(plan: BuildPlan, crew: Crew) -> Grown:
    options = plan.options
    parts = parts_folder(options.target())
    states, speed = tell_cost(plan, crew)
    with build_progress(states, speed.peak, crew) as report:
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
        save_tree(grown.tree, options.target())
        delete_parts(parts)
    return grown


def tree_summary(grown: Grown, path: Path) -> str:
    """What was built: one line a block, then the file."""
    tree = grown.tree
    lines = []
    for number, (block, reach, pools) in enumerate(zip(tree.blocks, state_reach(tree), grown.pools, strict=True), 1):
        bits = entropy(torch.from_numpy(block.cover)).numpy()
        h_min = min_entropy(block.cover)
        pairs = [prefix_pairs(pool.text) for pool in pools]
        short = sum(len(pool.text) < tree.meta.candidates for pool in pools)
        lines.append(
            f"block {number}: {len(block.cover)} states, {int(block.symbol.max()) + 1} symbols, "
            f"H(X|S) {float(reach @ bits):.3f} bits (min {float(bits.min()):.3f}), "
            f"H_min {float(reach @ h_min):.3f} (min {float(h_min.min()):.3f}), "
            f"retained mass {float(reach @ block.retained):.3g} (min {float(block.retained.min()):.3g}), "
            f"exact {block.exact.mean():.1%}, fewer than Q {short}, "
            f"merged {sum(pool.merged for pool in pools)}, not text {sum(pool.dropped for pool in pools)}, "
            f"prefix pairs {sum(pairs)} in {sum(count > 0 for count in pairs)} states"
        )
    return "\n".join([*lines, f"{path}: {path.stat().st_size} bytes, fingerprint {tree.fingerprint}"])


def run_build(options: BuildOptions) -> int:
    """Build, or tell the cost; returns the exit code: 0 done, 1 another process failed, and has told why.

    Raises:
        ValueError, OSError: one line that says what to do.
        WorkFailedError: out of memory, or the other processes are gone.
    """
    try:
        with Crew.join() as crew:
            _run(options, crew)
    except StoppedError:
        return 1
    except DistError as error:
        raise WorkFailedError(f"the other processes of torchrun are gone: {first_line(error)}") from None
    except RuntimeError as error:
        # On a CPU torch has no class of its own for it.
        if not (isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)):
            raise
        raise WorkFailedError(f"out of memory on {options.device}: give a smaller --rows") from None
    return 0


def _run(options: BuildOptions, crew: Crew) -> None:
    with crew.together():
        plan = prepare(options)
        if options.dry_run:
            tell_cost(with_rows(plan, crew), crew)
            return
    grown = build(plan, crew)
    if crew.first:
        say(tree_summary(grown, options.target()))
