"""What a tree costs before it is built: states, canvases, floating-point operations, time."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from wm_env.lm.candidates import PoolSettings, forward_rows
from wm_env.lm.llada import MaskedLM
from wm_env.lm.partial import Context


@dataclass(frozen=True)
class Cost:
    """An upper bound: states may have fewer than Q candidates, and equal contexts are computed once.

    Attributes:
        states: contexts whose candidates are wanted.
        canvases: rows that go through the model, those that only fill up a pass included.
        flops: floating-point operations of all canvases.
    """

    states: int
    canvases: int
    flops: float


def estimate(lm: MaskedLM, prompts: Sequence[Context], settings: PoolSettings, *, blocks: int, batch_size: int) -> Cost:
    """The cost of the tree of `prompts`, given as token ids."""
    states: Counter[tuple[int, int]] = Counter()
    for number in range(blocks):
        for context in prompts:
            states[number, len(context) + (number + 1) * settings.block_length] += settings.candidates**number
    canvases, flops = 0, 0.0
    for (_, length), count in states.items():
        full, rest = divmod(count, batch_size)
        rows = full * _rows(lm, settings, batch_size) + _rows(lm, settings, rest)
        canvases += rows
        flops += rows * canvas_flops(lm, length)
    return Cost(states.total(), canvases, flops)


def _rows(lm: MaskedLM, settings: PoolSettings, states: int) -> int:
    """Canvases of one batch of states over all L steps, every step filled up to whole passes."""
    allowed = int((~lm.banned).sum())
    most = settings.beam_width if settings.pool == "top" else settings.candidates
    needed = [states * min(most, allowed ** min(step, 64)) for step in range(settings.block_length)]
    return sum(-(-rows // settings.rows) * settings.rows for rows in needed)


def canvas_flops(lm: MaskedLM, length: int) -> float:
    """Floating-point operations of one canvas of `length` tokens with one row of the LM head.

    2 T n (2 d^2 + 2 d d_kv + 3 d m) + 4 d n T^2 + 2 d V: projections and MLP, attention, head; a multiply-add is two.
    """
    shape = lm.network.config
    d, n, m = shape.hidden_size, shape.num_hidden_layers, shape.intermediate_size
    # Encoders such as BERT have no groups of heads.
    d_kv = d * getattr(shape, "num_key_value_heads", shape.num_attention_heads) // shape.num_attention_heads
    trunk = 2 * length * n * (2 * d * d + 2 * d * d_kv + 3 * d * m)
    return float(trunk + 4 * d * n * length**2 + 2 * d * shape.vocab_size)


def measure_speed(lm: MaskedLM, length: int, settings: PoolSettings) -> float:
    """Floating-point operations per second of one full pass over canvases of `length` tokens, on this machine now."""
    canvases = torch.full((settings.rows, length), lm.mask_id)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for _, log2_probs in forward_rows(lm, canvases, length - 1, settings.temperature, settings.rows):
            log2_probs.sum().item()
        times.append(time.perf_counter() - start)
    # The first pass pays for set-up that the others do not.
    return settings.rows * canvas_flops(lm, length) / float(np.mean(times[1:]))
