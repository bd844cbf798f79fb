"""Which padded message every candidate stands for: the decoder's map d of a block, one word per symbol.

With l message bits the words are 0..2^l - 1 and a word that is sent uniformly has mass 2^-l. A map of candidates to
words loses sum_w (p(B_w) - 2^-l)+ of the success probability, B_w the candidates of word w.
"""

import numpy as np
from numpy.typing import NDArray

from wm_env.limits import best_partition
from wm_env.tree import Floats, Ints, TreeBlock


def shared_symbols(block: TreeBlock) -> Ints:
    """For every candidate, in how many states its symbol has mass, shape (N, Q); 0 where the cover is 0."""
    present = block.cover > 0
    return np.where(present, np.bincount(block.symbol[present])[np.maximum(block.symbol, 0)], 0)


def map_words(block: TreeBlock, state_probs: Floats, message_bits: int) -> Ints:
    """A word for every candidate, shape (N, Q), -1 where the cover is 0; a symbol has the same word in every state.

    The shared symbols come first, the likeliest first, each to the word where it meets the least mass. A state keeps
    its best partition where that agrees with them; elsewhere its own candidates go, longest first, to the emptiest
    words.
    """
    shared = shared_symbols(block) > 1
    words = _map_shared(block, state_probs, shared, message_bits)
    for state, pmf in enumerate(block.cover):
        named = _name_bins(best_partition(pmf, message_bits, nodes=0)[0], words[state], 2**message_bits)
        words[state] = _longest_first(pmf, words[state], 2**message_bits) if named is None else named
    return words


def _map_shared(block: TreeBlock, state_probs: Floats, shared: NDArray[np.bool_], message_bits: int) -> Ints:
    """Words of the shared symbols, shape (N, Q), -1 elsewhere; each to the word w with the least E[p(x) p(B_w)]."""
    words = np.full(block.symbol.shape, -1, dtype=np.int64)
    state, place = np.nonzero(shared)
    if len(state) == 0:
        return words
    _, symbol = np.unique(block.symbol[state, place], return_inverse=True)
    mass = block.cover[state, place]
    groups = np.split(np.argsort(symbol, kind="stable"), np.cumsum(np.bincount(symbol))[:-1])
    likeliest_first = np.argsort(-np.bincount(symbol, weights=state_probs[state] * mass), kind="stable")
    loads = np.zeros((len(words), 2**message_bits))
    for group in (groups[number] for number in likeliest_first):
        rows = state[group]
        met = (state_probs[rows] * mass[group]) @ loads[rows]
        words[rows, place[group]] = met.argmin()
        loads[rows, met.argmin()] += mass[group]
    return words


def _name_bins(bins: Ints, fixed: Ints, count: int) -> Ints | None:
    """Words for the bins that agree with the words of `fixed` (-1 is free), or None if there are none."""
    pairs = np.unique(np.stack([bins, fixed])[:, fixed >= 0], axis=1)
    if len(np.unique(pairs[0])) < pairs.shape[1] or len(np.unique(pairs[1])) < pairs.shape[1]:
        return None
    name = np.full(count, -1, dtype=np.int64)
    name[pairs[0]] = pairs[1]
    name[name < 0] = np.setdiff1d(np.arange(count), pairs[1])
    return np.where(bins >= 0, name[bins], -1)


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
