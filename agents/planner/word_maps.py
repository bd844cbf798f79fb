"""Which padded message every candidate stands for: the decoder's map d of a block, one word per symbol.

With l message bits the words are 0..2^l - 1 and a word that is sent uniformly has mass 2^-l. A map of candidates to
words loses sum_w (p(B_w) - 2^-l)+ of the success probability, B_w the candidates of word w.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from agents.planner.annealing import anneal, number_members
from wm_env.common.arrays import Floats, Ints
from wm_env.theory.limits import best_partition


def sharing_states(pmf: Floats, seen: Ints) -> Ints:
    """For every candidate the number of states in which what the decoder sees has mass, shape (N, Q); 0 if p = 0."""
    present = pmf > 0
    return np.where(present, np.bincount(seen[present], minlength=int(seen.max()) + 1)[np.maximum(seen, 0)], 0)


def confusable_states(cover: Floats, seen: Ints) -> Ints:
    """Number 0, 1, ... of the group of every state, shape (N,): states with a common number in `seen` are in one group.

    Args:
        cover: P(x|s), shape (N, Q).
        seen: number of what the decoder sees when candidate x is sent in state s, shape (N, Q).
    """
    state, place = np.nonzero(cover > 0)
    number = np.unique(seen[state, place], return_inverse=True)[1]
    edges = coo_array((np.ones(len(state)), (state, len(cover) + number)), shape=(len(cover) + number.max() + 1,) * 2)
    component = connected_components(edges, directed=False)[1][: len(cover)]
    group: Ints = np.unique(component, return_inverse=True)[1]
    return group


def map_words(pmf: Floats, seen: Ints, state_probs: Floats, message_bits: int) -> Ints:
    """A word for every candidate, shape (N, Q), -1 where p = 0; what the decoder sees has one word in every state.

    States that share nothing get the best partition of their own. The others are partitioned jointly by annealing,
    which starts with the shared symbols, the likeliest first, each at the word where it meets the least mass, and then
    the others, the longest first, at the emptiest word.

    Args:
        pmf: p(x|s), shape (N, Q).
        seen: number of what the decoder sees of a candidate, shape (N, Q): its symbol if it knows nothing of the state.
        state_probs: how much the states count, shape (N,).
        message_bits: l >= 1.
    """
    sharing = sharing_states(pmf, seen)
    joint = (sharing > 1).any(1)
    words = np.full(seen.shape, -1, dtype=np.int64)
    for state in np.nonzero(~joint)[0]:
        words[state] = best_partition(pmf[state], message_bits, nodes=0)[0]
    if joint.any():
        words[joint] = _joint_words(pmf[joint], seen[joint], sharing[joint] > 1, state_probs[joint], message_bits)
    return words


def _joint_words(pmf: Floats, seen: Ints, shared: NDArray[np.bool_], state_probs: Floats, message_bits: int) -> Ints:
    start = _place_shared(pmf, seen, shared, state_probs, message_bits)
    for state, row in enumerate(pmf):
        start[state] = _longest_first(row, start[state], 2**message_bits)
    symbols, number = number_members(pmf, seen)
    present = number >= 0
    first = np.zeros(len(symbols.mass), dtype=np.int64)
    first[number[present]] = start[present]
    found = np.array(anneal(symbols, state_probs.tolist(), first.tolist(), message_bits))
    return np.where(present, found[number], -1)


def _place_shared(pmf: Floats, seen: Ints, shared: NDArray[np.bool_], state_probs: Floats, message_bits: int) -> Ints:
    """Words of what states share, shape (N, Q), -1 elsewhere; each at the word w with the least E[p(x) p(B_w)]."""
    words = np.full(seen.shape, -1, dtype=np.int64)
    state, place = np.nonzero(shared)
    symbol = np.unique(seen[state, place], return_inverse=True)[1]
    mass = pmf[state, place]
    groups = np.split(np.argsort(symbol, kind="stable"), np.cumsum(np.bincount(symbol))[:-1])
    likeliest_first = np.argsort(-np.bincount(symbol, weights=state_probs[state] * mass), kind="stable")
    loads = np.zeros((len(words), 2**message_bits))
    for group in (groups[number] for number in likeliest_first):
        rows = state[group]
        met = (state_probs[rows] * mass[group]) @ loads[rows]
        words[rows, place[group]] = met.argmin()
        loads[rows, met.argmin()] += mass[group]
    return words


def pack_words(pmf: Floats, words: Ints, message_bits: int, added: float) -> Ints:
    """The map of a state with its light candidates packed tightly into few words, if nothing is lost by it.

    A candidate above 2^-l, alone on its word, must also be sent for other words. If the light candidates fill their
    words, the heavy ones have the remaining words for themselves: the decoder is as often right, but fewer words
    are in doubt, and they can be Hamming neighbours of the heavy candidate's own.

    Args:
        pmf: p(x), shape (Q,).
        words: the best partition of the state, which is kept where packing does not work out.
        message_bits: l.
        added: mass that the light candidates gain from the heavy ones; the words they get have room for it.
    """
    cap = 2.0**-message_bits
    heavy = pmf >= cap
    light = (pmf > 0) & ~heavy
    if not light.any():
        return words
    alone = int(heavy.sum())
    sizes = np.where(light, pmf, 0)
    filled = sizes.sum() + added
    fewest = int(np.ceil(filled / cap - 1e-9))
    for packed in (_first_fit(sizes * filled / sizes.sum(), cap), _longest_first(sizes, np.full(len(pmf), -1), fewest)):
        loads = np.bincount(packed[light], weights=pmf[light])
        if len(loads) + alone <= 2**message_bits and loads.max() <= cap and (cap - loads).sum() >= added - 1e-12:
            packed[light] += alone
            packed[heavy] = np.arange(alone)
            return packed
    return words


def word_loads(words: Ints, pmf: Floats, message_bits: int) -> Floats:
    """p(B_w), the mass of every word, shape (N, 2^l)."""
    loads = np.zeros((len(words), 2**message_bits))
    state, place = np.nonzero(words >= 0)
    np.add.at(loads, (state, words[state, place]), pmf[state, place])
    return loads


def _longest_first(pmf: Floats, fixed: Ints, count: int) -> Ints:
    """Candidates in order of decreasing mass, each to the emptiest of `count` words; those with a word >= 0 keep it."""
    words = fixed.copy()
    loads = np.bincount(words[words >= 0], weights=pmf[words >= 0], minlength=count).tolist()
    for x in np.argsort(-pmf, kind="stable"):
        if words[x] < 0 and pmf[x] > 0:
            words[x] = loads.index(min(loads))
            loads[words[x]] += pmf[x]
    return words


def _first_fit(sizes: Floats, capacity: float) -> Ints:
    """Items in order of decreasing size, each into the first bin that has room for it; -1 where the size is 0."""
    bins = np.full(len(sizes), -1, dtype=np.int64)
    loads: list[float] = []
    for x in np.argsort(-sizes, kind="stable"):
        if sizes[x] > 0:
            fitting = [number for number, load in enumerate(loads) if load + sizes[x] <= capacity]
            bins[x] = fitting[0] if fitting else len(loads)
            loads[bins[x] : bins[x] + 1] = [sum(loads[bins[x] : bins[x] + 1]) + sizes[x]]
    return bins
