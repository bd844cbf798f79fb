"""How fast states are extracted from a language model, and how exact: on one GPU, on several, and on a CPU.

    python benchmarks/extraction.py checkpoint /tmp/llada-8b --device cuda
    python benchmarks/extraction.py card --model /tmp/llada-8b --json card.json
    torchrun --nproc-per-node N benchmarks/extraction.py tree --model /tmp/llada-8b --prompts 8 --json tree-N.json
    python benchmarks/extraction.py efficiency tree-1.json tree-2.json tree-4.json
    python benchmarks/extraction.py mini --threads 2

`checkpoint` writes LLaDA-8B's shape with random weights, `card` measures one GPU, `tree` builds a tree of prompts of 64
tokens with as many processes as torchrun starts, `mini` builds the tree of four shipped prompts on the CPU. FLOPs are
those of `wm_env.lm.build.cost`, without canvases that only fill a pass; the matrix peak is measured in the same run.
Where the package is not installed: PYTHONPATH=. before the command.

The scaling over GPUs in one line, after `checkpoint`:

    for n in 1 2 4; do torchrun --nproc-per-node $n benchmarks/extraction.py tree --model /tmp/llada-8b --prompts 8
    --json tree-$n.json; done; python benchmarks/extraction.py efficiency tree-1.json tree-2.json tree-4.json
"""

import argparse
import os
import platform
import shutil
import string
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from command import run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    from plain_llada import plain_logits
    from random_llada import llada_8b, write_random_llada
    from torch.profiler import ProfilerActivity, profile

    from wm_env.common.files import check_output, read_json, write_json
    from wm_env.common.json_values import entry
    from wm_env.lm.build.builder import BuildPlan, prepare, tell_cost, with_rows
    from wm_env.lm.build.cost import (
        canvas_flops,
        estimate,
        matrix_peak,
        measure_speed,
        pass_bytes,
        rows_that_fit,
        state_flops,
    )
    from wm_env.lm.build.crew import Crew
    from wm_env.lm.build.options import BuildOptions
    from wm_env.lm.build.partial import parts_folder
    from wm_env.lm.build.progress import build_progress
    from wm_env.lm.build.states import grow_tree
    from wm_env.lm.models.llada_config import LLaDAConfig, tensor_names
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.models.masked_lm import MaskedLM, compiled_lm
    from wm_env.lm.pools.candidates import canvas_of, make_pools
    from wm_env.lm.pools.settings import PoolSettings
    from wm_env.lm.text import token_bytes

CONTEXT, LENGTH, CANDIDATES, WIDTH, TEMPERATURE = 64, 8, 20, 24, 4.0
PAPER_PROMPTS, PAPER_BLOCKS = 50, 2


BENCHMARK = "extraction: figures"


class Figures(dict[str, Any]):
    """Results by name; each is printed as a row of a table when it is known, so that a long run shows where it is."""

    def __setitem__(self, name: str, value: Any) -> None:
        print(f"| {name} | {value:.4g} |" if isinstance(value, float) else f"| {name} | {value} |", flush=True)
        super().__setitem__(name, value)

    def note(self, figures: dict[str, Any]) -> None:
        """Add several."""
        for name, value in figures.items():
            self[name] = value

    def write(self, path: Path | None) -> None:
        """Write them as JSON if there is a path."""
        if path is not None:
            write_json(path, {"benchmark": BENCHMARK, **self})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("checkpoint", help="write a random LLaDA-8B")
    command.add_argument("folder", type=Path)
    command.add_argument("--layers", type=int, default=32, help="fewer for a trial")
    command.add_argument("--device", default="cpu", help="where the weights are drawn")
    command.set_defaults(run=checkpoint)
    command = commands.add_parser("card", help="measure one GPU")
    command.add_argument("--model", required=True)
    command.add_argument("--device", default="cuda")
    command.add_argument("--rows", type=int, nargs="*", default=[24, 120, 240, 480], help="passes to compare")
    command.add_argument("--profile", type=Path, help="write the time of every kernel of two passes")
    command.add_argument("--json", type=Path)
    command.set_defaults(run=card)
    command = commands.add_parser("tree", help="build a tree, under torchrun with several processes")
    command.add_argument("--model", required=True)
    command.add_argument("--device", default="cuda")
    command.add_argument("--prompts", type=int, default=8)
    command.add_argument("--json", type=Path)
    command.set_defaults(run=tree)
    command = commands.add_parser("efficiency", help="compare the results of `tree`")
    command.add_argument("files", type=Path, nargs="+")
    command.set_defaults(run=efficiency)
    command = commands.add_parser("mini", help="the embedded model on the CPU")
    command.add_argument("--threads", type=int, default=2)
    command.add_argument("--prompts", default="shipped", help="as in wm_env.lm.build")
    command.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    command.add_argument("--compile", action="store_true", help="fused kernels; needs a C++ compiler")
    command.add_argument("--plain-states", type=int, default=1, help="states of the plain loop")
    command.add_argument("--json", type=Path)
    command.set_defaults(run=mini)
    options = parser.parse_args()
    if getattr(options, "json", None) is not None:
        check_output(options.json, "name another --json", BENCHMARK)
    if getattr(options, "profile", None) is not None:
        check_output(options.profile, "name another --profile", "Self CPU")
    options.run(options)


