"""Index assignment: numbers for words such that surplus mass goes to Hamming neighbours, for few wrong bits.

Which candidates share a word decides how many blocks are wrong; how the words are numbered only how many bits are. The
words of a state can be renumbered at will, except those with candidates of other states as well: these have one
number in all of them.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from agents.planner.couplings import wrong_bits
from wm_env.common.arrays import Floats, Ints
from wm_env.theory.limits import distance_masses

_ROUNDING = 1e-13
_SWEEPS = 2
_LEAST_WEIGHT = 1e-9


@dataclass
class _Numbering:
    """The words of N states in the order of their numbers.

    Attributes:
        word_at: word of every number, shape (N, 2^l).
        loads: mass of the word of every number, shape (2^l, N).
        pinned: whether it is shared, shape (2^l, N).
        wrong: expected number of wrong bits, shape (N,).
    """

    word_at: Ints
    loads: Floats
    pinned: NDArray[np.bool_]
    wrong: Floats

    def swap(self, first: int, second: int, rows: Ints, group: Ints, weights: Floats) -> None:
        """Exchange the words of two numbers in those groups of states where that leaves fewer wrong bits.

        Args:
            first, second: the numbers.
            rows: states that may take part, whole groups.
            group: of every state, shape (N,).
            weights: how much the states count, shape (N,).
        """
        trial = self.loads[:, rows]
        trial[[first, second]] = trial[[second, first]]
        wrong = wrong_bits(trial)
        change = np.bincount(group[rows], weights[rows] * (wrong - self.wrong[rows]), minlength=len(self.wrong))
        better = change[group[rows]] < -_ROUNDING
        rows = rows[better]
        self.loads[:, rows], self.wrong[rows] = trial[:, better], wrong[better]
        for of_number in (self.word_at.T, self.pinned):
            of_number[[[first], [second]], rows] = of_number[[[second], [first]], rows]


def assign_indices(loads: Floats, pinned: NDArray[np.bool_], group: Ints, weights: Floats) -> Ints:
    """New numbers for the words, shape (N, 2^l), a permutation in every row, the same for a group's pinned words.

    Three starts, the best one for each group of states: the numbers that the words have, the fullest words far from
    each other, or the fullest at 0 with the emptiest around it. Then pairs of numbers are swapped while the expected
    number of wrong bits shrinks, in all states of a group at once or, if neither is pinned, in a single state; twice
    through all pairs.

    Args:
        loads: mass of every word, shape (N, 2^l).
        pinned: words that have one number in all states of a group, shape (N, 2^l).
        group: number of every state's group, shape (N,).
        weights: how much the states count, shape (N,).
    """
    count = loads.shape[1]
    weights = weights + _LEAST_WEIGHT
    in_groups = np.zeros_like(loads)
    np.add.at(in_groups, group, weights[:, None] * loads)
    fullest_first = np.argsort(-in_groups, axis=1, kind="stable")[group]
    best = np.tile(np.arange(count), (len(loads), 1))
    least_wrong = np.full(len(loads), np.inf)
    for places in (None, _far_apart(count), _far_from_zero(count)):
        word_at = best if places is None else fullest_first[:, np.argsort(places)]
        numbering = _swap_pairs(loads, pinned, word_at, group, weights)
        wrong = np.bincount(group, weights * numbering.wrong, minlength=len(loads))[group]
        better = wrong < least_wrong - _ROUNDING
        best[better], least_wrong[better] = numbering.word_at[better], wrong[better]
    return np.argsort(best, axis=1)


def _far_apart(count: int) -> list[int]:
    """The numbers 0..count - 1 in an order that keeps the first ones as far from each other as possible."""
    number = np.arange(count)
    distance = np.bitwise_count(number[:, None] ^ number)
    chosen = [0]
    while len(chosen) < count:
        chosen.append(int(distance[chosen].min(0).argmax()))
    return chosen


def _far_from_zero(count: int) -> list[int]:
    """The number 0, then the others from the farthest to the nearest."""
    return [0, *sorted(range(1, count), key=lambda number: -number.bit_count())]


def _swap_pairs(loads: Floats, pinned: NDArray[np.bool_], word_at: Ints, group: Ints, weights: Floats) -> _Numbering:
    """`word_at` with pairs of numbers swapped where that helps."""
    states, count = loads.shape
    bits = count.bit_length() - 1
    bound = distance_masses(loads, bits) @ np.arange(bits + 1)
    placed = np.take_along_axis(loads, word_at, axis=1).T.copy()
    fixed = np.take_along_axis(pinned, word_at, axis=1).T.copy()
    numbering = _Numbering(word_at.copy(), placed, fixed, wrong_bits(placed))
    alone = np.arange(states)
    grouped = pinned.any(1)
    for first, second in [*combinations(range(count), 2)] * _SWEEPS:
        possible = numbering.wrong > bound + _ROUNDING
        rows = np.flatnonzero((np.bincount(group, possible, minlength=states) > 0)[group])
        numbering.swap(first, second, rows, group, weights)
        free = ~numbering.pinned[first] & ~numbering.pinned[second]
        rows = np.flatnonzero(free & grouped & possible)
        numbering.swap(first, second, rows, alone, np.ones(states))
    return numbering
