"""What a tree costs before it is built: states, canvases, floating-point operations, memory, time."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from wm_env.lm.build.partial import Context
from wm_env.lm.models.exact.network import ExactNetwork
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.pools.candidates import forward_rows, passes_at_once
from wm_env.lm.pools.settings import PoolSettings

TOKENS_IN_A_PASS = 10_000
"""Matrix products of so many rows run at full speed on an H100; more only adds filler, and keeps other GPUs waiting."""
CPU_ROWS = 8
"""Canvases in a pass on a CPU: more do not fit its caches."""
SHARE_OF_MEMORY = 0.8


@dataclass(frozen=True)
class BuildCost:
    """An upper bound: states may have fewer than Q candidates, and equal contexts are computed once.

    Attributes:
        states: contexts whose candidates are wanted.
        canvases: rows that go through the model, those that only fill up a pass included.
        flops: floating-point operations of all canvases.
        wanted_flops: those of the canvases that fill up no pass.
    """

    states: int
    canvases: int
    flops: float
    wanted_flops: float


def estimate(
    lm: MaskedLM, prompts: Sequence[Context], settings: PoolSettings, *, blocks: int, batch_size: int
) -> BuildCost:
    """The cost of the tree of `prompts`, given as token ids."""
    states: Counter[tuple[int, int]] = Counter()
    for number in range(blocks):
        for context in prompts:
            states[number, len(context) + number * settings.block_length] += settings.candidates**number
    canvases, flops, wanted = 0, 0.0, 0.0
    for (number, length), count in states.items():
        full, rest = divmod(count, batch_size)
        there = settings.at_block(number)
        rows = full * _filled_rows(lm, there, batch_size) + _filled_rows(lm, there, rest)
        canvases += rows
        flops += rows * canvas_flops(lm, length + settings.block_length)
        wanted += count * state_flops(lm, length, settings)
    return BuildCost(states.total(), canvases, flops, wanted)


def state_flops(lm: MaskedLM, length: int, settings: PoolSettings) -> float:
    """Floating-point operations of the candidates of one context of `length` tokens, without filler."""
    return sum(_wanted_rows(lm, settings)) * canvas_flops(lm, length + settings.block_length)


def _wanted_rows(lm: MaskedLM, settings: PoolSettings) -> list[int]:
    """Most canvases of one state at each of the L steps."""
    allowed = int((~lm.banned).sum())
    return [min(settings.width, allowed ** min(step, 64)) for step in range(settings.block_length)]


def _filled_rows(lm: MaskedLM, settings: PoolSettings, states: int) -> int:
    """Canvases of one batch of states over all steps; every step fills whole passes unless the model is exact."""
    if lm.is_exact:
        return states * sum(_wanted_rows(lm, settings))
    return sum(
        -(-states * rows // settings.rows_at(step)) * settings.rows_at(step)
        for step, rows in enumerate(_wanted_rows(lm, settings))
    )


def canvas_flops(lm: MaskedLM, length: int) -> float:
    """Floating-point operations of one canvas of `length` tokens with one row of the LM head; a multiply-add is two.

    2 T [(n - 1) (2 d^2 + 2 d d_kv + 3 d m) + 2 d d_kv] + 2 (2 d^2 + 3 d m) + 4 d [(n - 1) T^2 + T] + 2 d V: the layers
    before the last; keys and values of the last; its other products, of one row; attention; the head. Encoders, which
    have no groups of heads, compute their last layer whole.
    """
    sizes = _sizes(lm)
    d, n, m, d_kv = sizes.width, sizes.layers, sizes.inner, sizes.key_width
    layer, keys = 2 * d * d + 2 * d * d_kv + 3 * d * m, 2 * d * d_kv
    if sizes.whole_last_layer:
        trunk = 2 * length * n * layer + 4 * d * n * length**2
    else:
        trunk = 2 * length * ((n - 1) * layer + keys) + 2 * (layer - keys) + 4 * d * ((n - 1) * length**2 + length)
    return float(trunk + 2 * d * sizes.vocabulary)


@dataclass(frozen=True)
class _Sizes:
    """Of a network: widths of the residual stream, of keys, of the MLP; layers, heads, rows of the head."""

    width: int
    key_width: int
    inner: int
    layers: int
    heads: int
    vocabulary: int
    whole_last_layer: bool


def _sizes(lm: MaskedLM) -> _Sizes:
    if isinstance(lm.network, ExactNetwork):
        own = lm.network.shape
        key_width = own.groups * own.head_width
        return _Sizes(own.width, key_width, own.inner, own.layers, own.heads, own.vocabulary, whole_last_layer=False)
    shape = lm.network.config
    groups = getattr(shape, "num_key_value_heads", None)
    return _Sizes(
        width=shape.hidden_size,
        key_width=shape.hidden_size * (groups or shape.num_attention_heads) // shape.num_attention_heads,
        inner=shape.intermediate_size,
        layers=shape.num_hidden_layers,
        heads=shape.num_attention_heads,
        vocabulary=shape.vocab_size,
        whole_last_layer=groups is None,
    )


def pass_bytes(lm: MaskedLM, rows: int, length: int) -> int:
    """Memory of one pass beside the weights, estimated from above.

    Per token: the hidden state, its norm, queries, keys, values and attention, two of them in fp32 for the rotation,
    and the three tensors of the MLP. Per canvas: the logits, and five tensors of float64 that the order is made of. In
    exact arithmetic all of them may be float64, and the attention of all heads is there at once, twice.
    """
    sizes = _sizes(lm)
    size = 8 if isinstance(lm.network, ExactNetwork) else lm.network.dtype.itemsize
    token = size * (6 * sizes.width + 3 * sizes.inner) + 4 * 4 * sizes.width
    if lm.is_exact:
        token += 2 * size * sizes.heads * length
    return int(rows * (length * token + sizes.vocabulary * (size + 5 * 8)))


def weight_bytes(lm: MaskedLM) -> int:
    """Memory of the weights."""
    if isinstance(lm.network, ExactNetwork):
        return lm.network.nbytes
    return sum(parameter.nbytes for parameter in lm.network.parameters())


def product_format(lm: MaskedLM) -> torch.dtype:
    """A float format of matrix products to compare the model's speed with: its own, or the one nearest to it."""
    if not isinstance(lm.network, ExactNetwork):
        own: torch.dtype = lm.network.dtype
        return own
    return torch.float64 if lm.network.kind == "float64" else torch.float32