def checkpoint(options: argparse.Namespace) -> None:
    within(options, layers=(1, 32))
    start = time.perf_counter()
    write_random_llada(options.folder, llada_8b(options.layers), options.device)
    size = sum(path.stat().st_size for path in options.folder.iterdir())
    print(f"{options.folder}: {size} bytes in {time.perf_counter() - start:.1f} s", flush=True)


def card(options: argparse.Namespace) -> None:
    within(options, rows=(1, 10**6))
    start = time.perf_counter()
    lm = load_lm(options.model, device=options.device, dtype=torch.bfloat16)
    device = lm.banned.device
    figures = Figures()
    figures.note({"hardware": name_of(device), "torch": torch.__version__})
    figures["seconds to load"] = time.perf_counter() - start
    peak = matrix_peak(device, torch.bfloat16)
    figures["matrix peak, TFLOP/s"] = peak / 1e12
    settings = PoolSettings("top", LENGTH, CANDIDATES, TEMPERATURE, WIDTH, rows=WIDTH)

    def measure(kind: str, model: MaskedLM, rows: int) -> None:
        clear_peak(device)
        speed = measure_speed(model, CONTEXT + LENGTH, replace(settings, rows=rows))
        figures[f"{kind} pass of {rows}: canvases/s"] = speed / canvas_flops(model, CONTEXT + LENGTH)
        figures[f"{kind} pass of {rows}: share of the peak"] = speed / peak
        if device.type == "cuda":
            used = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
            figures[f"{kind} pass of {rows}: GiB, and as estimated"] = (
                f"{used / 2**30:.2f}, {pass_bytes(model, rows, CONTEXT + LENGTH) / 2**30:.2f}"
            )

    for rows in options.rows[-2:]:
        measure("eager", lm, rows)
    figures["plain loop: canvases/s"] = plain_speed(lm)
    figures.note(exactness(options.model, lm))
    lm = compiled_lm(lm)
    start = time.perf_counter()
    measure_speed(lm, CONTEXT + LENGTH, replace(settings, rows=8))
    figures["seconds to compile"] = time.perf_counter() - start
    for rows in options.rows:
        measure("compiled", lm, rows)
    rows = rows_that_fit(lm, settings, CONTEXT + PAPER_BLOCKS * LENGTH)
    figures.note(extraction(lm, replace(settings, rows=rows), peak))
    figures["ratio to the plain loop"] = figures["canvases/s"] / figures["plain loop: canvases/s"]
    if options.profile is not None:
        write_profile(lm, replace(settings, rows=rows), options.profile)
    figures.write(options.json)


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()


