"""Proper colourings: the candidates of a state get different colours, and a symbol has the same colour in every state.

With the colour as the label, U is a function of X that is injective in every state: I(U;S|X) = 0 and I(U;X|S) = H(X|S).
"""

import numpy as np
from numpy.typing import NDArray

from wm_env.common.arrays import Ints
from wm_env.tree import TreeBlock


def colour_candidates(block: TreeBlock) -> Ints:
    """A colour 0, 1, ... for every candidate of a block, shape (N, Q), -1 where the cover is 0.

    Symbols of several states are coloured first, by DSATUR (Brelaz 1979), which is exact on bipartite graphs and
    a good heuristic elsewhere. Symbols of a single state then take what their state has left, so that disjoint
    candidate sets need exactly as many colours as the largest state has candidates.
    """
    present = block.cover > 0
    symbol = np.where(present, block.symbol, -1)
    shared = present & (np.bincount(symbol[present])[symbol] > 1)
    colour = np.full(symbol.shape, -1, dtype=np.int64)
    if shared.any():
        _, node = np.unique(symbol[shared], return_inverse=True)
        members = np.full(symbol.shape, -1, dtype=np.int64)
        members[shared] = node
        colour[shared] = _dsatur(members)[node]
    count = max(int(colour.max()) + 1, fewest_colours(block))
    used = np.zeros((len(symbol), count), dtype=np.bool_)
    state, place = np.nonzero(shared)
    used[state, colour[state, place]] = True
    unused = np.argsort(used, axis=1, kind="stable")
    private = present & ~shared
    rank = np.cumsum(private, axis=1) - 1
    state, place = np.nonzero(private)
    colour[state, place] = unused[state, rank[state, place]]
    return colour


def fewest_colours(block: TreeBlock) -> int:
    """The most candidates of a state: no proper colouring has fewer colours."""
    return int((block.cover > 0).sum(1).max())


def _dsatur(members: Ints) -> Ints:
    """Colour the nodes 0..K-1 so that the nodes of a row of `members` (N, Q; -1 is nobody) all differ.

    Always the node whose neighbours have the most colours comes next, among these the one with the most neighbours,
    counted once for every common row, among these the first; it gets the lowest colour that its neighbours leave.
    """
    inside = members >= 0
    rows, places = np.nonzero(inside)
    node = members[rows, places]
    rows_of = np.split(rows[np.argsort(node, kind="stable")], np.cumsum(np.bincount(node))[:-1])
    degree = np.bincount(node, weights=(inside.sum(1) - 1)[rows]).astype(np.int64)
    colour = np.full(len(rows_of), -1, dtype=np.int64)
    met: NDArray[np.bool_] = np.zeros((len(rows_of), members.shape[1]), dtype=np.bool_)
    priority = degree.copy()
    for _ in range(len(rows_of)):
        chosen = int(priority.argmax())
        if met[chosen].all():
            met = np.pad(met, ((0, 0), (0, members.shape[1])))
        colour[chosen] = met[chosen].argmin()
        priority[chosen] = -1
        around = np.unique(members[rows_of[chosen]])
        around = around[(around >= 0) & (colour[around] < 0)]
        news = around[~met[around, colour[chosen]]]
        met[news, colour[chosen]] = True
        priority[news] += degree.max() + 1
    return colour
