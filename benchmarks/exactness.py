"""What exact arithmetic costs: passes in floats and with every exact product, as ratios in one process.

python benchmarks/exactness.py                                      the embedded model
python benchmarks/exactness.py --device cuda --shape llada-8b       random weights of LLaDA-8B's shape
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from command import run_benchmark
from random_llada import llada_8b
from torch import Tensor

from wm_env.common.arguments import parse
from wm_env.lm.models.exact.law import log2_ticks
from wm_env.lm.models.exact.network import VERSION, ExactNetwork
from wm_env.lm.models.exact.quantise import W8
from wm_env.lm.models.exact.weights import FloatSource
from wm_env.lm.models.forward import can_compile, compile_layers
from wm_env.lm.models.llada import exact_shape, llada_logits
from wm_env.lm.models.llada_config import LLaDAConfig
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.network import build_network
from wm_env.lm.models.stack import device_name
from wm_env.lm.verify import digest, embedded_networks


@dataclass(frozen=True)
class Options:
    """Time passes in floats and in exact arithmetic."""

    device: str = "cpu"
    """Where the model runs."""
    threads: int = 1
    """Threads of torch on a CPU."""
    shape: Literal["mini", "llada-8b"] = "mini"
    """The embedded model, or random weights of LLaDA-8B's shape."""
    layers: int = 32
    """Layers of LLaDA-8B; a pass takes its time by layers."""
    compile: bool = False
    """Also time bfloat16 with compiled layers."""
    rows: tuple[int, ...] = (1, 32)
    """Canvases of a pass."""
    lengths: tuple[int, ...] = (64, 256)
    """Tokens of a canvas."""
    repeats: int = 5
    """Passes that are timed; the fastest counts."""


Pass = Callable[[Tensor, int], Tensor]
"""(canvas, position) -> logits or a law, (N, V)."""


def embedded_passes(device: torch.device) -> Iterator[tuple[str, Pass]]:
    """The embedded model: float32, then every exact product."""
    plain = load_lm("mini", device=str(device), arithmetic="float")
    yield "float32", lambda canvas, position: plain.log2_probs(canvas, position, 1.0)
    for form, kind, network in embedded_networks(device):
        yield f"{VERSION} {form.name}, {kind}", _exact(network)


def _exact(network: ExactNetwork) -> Pass:
    return lambda canvas, position: log2_ticks(network.logits(canvas, [position])[:, 0], 1.0)


def random_passes(options: Options, device: torch.device) -> Iterator[tuple[str, Pass]]:
    """Random weights of LLaDA-8B's shape, drawn where they are needed: bfloat16, then int8."""
    config = llada_8b(options.layers)
    shape = exact_shape(config)
    generator = torch.Generator(device)

    def drawn(name: str, size: tuple[int, ...]) -> Tensor:
        generator.manual_seed(sum(name.encode()))
        if len(size) == 1:
            return torch.ones(size, device=device)
        scale = 1.0 if "embed" in name else 1 / math.sqrt(size[1])
        return torch.randn(size, device=device, generator=generator).mul_(scale).to(torch.bfloat16)

    yield from _bfloat16_passes(config, {name: drawn(name, size) for name, size, _ in shape.tensors()}, options.compile)
    for fuse in (True, False):
        network = ExactNetwork(FloatSource(shape, W8, drawn), device, fuse=fuse)
        where = f"{network.nbytes / 2**30:.2f} GiB of weights"
        yield f"{VERSION} w8, {network.kind}, {network.fusion}, {where}", _logits(network)


def _logits(network: ExactNetwork) -> Pass:
    return lambda canvas, position: network.logits(canvas, [position])[:, 0]


def _bfloat16_passes(config: LLaDAConfig, state: dict[str, Tensor], compiled: bool) -> Iterator[tuple[str, Pass]]:
    network = build_network(config, "meta")
    network.load_state_dict({name: tensor.to(torch.bfloat16) for name, tensor in state.items()}, False, True)
    network.requires_grad_(False).eval()

    @torch.no_grad()
    def run(canvas: Tensor, position: int) -> Tensor:
        return llada_logits(network, canvas, position)

    yield "bfloat16", run
    if compiled and can_compile():
        compile_layers(network)
        yield "bfloat16, compiled", run


def seconds(work: Callable[[], Tensor], device: torch.device, repeats: int) -> float:
    """The fastest of some calls, after two that pay for set-up."""
    best = math.inf
    for number in range(repeats + 2):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number >= 2:
            best = min(best, time.perf_counter() - start)
    return best


def report(options: Options) -> Iterator[str]:
    """The lines that the command prints, each as soon as it is known."""
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    yield f"{device_name(device)}, torch {torch.__version__}, {options.threads} thread(s)"
    shapes = [(rows, length) for rows in options.rows for length in options.lengths]
    first: dict[tuple[int, int], float] = {}
    passes = embedded_passes(device) if options.shape == "mini" else random_passes(options, device)
    for name, run in passes:
        yield name
        laws = []
        for rows, length in shapes:
            generator = torch.Generator().manual_seed(length)
            canvas = torch.randint(3, 8000, (rows, length), generator=generator).to(device)
            try:
                took = seconds(partial(run, canvas, length - 4), device, options.repeats)
                law = run(canvas, length - 4)[:2]
            except Exception as error:  # a compiler's or a driver's: the other shapes are still timed
                yield f"    {rows:3} x {length:4}: {type(error).__name__}: {error}"
                continue
            before = first.setdefault((rows, length), took)
            if name.startswith(VERSION):
                laws.append(law if law.dtype == torch.int64 else log2_ticks(law, 1.0))
            speed = f"{1e3 * took:8.2f} ms, {rows / took:8.3g} canvases/s, {before / took:5.2f} of the first's speed"
            yield f"    {rows:3} x {length:4}: {speed}"
        memory = f", {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB in all" if device.type == "cuda" else ""
        yield f"    laws {digest(laws)[:16] if laws else 'in floats'}{memory}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    for line in report(parse(Options, prog="python benchmarks/exactness.py", args=arguments)):
        print(line, flush=True)


if __name__ == "__main__":
    run_benchmark(main)
