"""iMEC: the message and the block are coupled with little entropy, and the encoder draws the block given the message.

A belief about the message, uniform at first, is coupled with the law of every block or token; what is received turns
the belief into its posterior. The coupling has the law as its margin, so with a padded message the law is exact. The
encoder needs randomness of its own, the key is no longer than the message.
"""

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .weights import WEIGHT_BITS, quantise


def greedy_coupling(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int, int]]:
    """(i, j, mass): a joint law with these margins and little entropy.

    The largest masses left on both sides are matched, again and again; ties go to the smaller index.

    Raises:
        ValueError: the margins have different sums.
    """
    if sum(first) != sum(second):
        raise ValueError(f"margins of sums {sum(first)} and {sum(second)} have no coupling")
    left, right = ([(-mass, i) for i, mass in enumerate(side) if mass] for side in (first, second))
    heapq.heapify(left)
    heapq.heapify(right)
    joint = []
    while left:
        (a, i), (b, j) = left[0], right[0]
        mass = -max(a, b)
        joint.append((i, j, mass))
        for heap, rest, index in ((left, a + mass, i), (right, b + mass, j)):
            if rest:
                heapq.heapreplace(heap, (rest, index))
            else:
                heapq.heappop(heap)
    return joint


def message_channel(weights: Sequence[int], message_bits: int) -> NDArray[np.float64]:
    """P(x | w) of one block, shape (2^l, Q), for uniform words w; `weights` sum to a multiple of 2^l."""
    words, total = 1 << message_bits, sum(weights)
    channel = np.zeros((words, len(weights)))
    for word, x, mass in greedy_coupling([total // words] * words, weights):
        channel[word, x] += mass * words / total
    return channel


class Beliefs:
    """What both ends think of a long message: independent beliefs about chunks of a few bits.

    Attributes:
        chunks: for every chunk the weight of its values, integers that sum to 2^`WEIGHT_BITS`.
    """

    def __init__(self, chunks: int, chunk_bits: int) -> None:
        self.chunks = [[1 << (WEIGHT_BITS - chunk_bits)] * (1 << chunk_bits) for _ in range(chunks)]
        self._doubt = [float(chunk_bits)] * chunks

    @property
    def doubt(self) -> float:
        """The largest entropy of a chunk in bits."""
        return max(self._doubt)

    def next_chunk(self) -> int:
        """The chunk that the next token is coupled with: the one in most doubt."""
        return self._doubt.index(self.doubt)

    def observe(self, chunk: int, joint: list[tuple[int, int, int]], token: int) -> None:
        """The posterior of the chunk once `token` is known."""
        posterior = np.zeros(len(self.chunks[chunk]))
        for value, x, mass in joint:
            if x == token:
                posterior[value] = mass
        probs = posterior / posterior.sum()
        self.chunks[chunk] = quantise(probs)
        self._doubt[chunk] = -float((probs[probs > 0] * np.log2(probs[probs > 0])).sum())

    def decisions(self) -> list[int]:
        """The likeliest value of every chunk, ties to the smaller."""
        return [max(range(len(belief)), key=belief.__getitem__) for belief in self.chunks]
