"""From soft alignment to payload: a beam search through the tree of payload beginnings.

A token of level t is a pseudo-random function of the first t bits, so the code is a random tree code: no structure, no
constraint length, and a likelihood for every token whatever the tree's depth. Bit by bit, every surviving beginning is
extended by 0 and by 1, the tokens of that level give their evidence, and the best `width` beginnings go on. The last
bit is left to the check, which depends on it as well.
"""

from dataclasses import dataclass

import numpy as np

from polar.text.schemes.robust.randomness import NO_BITS, Randomness, Words
from polar.text.schemes.robust.reading.alignment import Alignment
from polar.text.schemes.robust.reading.places import Pairs, Place, pairs_of, weights_of
from polar.text.schemes.robust.tape import SLOTS
from wm_env.common.arrays import Floats, Ints

_LEAST = 0.02
"""Less probable pairs of token and position are left out."""

_DOUBT = 0.02
"""Least probability that the token of a place is another one."""

_TOGETHER = 4096
"""Beginnings whose numbers are made together: as many as stay in a processor's cache."""


@dataclass(frozen=True)
class Votes:
    """Pairs of tokens and places, sorted by level and place.

    Attributes:
        pairs: the pairs.
        level: level of each, shape (m,).
        weight: probability of each, shape (m,).
        first: index of each place's first pair.
    """

    pairs: Pairs
    level: Ints
    weight: Floats
    first: Ints

    def part(self, places: range) -> tuple[slice, Ints]:
        """The pairs of some places, and the index of each place's first pair among them."""
        start = int(self.first[places.start])
        stop = int(self.first[places.stop]) if places.stop < len(self.first) else len(self.level)
        return slice(start, stop), self.first[places.start : places.stop] - start


def votes_of(place: Place, alignment: Alignment) -> Votes:
    """The pairs above level 0 that are worth asking for."""
    pairs = pairs_of(place.text, alignment.known + alignment.unknown > _LEAST)
    weight, level = weights_of(alignment, place.text, pairs), place.levels(pairs)
    pairs, weight, level = (
        pairs.at(kept := (weight > _LEAST) & (level > 0)),
        weight[kept],
        level[kept],
    )
    where = pairs.place * SLOTS + pairs.slot
    order = np.lexsort((where, level))
    return Votes(pairs.at(order), level[order], weight[order], np.flatnonzero(np.diff(where[order], prepend=-1)))


@dataclass(frozen=True)
class Beginnings:
    """Payloads but for their last bit, best first.

    Attributes:
        bits: shape (count, K - 1).
        digests: of the bits, shape (count,).
        log2_evidence: evidence of the pairs for each, in bits, shape (count,).
    """

    bits: Ints
    digests: Words
    log2_evidence: Floats

    def first(self, count: int) -> "Beginnings":
        """The best of them, at most `count`."""
        return Beginnings(self.bits[:count], self.digests[:count], self.log2_evidence[:count])


def search(place: Place, votes: Votes, width: int) -> Beginnings:
    """The beginnings of payloads that a beam of `width` of them leads to."""
    last = place.stretch.payload_bits - 1
    digests, scores = NO_BITS, np.zeros(1)
    parents: list[Ints] = []
    bounds = np.searchsorted(votes.level[votes.first], np.arange(1, last + 2))
    for level in range(1, last + 1):
        digests = both(place.randomness, digests)
        scores = np.tile(scores, 2) + log2_votes(place, votes, range(bounds[level - 1], bounds[level]), digests)
        best = np.arange(len(scores)) if len(scores) <= width else np.sort(np.argpartition(-scores, width)[:width])
        digests, scores = digests[best], scores[best]
        parents.append(best)
    order = np.argsort(-scores, kind="stable")
    return Beginnings(_trace(parents, order), digests[order], scores[order])


def both(randomness: Randomness, digests: Words) -> Words:
    """The digests with one more bit: first all with 0, then all with 1."""
    return np.concatenate([randomness.extend(digests, bit) for bit in (0, 1)])


def log2_votes(place: Place, votes: Votes, places: range, digests: Words) -> Floats:
    """Evidence of some places for each payload beginning, in bits, shape (beginnings,)."""
    if not len(places):
        return np.zeros(len(digests))
    part, first = votes.part(places)
    pairs, weight = votes.pairs.at(np.arange(part.start, part.stop)), votes.weight[part].astype(np.float32)
    rest = np.maximum(1 - np.add.reduceat(weight, first), _DOUBT)
    evidence = np.empty(len(digests))
    for start in range(0, len(digests), _TOGETHER):
        some = slice(start, start + _TOGETHER)
        mixed = np.add.reduceat(place.ratios(pairs, digests[None, some]) * weight[:, None], first, axis=0)
        evidence[some] = np.log2(mixed + rest[:, None]).sum(axis=0, dtype=np.float64)
    return evidence


def _trace(parents: list[Ints], which: Ints) -> Ints:
    """The bits that lead to the beginnings `which` of the last level, shape (count, levels)."""
    bits = np.empty((len(which), len(parents)), dtype=np.int64)
    for level in range(len(parents) - 1, -1, -1):
        place = parents[level][which]
        half = len(parents[level - 1]) if level else 1
        bits[:, level] = place >= half
        which = place % half
    return bits
