"""Items in bins with the least mass above a common capacity, by a search that is exact for some twenty items.

Bins are filled one after the other, each with the largest item that is left and others. Some optimum has only fills of
two kinds: nothing that is left has room beside them, or they exceed the capacity but would not without their smallest
item. (Any other item can move to another bin for nothing.) Partial partitions that have used the same items are one;
of those a bound on what the rest must lose leaves few.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wm_env.common.arrays import Floats, Ints

_ROUNDING = 1e-12
_PAIRS = 1_000_000
"""Partial partitions times fills that are looked at at once."""
_WORK = 400_000_000
"""Partial partitions times fills of a whole search, some seconds; no state of the shipped tree needs 60,000,000."""
_ITEMS = 52
"""Most items: sets of them are whole numbers that float64 holds exactly."""


@dataclass(frozen=True)
class _Partial:
    """Partial partitions, one for each set of used items.

    Attributes:
        used: the items as bits of a number, shape (n,).
        excess: mass above the capacity so far, shape (n,).
        parent: the partial partition before the last bin, shape (n,).
    """

    used: Ints
    excess: Floats
    parent: Ints

    def __getitem__(self, rows: Ints | NDArray[np.bool_]) -> "_Partial":
        return _Partial(self.used[rows], self.excess[rows], self.parent[rows])


def excess_bound(sizes: Floats, bins: int) -> float:
    """Lower bound on sum_b (load of b - 1)+ of all partitions of items into `bins` bins of capacity 1.

    Say that j bins have more than m items. The others hold at most c_j = min((bins - j) m, items - j (m + 1)) items, so
    the j bins hold the total less the c_j largest items, and lose what is above j of that. The least of this over j is
    a bound for every m; m = 0 says that the total exceeds the capacity of all bins.

    Args:
        sizes: shape (items,), decreasing.
        bins: how many, at least 1.
    """
    return float(_rest_bound(np.ones((1, len(sizes)), dtype=bool), sizes, bins)[0])


def partition_items(sizes: Floats, bins: int, excess: float, nodes: int) -> tuple[list[list[int]], float]:
    """The partition of items into bins of capacity 1 with the least sum_b (load of b - 1)+, if it is below `excess`.

    Args:
        sizes: shape (items,), decreasing, each below 1.
        bins: how many, at least 1.
        excess: what a partition must undercut.
        nodes: most partial partitions to keep after each bin, those of the lowest bounds; fewer where they have so many
            fills that the search would take more than some seconds.

    Returns:
        The items of every bin, no bins if nothing below `excess` was found; and a lower bound on the least excess.
    """
    bound = excess_bound(sizes, bins)
    fills = _fills(sizes, excess, nodes) if len(sizes) <= _ITEMS else None
    if fills is None:
        return [], bound
    everything = (1 << len(sizes)) - 1
    levels = [_Partial(np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros(1, dtype=np.int64))]
    dropped = excess
    count_of_fills = np.array([len(bits) for bits, _ in fills] + [1])
    for left in range(bins - 1, 0, -1):
        partial = _fill_next(levels[-1], fills, sizes, everything)
        lowest = partial.excess + _rest_bound(_members(everything & ~partial.used, len(sizes)), sizes, left)
        partial, lowest = partial[lowest < excess], lowest[lowest < excess]
        order = np.argsort(lowest, kind="stable")
        work = count_of_fills[_lowest_bit(everything & ~partial.used[order])].cumsum()
        kept = min(nodes, int((work <= _WORK // bins).sum()))
        if kept < len(order):
            dropped = min(dropped, float(lowest[order[kept]]))
            partial = partial[order[:kept]]
        levels.append(partial)
    last = everything & ~levels[-1].used
    total = levels[-1].excess + np.maximum(_members(last, len(sizes)) @ sizes - 1, 0)
    if not len(total) or total.min() >= excess:
        return [], max(bound, dropped)
    best = int(total.argmin())
    return _bins(levels, best, int(last[best])), max(bound, min(dropped, float(total[best])))


def _fills(sizes: Floats, excess: float, nodes: int) -> list[tuple[Ints, Floats]] | None:
    """For every item the fills of which it is the largest, as (items, load); None if there are far too many.

    Items are added from large to small, so the last one of a fill above the capacity is its smallest.
    """
    fills = []
    for first in range(len(sizes)):
        used, load = np.array([1 << first]), sizes[first : first + 1]
        above: list[tuple[Ints, Floats]] = []
        for item in range(first + 1, len(sizes)):
            longer, more = used | 1 << item, load + sizes[item]
            fits, worth = more <= 1 + _ROUNDING, more < 1 + excess
            above.append((longer[~fits & worth], more[~fits & worth]))
            used, load = np.concatenate([used, longer[fits]]), np.concatenate([load, more[fits]])
            if len(used) > 10 * nodes:
                return None
        fills.append(
            (np.concatenate([used, *(bits for bits, _ in above)]), np.concatenate([load, *(sums for _, sums in above)]))
        )
    return fills


def _fill_next(partial: _Partial, fills: list[tuple[Ints, Floats]], sizes: Floats, everything: int) -> _Partial:
    """All ways to fill one more bin, the best one of those that use the same items."""
    free = everything & ~partial.used
    largest = _lowest_bit(free)
    found = []
    for item in np.unique(largest[free > 0]):
        bits, load = fills[item]
        rows = np.nonzero(largest == item)[0]
        for some in np.array_split(rows, 1 + len(rows) * len(bits) // _PAIRS):
            row, fill = np.nonzero((partial.used[some, None] & bits) == 0)
            row = some[row]
            used = partial.used[row] | bits[fill]
            rest = everything & ~used
            full = (rest == 0) | (load[fill] + sizes[_bit(rest)] > 1 + _ROUNDING)
            row, fill, used = row[full], fill[full], used[full]
            found.append(_Partial(used, partial.excess[row] + np.maximum(load[fill] - 1, 0), row))
    # A bin stays empty where no item is left for it.
    found.append(_Partial(partial.used[free == 0], partial.excess[free == 0], np.nonzero(free == 0)[0]))
    merged = _Partial(
        *(np.concatenate([getattr(part, name) for part in found]) for name in ("used", "excess", "parent"))
    )
    order = np.lexsort((merged.excess, merged.used))
    new = np.append(True, np.diff(merged.used[order]) != 0)[: len(order)]
    return merged[order[new]]


def _rest_bound(members: NDArray[np.bool_], sizes: Floats, bins: int) -> Floats:
    """`excess_bound` of many subsets of the items, rows of `members`, shape (n, items)."""
    count = members.sum(1)
    chosen = np.argsort(~members, axis=1, kind="stable")
    largest_first = np.where(np.take_along_axis(members, chosen, axis=1), sizes[chosen], 0)
    of_largest = np.concatenate([np.zeros((len(members), 1)), largest_first.cumsum(1)], axis=1)
    total = of_largest[:, -1]
    bound: Floats = np.maximum(total - bins, 0)
    over = np.arange(bins + 1)
    for most in range(1, len(sizes) // bins + 2):
        elsewhere = np.minimum((bins - over) * most, count[:, None] - over * (most + 1))
        possible = (elsewhere >= 0) & ((over > 0) | (count[:, None] <= bins * most))
        outside = np.take_along_axis(of_largest, np.clip(elsewhere, 0, None), axis=1)
        lost = np.where(possible, np.maximum(total[:, None] - outside - over, 0), np.inf)
        bound = np.maximum(bound, lost.min(1))
    return bound


def _members(sets: Ints, items: int) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = sets[:, None] >> np.arange(items) & 1 == 1
    return inside


def _lowest_bit(numbers: Ints) -> Ints:
    """Place of the lowest bit of each number, the largest item of each set; -1 for 0."""
    return _bit(numbers & -numbers)


def _bit(numbers: Ints) -> Ints:
    """Place of the highest bit of each number, -1 for 0."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64) - 1


def _bins(levels: list[_Partial], row: int, last: int) -> list[list[int]]:
    """The items of every bin, from the partial partitions that lead to `row` of the last level."""
    sets = [last]
    for after, before in zip(levels[:0:-1], levels[-2::-1], strict=True):
        parent = int(after.parent[row])
        sets.append(int(after.used[row] ^ before.used[parent]))
        row = parent
    return [[item for item in range(bits.bit_length()) if bits >> item & 1] for bits in reversed(sets)]
