"""Which padded message every candidate stands for: the decoder's map d of a block, one word per symbol.

With l message bits the words are 0..2^l - 1 and a word that is sent uniformly has mass 2^-l. A map of candidates to
words loses sum_w (p(B_w) - 2^-l)+ of the success probability, B_w the candidates of word w.
"""

import numpy as np

from wm_env.limits import best_partition, shared_key_success
from wm_env.tree import Floats, Ints, TreeBlock

_ROUNDING = 1e-12


def shared_symbols(block: TreeBlock) -> Ints:
    """For every candidate, in how many states its symbol has mass, shape (N, Q); 0 where the cover is 0."""
    present = block.cover > 0
    return np.where(present, np.bincount(block.symbol[present])[np.maximum(block.symbol, 0)], 0)


def map_words(block: TreeBlock, state_probs: Floats, message_bits: int) -> Ints:
    """A word for every candidate, shape (N, Q), -1 where the cover is 0; a symbol has the same word in every state.

    A state that shares no candidates gets the best partition of its own. Where states share candidates the more likely
    state comes first: the words of its candidates are kept in the others, whose remaining candidates go, longest
    first, to the emptiest words.
    """
    shared = shared_symbols(block) > 1
    taken = np.full(int(block.symbol.max()) + 1, -1, dtype=np.int64)
    words = np.full(block.symbol.shape, -1, dtype=np.int64)
    for state in np.argsort(-state_probs, kind="stable"):
        pmf, symbol = block.cover[state], block.symbol[state]
        fixed = np.where(shared[state], taken[symbol], -1)
        if (fixed < 0).all():
            words[state] = best_partition(pmf, message_bits, nodes=0)[0]
        else:
            words[state] = _longest_first(pmf, fixed, 2**message_bits)
        taken[symbol[shared[state]]] = words[state][shared[state]]
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
    packed = _first_fit(np.where(light, pmf * (1 + added / pmf[light].sum()), 0), cap)
    room = cap - np.bincount(packed[light], weights=pmf[light])
    if packed.max() + alone >= 2**message_bits or room.sum() < added:
        return words
    packed[light] += alone
    packed[heavy] = np.arange(alone)
    return packed


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