def clear_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def extraction(lm: MaskedLM, settings: PoolSettings, peak: float) -> dict[str, Any]:
    """Candidates of whole states, beam search and all, in batches as the builder makes them."""
    vocabulary = token_bytes(lm.tokenizer)
    batch = max(8, settings.rows // settings.width)
    contexts = np.random.default_rng(0).integers(64, 1000, (2, batch, CONTEXT))
    make_pools(lm, vocabulary, contexts[0], settings)
    clear_peak(lm.banned.device)
    start = time.perf_counter()
    for group in contexts:
        make_pools(lm, vocabulary, group, settings)
    seconds = time.perf_counter() - start
    flops = 2 * batch * state_flops(lm, CONTEXT, settings)
    speed = flops / seconds
    paper = estimate(lm, [(0,) * CONTEXT] * PAPER_PROMPTS, settings, blocks=PAPER_BLOCKS, batch_size=batch)
    figures: dict[str, Any] = {
        "rows": settings.rows,
        "states/s": 2 * batch / seconds,
        "canvases/s": speed / canvas_flops(lm, CONTEXT + LENGTH),
        "share of the peak": speed / peak,
        "seconds for the paper's 1,050 states, extrapolated": paper.flops / speed,
    }
    if lm.banned.device.type == "cuda":
        figures["peak memory, GiB"] = torch.cuda.max_memory_allocated() / 2**30
    return figures


def plain_speed(lm: MaskedLM, canvases: int = 30) -> float:
    """Canvases per second of transformers' own forward pass, one at a time, all logits, float64 log-softmax."""
    rows = torch.from_numpy(np.random.default_rng(1).integers(64, 1000, (canvases + 3, CONTEXT + LENGTH)))
    rows[:, CONTEXT:] = lm.mask_id
    start = 0.0
    for number, row in enumerate(rows):
        if number == 3:
            start = time.perf_counter()
        plain_law(lm, row, CONTEXT)
    return canvases / (time.perf_counter() - start)


@torch.no_grad()
def plain_law(lm: MaskedLM, canvas: torch.Tensor, position: int) -> torch.Tensor:
    """log2 p_tau at one position, (V,), on the CPU: what anyone would write first."""
    network: Any = lm.network  # transformers' own: `load_lm` was given a dtype
    logits = network(canvas[None].to(lm.banned.device), use_cache=False).logits[0, position].double() / TEMPERATURE
    logits[lm.banned] = -torch.inf
    law: torch.Tensor = (logits.log_softmax(-1) / np.log(2)).cpu()
    return law


@torch.no_grad()
def exactness(source: str, lm: MaskedLM, canvases: int = 16) -> dict[str, Any]:
    """Largest and mean error of natural log-probabilities: bf16 against fp32, fp32 against the pass written out."""
    exact = load_lm(source, device=str(lm.banned.device), dtype=torch.float32)
    rows = torch.from_numpy(np.random.default_rng(2).integers(64, 1000, (canvases, CONTEXT + LENGTH)))
    rows[:, CONTEXT + 3 :] = lm.mask_id
    law, short = (model.log2_probs(rows, CONTEXT + 3, 1.0)[:, ~lm.banned] * np.log(2) for model in (exact, lm))
    plain = written_law(source, exact, rows[:2].to(lm.banned.device), CONTEXT + 3)
    difference = (law - short).abs()
    figures = {
        "fp32 against the pass written out, largest error of log p": float((law[:2] - plain).abs().max()),
        "bf16 against fp32, largest error of log p": float(difference.max()),
        "bf16 against fp32, mean error of log p": float(difference.mean()),
        "largest and smallest log p": f"{float(law.max()):.2f}, {float(law.min()):.2f}",
    }
    del exact
    if lm.banned.device.type == "cuda":
        torch.cuda.empty_cache()
    return figures


def written_law(source: str, lm: MaskedLM, canvases: torch.Tensor, position: int) -> torch.Tensor:
    """Natural log p at one position by the pass written out, in the dtype of `lm`, over what is not banned."""
    config = LLaDAConfig.from_json(read_json(Path(source) / "config.json"))
    network: Any = lm.network
    names, state = tensor_names(config), network.state_dict()
    logits = [plain_logits(lambda name: state[names[name]], config, canvas)[position] for canvas in canvases]
    return torch.stack(logits).double()[:, ~lm.banned].log_softmax(-1)


def write_profile(lm: MaskedLM, settings: PoolSettings, path: Path) -> None:
    contexts = np.random.default_rng(3).integers(64, 1000, (max(8, settings.rows // settings.width), CONTEXT))
    short = replace(settings, block_length=2)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        make_pools(lm, token_bytes(lm.tokenizer), contexts, short)
    table = recorded.key_averages().table(sort_by="self_device_time_total", row_limit=40, max_name_column_width=90)
    path.write_text(table)


def tree(options: argparse.Namespace) -> None:
    """A tree by the builder's own parts; the time is that of growing, from when all are ready until all are done."""
    within(options, prompts=(1, 10**6))
    with Crew.join() as crew, crew.together():
        folder = Path(tempfile.gettempdir()) / f"extraction-{os.environ.get('MASTER_PORT', 'alone')}"
        if crew.first:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            random = np.random.default_rng(4)
            texts = ("".join(random.choice(list(string.ascii_letters), CONTEXT)) for _ in range(options.prompts))
            (folder / "prompts.txt").write_text("\n".join(texts))
        crew.meet("prompts written")
        start = time.perf_counter()
        plan = prepare(
            BuildOptions(
                out=folder / "tree.safetensors",
                model=options.model,
                prompts=str(folder / "prompts.txt"),
                device=options.device,
                dtype="bfloat16" if options.device.startswith("cuda") else "float32",
            )
        )
        loaded = time.perf_counter() - start
        plan = with_rows(plan, crew)
        states, speed = tell_cost(plan, crew)
        ready = time.perf_counter() - start
        warm_up(plan)
        crew.meet("ready")
        start = time.perf_counter()
        with build_progress(states, speed.peak, crew) as report:
            grown = grow(plan, crew, report)
        seconds = time.perf_counter() - start
        if crew.first:
            shutil.rmtree(folder)
            settings, blocks = plan.settings, plan.options.blocks
            cost = estimate(plan.lm, plan.contexts, settings, blocks=blocks, batch_size=plan.batch_size)
            figures = Figures()
            found = {
                "hardware": name_of(plan.lm.banned.device),
                "processes": crew.size,
                "seconds to load": loaded,
                "seconds until all is compiled and measured": ready,
                "matrix peak, TFLOP/s": speed.peak / 1e12,
                "rows": settings.rows,
                "states": states,
                "seconds": seconds,
                "states/s": states / seconds,
                "share of the peak": cost.wanted_flops / seconds / crew.size / speed.peak,
                "fingerprint": grown.tree.fingerprint,
            }
            figures.note(found)
            figures.write(options.json)


def warm_up(plan: BuildPlan) -> None:
    """Meet every shape of the tree once, so that no compiling is timed."""
    vocabulary = token_bytes(plan.lm.tokenizer)
    for number in range(plan.options.blocks):
        context = np.array([plan.contexts[0] + (64,) * number * LENGTH])
        make_pools(plan.lm, vocabulary, context, plan.settings.at_block(number))


def grow(plan: BuildPlan, crew: Crew, report: Callable[[int, float], None]) -> Any:
    options = plan.options
    return grow_tree(
        plan.lm,
        plan.prompts,
        plan.settings,
        blocks=options.blocks,
        batch_size=plan.batch_size,
        parts=parts_folder(options.target()),
        report=report,
        crew=crew,
    )


def read_result(path: Path) -> dict[str, Any]:
    """What `tree` wrote."""
    kinds: dict[str, type] = {
        "processes": int,
        "seconds": float,
        "states/s": float,
        "share of the peak": float,
        "fingerprint": str,
    }
    result: dict[str, Any] = {name: entry(read_json(path), name, kind, path) for name, kind in kinds.items()}
    if min(result["processes"], result["states/s"]) <= 0:
        raise ValueError(f"{path}: processes and states/s are above 0")
    return result


def efficiency(options: argparse.Namespace) -> None:
    """Speed over that of the first file, by process."""
    results = [read_result(path) for path in options.files]
    base = results[0]["states/s"] / results[0]["processes"]
    print("| processes | seconds | states/s | share of the peak | efficiency | same tree |")
    print("| --- | --- | --- | --- | --- | --- |")
    for result in results:
        print(
            f"| {result['processes']} | {result['seconds']:.1f} | {result['states/s']:.2f} | "
            f"{result['share of the peak']:.1%} | {result['states/s'] / result['processes'] / base:.1%} | "
            f"{result['fingerprint'] == results[0]['fingerprint']} |"
        )


def mini(options: argparse.Namespace) -> None:
    """The tree of four prompts with the builder's defaults, and the plain loop on a few of its states."""
    within(options, threads=(1, 1024), plain_states=(1, 4))
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        plan = prepare(
            BuildOptions(
                out=Path(folder) / "tree",
                prompts=options.prompts,
                prompt_count=4,
                dtype=options.dtype,
                compile=options.compile,
            )
        )
        crew = Crew()
        plan = with_rows(plan, crew)
        states, speed = tell_cost(plan, crew)
        warm_up(plan)
        wall, cpu = time.perf_counter(), time.process_time()
        with build_progress(states, speed.peak, crew) as report:
            grown = grow(plan, crew, report)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        settings, blocks = plan.settings, plan.options.blocks
        cost = estimate(plan.lm, plan.contexts, settings, blocks=blocks, batch_size=plan.batch_size)
    figures = Figures()
    found = {
        "threads": options.threads,
        "matrix peak, GFLOP/s": speed.peak / 1e9,
        "states": states,
        "TFLOP": cost.wanted_flops / 1e12,
        "seconds": wall,
        "processor seconds": cpu,
        "share of the peak": cost.wanted_flops / wall / speed.peak,
        "states/s": states / wall,
    }
    figures.note(found)
    numbers = [round(n) for n in np.linspace(0, 3, options.plain_states)]
    wall, cpu, worst = time.perf_counter(), time.process_time(), 0.0
    for number in numbers:
        pool = grown.pools[0][number]
        blocks, scores = plain_search(plan.lm, plan.contexts[number], settings)
        known = {tuple(block): score for block, score in zip(blocks.tolist(), scores, strict=True)}
        worst = max(
            worst,
            *(
                abs(known[tuple(b)] - s)
                for b, s in zip(pool.tokens.tolist(), pool.log2_prob, strict=True)
                if tuple(b) in known
            ),
        )
        missing = sum(tuple(block) not in known for block in pool.tokens.tolist())
        print(f"plain loop, state {number}: {missing} of {len(pool.tokens)} candidates are not among its {len(blocks)}")
    wall, cpu = (time.perf_counter() - wall) / len(numbers), (time.process_time() - cpu) / len(numbers)
    flops = np.mean([state_flops(plan.lm, len(plan.contexts[number]), settings) for number in numbers])
    plain = {
        "plain loop: seconds a state": wall,
        "plain loop: processor seconds a state": cpu,
        "ratio to the plain loop, same FLOPs": wall / (figures["seconds"] / cost.wanted_flops * flops),
        "ratio to the plain loop, processor time": cpu / (figures["processor seconds"] / cost.wanted_flops * flops),
        "largest difference of a score, bits": worst,
    }
    figures.note(plain)
    figures.write(options.json)


def plain_search(lm: MaskedLM, context: tuple[int, ...], settings: PoolSettings) -> tuple[Any, Any]:
    """Beam search one canvas at a time: the W best blocks, (W, L), and their log2 probabilities."""
    blocks, scores = np.empty((1, 0), dtype=np.int64), np.zeros(1)
    for step in range(settings.block_length):
        canvases = torch.from_numpy(canvas_of(np.array(context), blocks, settings.block_length, lm.mask_id))
        laws = [plain_law(lm, canvas, len(context) + step).numpy() for canvas in canvases]
        totals = (scores[:, None] + np.stack(laws)).ravel()
        best = np.argsort(-totals, kind="stable")[: settings.width]
        parent, token = np.unravel_index(best, (len(laws), len(laws[0])))
        blocks, scores = np.column_stack([blocks[parent], token]), totals[best]
    return blocks, scores


if __name__ == "__main__":
    run_benchmark(main)