def rows_that_fit(lm: MaskedLM, settings: PoolSettings, length: int) -> int:
    """Canvases of `length` tokens for a pass on this device as it is now.

    On a GPU a pass holds k whole states, k the largest divisor of Q that stays below `TOKENS_IN_A_PASS` and the free
    memory: then the Q states that follow a state fill whole passes.
    """
    if lm.banned.device.type != "cuda":
        return min(settings.width, CPU_ROWS)
    free = SHARE_OF_MEMORY * free_bytes(lm.banned.device)

    def fits(rows: int) -> bool:
        return rows * length <= TOKENS_IN_A_PASS and pass_bytes(lm, rows, length) <= free

    whole = [settings.width * k for k in range(1, settings.candidates + 1) if settings.candidates % k == 0]
    rows = max(filter(fits, whole), default=settings.width)
    while rows > 1 and not fits(rows):
        rows //= 2
    return rows


def free_bytes(device: torch.device) -> int:
    """Memory of a GPU that nobody uses, or that torch holds and does not use."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def matrix_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of large matrix products, half a second of them, on this device now."""
    side = 8192 if device.type == "cuda" else 1024
    generator = torch.Generator(device).manual_seed(0)
    left, right = (
        torch.randn(side, side, device=device, generator=generator, dtype=torch.float32).to(dtype) for _ in range(2)
    )
    product = torch.empty_like(left)
    done, seconds = _repeat(lambda: torch.mm(left, right, out=product), device, seconds=0.5)
    return 2.0 * side**3 * done / seconds


def measure_speed(lm: MaskedLM, length: int, settings: PoolSettings) -> float:
    """Floating-point operations per second of full passes over canvases of `length` tokens, on this machine now."""
    canvases = torch.full((settings.rows * passes_at_once(lm), length), lm.mask_id)

    def full_passes() -> None:
        for _ in forward_rows(lm, canvases, length - 1, settings.temperature, settings.rows):
            pass

    done, seconds = _repeat(full_passes, lm.banned.device, seconds=0.5)
    return len(canvases) * canvas_flops(lm, length) * done / seconds


def _repeat(work: Callable[[], object], device: torch.device, seconds: float) -> tuple[int, float]:
    """Repetitions and their time; two more come first, which pay for set-up that the others do not."""
    for _ in range(2):
        work()
    _wait_for(device)
    start, done = time.perf_counter(), 0
    while done < 2 or time.perf_counter() - start < seconds:
        for _ in range(2):
            work()
        done += 2
        _wait_for(device)
    return done, time.perf_counter() - start


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
