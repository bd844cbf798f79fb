"""The encoder: from a padded message and a state to a candidate, and the exact channel that this makes.

For a word w on M* and frozen bits f the encoder draws V from P(V|s, V_A = (w, f)) and X from W(.|U, s), both from
one point r in [0, 1): V by inverting its distribution function over the allowed words in their binary order, X by
inverting W's over the candidates with what r has left inside V's interval.

Dither replaces the leading digits of r by key bits: r = (d + v) / D with d = 0..D-1 from the key and v uniform and
local. For uniform d the point r is uniform whatever D is, so every message has the law P(x | V_M*, s) at any number of
dither bits, and the total variation does not move. A decoder that knows d may ignore it, so the error of the best
decoder never rises with D; as D grows it reaches that of a fully shared draw.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polar.construction import BlockCode
from wm_env.coded import label_given_word, word_channel, word_values
from wm_env.law import BlockLaw
from wm_env.tree import Floats, Ints


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


def code_channel(law: BlockLaw, code: BlockCode) -> Tensor:
    """P(x | w, e, s) for word w on M* and surplus e = (frozen bits, dither), shape (N, 2^l, E, Q), rows sum to 1."""
    positions = code.message_set + code.frozen_set
    states, candidates = law.cover.shape
    if code.dither_bits:
        channel = _dithered_channel(law, code.block_length, positions, 1 << code.dither_bits)
    else:
        channel = word_channel(law, code.block_length, positions)
    return channel.reshape(states, code.words, code.surplus_words, candidates)


def _dithered_channel(law: BlockLaw, block_length: int, positions: tuple[int, ...], shifts: int) -> Tensor:
    """P(x | V_A, d, s) for every dither d = 0..D-1, shape (N, 2^|A|, D, Q).

    G_x(t), the probability that r < t and X = x, is a sum over whole labels plus a part of the label that t falls in;
    P(x | d) = D (G_x((d + 1) / D) - G_x(d / D)).
    """
    order = torch.argsort(word_values(law.labels, block_length, positions), stable=True)
    shape = len(law.p_label), 2 ** len(positions), -1
    probs = label_given_word(law, block_length, positions)[:, order].reshape(shape)
    given_label = law.p_candidate[:, order].reshape(*probs.shape, law.cover.shape[1])
    whole = (probs[..., None] * given_label).cumsum(2)

    point = torch.arange(1, shifts, dtype=probs.dtype) / shifts
    upper = probs.cumsum(2)
    hit = torch.searchsorted(upper, point.expand(*upper.shape[:2], -1).contiguous(), right=True)
    hit = hit.clamp_max(probs.shape[2] - 1)
    mass = probs.gather(2, hit)
    rest = (point - (upper.gather(2, hit) - mass)).clamp_min(0)
    of_hit = hit[..., None].expand(*hit.shape, given_label.shape[3])
    parts = mass[..., None] * given_label.gather(2, of_hit)
    before = parts.cumsum(3) - parts
    below = whole.gather(2, of_hit) - parts + torch.minimum((rest[..., None] - before).clamp_min(0), parts)

    ends = torch.cat([torch.zeros_like(whole[:, :, :1]), below, whole[:, :, -1:]], 2)
    return shifts * ends.diff(dim=2).clamp_min(0)


def encode(
    law: BlockLaw, code: BlockCode, states: Ints, words: Ints, surplus: Ints, rng: np.random.Generator
) -> Encoded:
    """Draw one block for each of T states.

    Args:
        law: of the block.
        code: of the block.
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
    allowed = value[None, :] == wanted[:, None]
    probs = np.where(allowed, given_word[states], 0)
    point = (dither + rng.random(len(states))) / (1 << code.dither_bits)
    label, rest = _invert(probs, point)
    candidate, _ = _invert(law.p_candidate[states, label].numpy(), rest)
    empty = np.where(allowed, law.p_label.numpy()[states], 0).sum(1) == 0
    return Encoded(label, candidate, empty)


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
