"""A message of fixed length over many blocks, at total variation 0: arithmetic coding from a shared random offset.

Both ends know the laws of the blocks and share a uniform offset R. The sender of message m of l bits follows the point
(R + m 2^-l) mod 1: every block divides an interval of [0, 1) in proportion to its law, and the candidate is the part
that holds the point. So for every message the text has the law of the cover, block by block, without knowledge of later
blocks. The receiver narrows the same interval. Points of possible messages lie 2^-l apart; the receiver takes the first
one inside. The probability of the message is then E min(1, 2^-l / p(x^n)), the largest of all codes with any key
(`wm_env.theory.long_texts`).

Laws are rounded to multiples of 2^-48 and interval ends to 2^-128 of a part, so "law of the cover" is to within 10^-12
a block.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from polar.text.arithmetic import Interval
from wm_env.common.arrays import Floats

_WEIGHT_BITS = 48
_SPARE = 256


@dataclass(frozen=True)
class Offset:
    """The shared key of a text: a uniform number in [0, 1), as `value` / 2^`precision`."""

    value: int
    precision: int


def draw_offset(blocks: int, rng: np.random.Generator) -> Offset:
    """A uniform offset with digits enough for `blocks` blocks."""
    precision = (_WEIGHT_BITS + 16) * blocks + _SPARE
    return Offset(int.from_bytes(rng.bytes((precision + 7) // 8), "big") >> -precision % 8, precision)


def block_weights(law: Floats) -> list[int]:
    """Integer weights in proportion to a law, shape (Q,), with the sum 2^48; the largest takes what rounding leaves."""
    weights = [round(float(p) * (1 << _WEIGHT_BITS)) for p in law]
    weights[int(np.argmax(law))] += (1 << _WEIGHT_BITS) - sum(weights)
    return weights


def encode_text(laws: Iterable[Sequence[int]], message: int, message_bits: int, offset: Offset) -> list[int]:
    """The candidates of a message in [0, 2^l), one for each block's weights; reads the laws one after the other."""
    shift = offset.precision - message_bits
    point = (offset.value + (message << shift)) % (1 << offset.precision)
    interval, chosen = Interval(), []
    for weights in laws:
        total = sum(weights)
        interval = interval.refined(total)
        place = interval.find(point >> offset.precision - interval.precision, total)
        index, start = 0, 0
        while start + weights[index] <= place:
            start += weights[index]
            index += 1
        interval = interval.part(start, start + weights[index], total)
        chosen.append(index)
    return chosen


def decode_text(laws: Iterable[Sequence[int]], candidates: Iterable[int], message_bits: int, offset: Offset) -> int:
    """The first message whose point the text's interval holds; if there is none, the next one."""
    interval = Interval()
    for weights, index in zip(laws, candidates, strict=True):
        start, total = sum(weights[:index]), sum(weights)
        interval = interval.refined(total).part(start, start + weights[index], total)
    # Points are rounded down to the interval's digits by the encoder, so the first digit's beginning is the edge.
    low = interval.low << offset.precision - interval.precision
    step = offset.precision - message_bits
    return -((offset.value - low) >> step) % (1 << message_bits)
