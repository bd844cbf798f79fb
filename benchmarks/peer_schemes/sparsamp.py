"""SparSamp: the messages are points spread evenly over the circle of the law, turned by a shared random angle.

The text shows which cell the point fell in; the messages whose points share the cell survive, are spread over the
circle again, and so on until one is left. For a uniform angle every message has exactly the law.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

ANGLE_BITS = 256
"""Angles are multiples of 2^-256 of a turn: an angle must be finer than the points of a 128-bit message."""


@dataclass(frozen=True)
class Survivors:
    """The messages start, ..., start + count - 1, modulo their number before."""

    start: int
    count: int


def survivors(cell: tuple[int, int], total: int, messages: int, angle: int) -> Survivors:
    """The points j / messages + angle (modulo 1) inside the cell [low, high) / total."""
    unit = total << ANGLE_BITS
    behind = total * angle * messages
    first, end = (-((behind - (edge * messages << ANGLE_BITS)) // unit) for edge in cell)
    return Survivors(first % messages, end - first)


def choose(cumulative: Sequence[int], messages: int, message: int, angle: int) -> int:
    """The cell that the message's point is in; `cumulative` starts with 0 and ends with the total."""
    turn = messages << ANGLE_BITS
    point = ((message << ANGLE_BITS) + angle * messages) % turn
    return bisect_right(cumulative, point * cumulative[-1] // turn) - 1


def block_choices(pmf: NDArray[np.float64], message_bits: int, angles: NDArray[np.float64]) -> NDArray[np.int64]:
    """x of every state, word and angle in [0, 1), shape (N, 2^l, E), for laws `pmf` of shape (N, Q)."""
    words = 1 << message_bits
    points = (np.arange(words)[:, None] / words + angles) % 1
    upper = pmf.cumsum(1)
    targets = points[None] * upper[:, -1, None, None]
    choices = np.stack([np.searchsorted(row, target, side="right") for row, target in zip(upper, targets, strict=True)])
    inside: NDArray[np.int64] = np.minimum(choices, pmf.shape[1] - 1)
    return inside


def message_law(cumulative: Sequence[int], messages: int, message: int) -> list[float]:
    """P(x | message) over a uniform angle: the length of the angles that lead to each cell, as a sum of two arcs."""
    total = cumulative[-1]
    start = message * total / messages
    arcs = ((start, total), (0.0, start))
    return [
        sum(max(0.0, min(high, end) - max(low, begin)) for begin, end in arcs) / total
        for low, high in pairwise(cumulative)
    ]
