"""The encoder: from a padded message and a state to a candidate, and the exact channel that this makes.

For a word w on M* and frozen bits f the encoder draws V from P(V|s, V_A = (w, f)) and X from W(.|U, s), both from
one point r in [0, 1): V by inverting its distribution function over the allowed words in their binary order, X by
inverting W's over the candidates with what r has left inside V's interval.

Dither replaces the leading digits of r by key bits: r = (d + v) / D with d = 0..D-1 from the key and v uniform and
local. For uniform d the point r is uniform whatever D is, so every message has the law P(x | V_M*, s) at any number of
dither bits, and the total variation does not move. A decoder that knows d may ignore it, so the error of the best
decoder never rises with D; as D grows it reaches that of a fully shared draw.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polar.code.construction import BlockCode
from wm_env.coded import label_given_word, word_channel, word_values
from wm_env.common.arrays import Floats, Ints
from wm_env.law import BlockLaw

_MOST_NUMBERS = 1 << 23
"""Of a table as large as the caller likes so many numbers are held at once: 64 MB, of which ten at most are needed."""


@dataclass(frozen=True)
class Encoded:
    """Blocks that an encoder drew; arrays of shape (T,).

    Attributes:
        label: number of the word V (and of U = V G).
        candidate: index of X in its state's row.
        empty: the state has no word with the wanted bits, so V was drawn uniformly from all words with these bits.
    """

    label: Ints
    candidate: Ints
    empty: NDArray[np.bool_]


def code_channel(law: BlockLaw, code: BlockCode, dithers: range | None = None) -> Tensor:
    """P(x | w, e, s) for word w on M* and surplus e = (frozen bits, dither), shape (N, 2^l, E, Q), rows sum to 1.

    `dithers` are the values of the dither that e runs through, one after the other; all D by default.
    """
    positions = code.message_set + code.frozen_set
    states, candidates = law.cover.shape
    if code.dither_bits:
        channel = _dithered_channel(law, code, positions, dithers or range(1 << code.dither_bits))
    else:
        channel = word_channel(law, code.block_length, positions)
    return channel.reshape(states, code.words, -1, candidates)


def dither_runs(law: BlockLaw, code: BlockCode) -> Iterator[range]:
    """All values of the dither, in runs for which `code_channel` is no larger than memory allows.

    Without dither there is one run: that channel is no larger than the law.
    """
    numbers = law.cover.numel() << len(code.message_set) + len(code.frozen_set)
    shifts, length = 1 << code.dither_bits, max(_MOST_NUMBERS // numbers, 1)
    return (range(first, min(first + length, shifts)) for first in range(0, shifts, length))


def _dithered_channel(law: BlockLaw, code: BlockCode, positions: tuple[int, ...], dithers: range) -> Tensor:
    """P(x | V_A, d, s) for every d of `dithers`, shape (N, 2^|A|, dithers, Q).

    G_x(t), the probability that r < t and X = x, is a sum over whole labels plus a part of the label that t falls in;
    P(x | d) = D (G_x((d + 1) / D) - G_x(d / D)).
    """
    block_length, shifts = code.block_length, 1 << code.dither_bits
    order = torch.argsort(word_values(law.labels, block_length, positions), stable=True)
    shape = len(law.p_label), 2 ** len(positions), -1
    probs = label_given_word(law, block_length, positions)[:, order].reshape(shape)
    given_label = law.p_candidate[:, order].reshape(*probs.shape, law.cover.shape[1])
    whole = (probs[..., None] * given_label).cumsum(2)

    point = torch.arange(max(dithers.start, 1), min(dithers.stop, shifts - 1) + 1, dtype=probs.dtype) / shifts
    upper = probs.cumsum(2)
    hit = torch.searchsorted(upper, point.expand(*upper.shape[:2], -1).contiguous(), right=True)
    hit = hit.clamp_max(probs.shape[2] - 1)
    mass = probs.gather(2, hit)
    rest = (point - (upper.gather(2, hit) - mass)).clamp_min(0)
    of_hit = hit[..., None].expand(*hit.shape, given_label.shape[3])
    parts = mass[..., None] * given_label.gather(2, of_hit)
    before = parts.cumsum(3) - parts
    below = whole.gather(2, of_hit) - parts + torch.minimum((rest[..., None] - before).clamp_min(0), parts)

    nothing = [torch.zeros_like(whole[:, :, :1])] if dithers.start == 0 else []
    everything = [whole[:, :, -1:]] if dithers.stop == shifts else []
    return shifts * torch.cat([*nothing, below, *everything], 2).diff(dim=2).clamp_min(0)


def encode_blocks(
    law: BlockLaw, code: BlockCode, states: Ints, words: Ints, surplus: Ints, rng: np.random.Generator
) -> Encoded:
    """Draw one block for each of T states.

    Args:
        law, code: of the block.
        states: rows of the law, shape (T,).
        words: message xor pad, in [0, 2^l), shape (T,).
        surplus: value of the key's surplus, in [0, E), shape (T,).
        rng: the encoder's own randomness.
    """
    positions = code.message_set + code.frozen_set
    frozen, dither = np.divmod(surplus, 1 << code.dither_bits)
    wanted = words << len(code.frozen_set) | frozen
    value = word_values(law.labels, code.block_length, positions).numpy()
    given_word = label_given_word(law, code.block_length, positions).numpy()
    point = (dither + rng.random(len(states))) / (1 << code.dither_bits)

    def draw(rows: slice) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        allowed = value[None, :] == wanted[rows, None]
        label, rest = _invert(np.where(allowed, given_word[states[rows]], 0), point[rows])
        candidate, _ = _invert(law.p_candidate[states[rows], label].numpy(), rest)
        return label, candidate, ~(allowed & (law.p_label.numpy()[states[rows]] > 0)).any(1)

    length = max(_MOST_NUMBERS // max(law.p_candidate.shape[1:]), 1)
    drawn = [draw(slice(first, first + length)) for first in range(0, max(len(states), 1), length)]
    return Encoded(*(np.concatenate(column) for column in zip(*drawn, strict=True)))


def _invert(probs: Floats, point: Floats) -> tuple[Ints, Floats]:
    """Inverse distribution function of every row at `point` in [0, 1), and the place of the point in its interval."""
    upper = probs.cumsum(1)
    total = upper[:, -1]
    # A product that rounds up to the total would miss every interval.
    target = np.minimum(point * total, np.nextafter(total, 0))
    hit = (upper > target[:, None]).argmax(1)
    rows = np.arange(len(probs))
    mass = probs[rows, hit]
    place = (target - (upper[rows, hit] - mass)) / mass
    return hit, np.clip(place, 0, np.nextafter(1.0, 0))
