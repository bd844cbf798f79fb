"""From a map of candidates to words and a share of the budget to the channel P(x | word), many states at once.

A word is sent with probability c = 2^-l. The mass p(B_w) that its candidates have above c must be sent for other words,
where it is decoded wrongly; a word below c takes such surplus mass. Any assignment of the surplus keeps the average law
q, so only three things are free: how q differs from p (`spend`), which words take the surplus of which
(`assign_surplus`, after `agents.planner.index_assignment`), and at which values of the dither it is sent
(`agents.planner.open_shop`).
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from agents.planner.word_maps import word_loads
from wm_env.common.arrays import Floats, Ints

_ROUNDING = 1e-13
_TIE_BREAK = 1e-9


def spend(cover: Floats, words: Ints, message_bits: int, budget: Floats) -> Floats:
    """The law q with TV(q, p) = budget that is decoded rightly most often, shape (N, Q), rows sum to 1.

    Mass is taken from candidates above 2^-l, cut down to a common level, and only then from words whose candidates
    exceed 2^-l together, which shared dither can help as well. It goes to the candidates of words with less than
    2^-l, the fullest of these first. Inside a word mass is taken and given in proportion. Every unit of total variation
    turns one unit of wrongly decoded mass into right mass.

    Args:
        cover: p(x|s), shape (N, Q).
        words: word of every candidate, shape (N, Q), -1 where the cover is 0.
        message_bits: l.
        budget: total variation of every state, shape (N,), at most what its words can use.
    """
    cap = 2.0**-message_bits
    loads = word_loads(words, cover, message_bits)
    order = np.argsort(-loads, axis=1, kind="stable")
    given = fill_in_order(budget, np.where(loads > 0, np.maximum(cap - loads, 0), 0), order)
    heavy = word_loads(np.where(cover > cap, words, -1), cover, message_bits)
    lighter = loads - (heavy - _cut_down(heavy, cap, budget))
    rest = np.maximum(budget - (loads - lighter).sum(1), 0)
    after = _cut_down(lighter, cap, rest) + given
    factor = np.divide(after, loads, out=np.zeros_like(loads), where=loads > 0)
    return np.where(words >= 0, cover * np.take_along_axis(factor, np.maximum(words, 0), axis=1), 0)


def fill_in_order(mass: Floats, room: Floats, order: Ints) -> Floats:
    """What each place takes of a mass (N,) that fills the room of places (N, K), one after the other in this order."""
    in_order = np.take_along_axis(room, order, axis=1)
    taken = np.empty_like(room)
    np.put_along_axis(taken, order, np.clip(mass[:, None] - (in_order.cumsum(1) - in_order), 0, in_order), axis=1)
    return taken


def _cut_down(loads: Floats, cap: float, budget: Floats) -> Floats:
    """Loads lowered to a common level, at least `cap`, that takes `budget` (N,) from every row, or all above `cap`."""
    fullest_first = np.sort(loads, axis=1)[:, ::-1]
    level = ((fullest_first.cumsum(1) - budget[:, None]) / np.arange(1, loads.shape[1] + 1)).max(1, keepdims=True)
    lowered: Floats = np.minimum(loads, np.maximum(level, cap))
    return lowered


def assign_surplus(loads: Floats, capacity: Floats) -> Floats:
    """F(v, w), the mass of the candidates of word v that is sent for word w, shape (N, 2^l, 2^l), zero diagonal.

    Every word gets no more than its capacity in the end. What v has above its own goes to the nearest words with room:
    its partner v xor e for e = 1, 2, 4, ..., then for e of two bits, and so on, one after the other, so that it fills
    few words. Every state gets the order of the bits, rotated, that leaves the fewest wrong bits.

    Args:
        loads: mass of the candidates of every word, shape (N, 2^l).
        capacity: mass with which every word is sent, shape (N, 2^l).
    """
    count = loads.shape[1]
    word = np.arange(count)
    best = np.zeros((count, count, len(loads)))
    least_wrong = np.full(len(loads), np.inf)
    for first in range(count.bit_length() - 1):
        flows = np.zeros_like(best)
        wrong = np.zeros(len(loads))
        for mask, flow in _transfers(loads.T, capacity.T, first):
            flows[word, word ^ mask] = flow
            wrong += mask.bit_count() * flow.sum(0)
        better = wrong < least_wrong - _ROUNDING
        best[:, :, better], least_wrong[better] = flows[:, :, better], wrong[better]
    return np.ascontiguousarray(best.transpose(2, 0, 1))


def wrong_bits(loads: Floats) -> Floats:
    """Expected number of wrong bits where surplus of loads (2^l, N) is sent, every word with 2^-l, shape (N,).

    That of the first order of bits, for speed; `assign_surplus` may find a better assignment.
    """
    wrong = np.zeros(loads.shape[1])
    for mask, flow in _transfers(loads, np.full_like(loads, 1 / len(loads)), 0):
        wrong += mask.bit_count() * flow.sum(0)
    return wrong


def _transfers(loads: Floats, capacity: Floats, first: int) -> Iterator[tuple[int, Floats]]:
    """Surplus of every word that its partner word xor e takes, shape (2^l, N) like the loads, one e after the other.

    Words first, so that the partners of all words are whole rows: three times as fast. Of equally many bits those come
    first that are near above bit `first`.
    """
    count = len(loads)
    bits = count.bit_length() - 1
    word = np.arange(count)
    excess, room = np.maximum(loads - capacity, 0), np.maximum(capacity - loads, 0)
    for mask in sorted(
        range(1, count), key=lambda mask: (mask.bit_count(), (mask << bits | mask) >> first & count - 1)
    ):
        flow = np.minimum(excess, room[word ^ mask])
        excess = excess - flow
        room = room - flow[word ^ mask]
        yield mask, flow


def break_ties(channel: Floats, erring: NDArray[np.bool_]) -> Floats:
    """The channel with every word replaced, with probability 1e-9, by word xor e, P(e) proportional to l - |e|.

    Words that send the same heavy candidate for sure are equally likely when it arrives. Now the likeliest is the one
    with the smallest sum of Hamming distances to the others, which leaves the fewest wrong bits, and every decoder
    finds it. The average law stays what it is, since xor permutes the words.

    Args:
        channel: P(x | w, j), shape (N, 2^l, J, Q).
        erring: states to which it applies, shape (N,): those that err anyway.
    """
    word = np.arange(channel.shape[1])
    near = (len(word).bit_length() - 1 - np.bitwise_count(word[:, None] ^ word)).astype(np.float64)
    some = channel[erring]
    near_words = np.tensordot(near / near[0].sum(), some, (1, 1)).swapaxes(0, 1)
    broken = channel.copy()
    broken[erring] = (1 - _TIE_BREAK) * some + _TIE_BREAK * near_words
    return broken
