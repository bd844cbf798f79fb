"""The payload of a text of which it is known where on the tape it may stand.

The check. Tokens at places of the levels K and K + 1 depend on the whole payload. These places are not looked at until
there are candidates, all payloads that begin as the search over the first K - 1 bits says. The factor by which they
then raise a candidate's e-value has a mean of at most 1 if that payload was not sent, whatever the text is: so a
candidate that was not sent reaches 2^c with probability at most 2^-c (Markov's inequality), as a check value of c bits
would let it pass. Every candidate counts as an attempt, again for each alignment.
"""

import math
from dataclasses import dataclass

import numpy as np

from polar.text.schemes.robust.randomness import Words
from polar.text.schemes.robust.reading.alignment import EDIT_MODELS, Alignment, EditModel, Ratios, align, evidence
from polar.text.schemes.robust.reading.beam import Beginnings, Votes, both, log2_votes, search, votes_of
from polar.text.schemes.robust.reading.likelihood import Singles
from polar.text.schemes.robust.reading.places import Field, Pairs, Place, near_path, pairs_of
from wm_env.common.arrays import Floats, Ints

_REACH = 12
"""Words on both sides of the likeliest alignment where places are looked at."""

_PROMISE = 12.0
"""Bits that a candidate shows at check places along one alignment before its check is computed over all."""

_COMPARED = 65_536
"""Likeliest beginnings whose candidates are compared; each has two."""

_MIXED = 4
"""Beginnings whose mean says what the tokens of levels 1 to K - 1 tell about the alignment."""


@dataclass(frozen=True)
class Effort:
    """How hard a text is tried.

    Attributes:
        models: edit models that are compared.
        width: beginnings of payloads that the beam keeps.
        rounds: alignments, each with what the last one read.
        least_odds: log2 of the e-value that a find needs before it is tried so hard.
        every_table: whether the other tables of likelihoods are tried behind the one that fits the pilots best.
    """

    models: tuple[EditModel, ...]
    width: int
    rounds: int
    least_odds: float = -math.inf
    every_table: bool = False


QUICK = Effort(EDIT_MODELS[:1], 256, 1)
THOROUGH = Effort(EDIT_MODELS, 2048, 4, -3.0)
LONG = Effort(EDIT_MODELS, 16_384, 2, 4.0, True)
WIDEST = Effort(EDIT_MODELS, 262_144, 2, 10.0, True)
"""For finds that are hardly ever chance: of 36 parts of news, 200 tokens each and unmarked, none had a find of 2^10."""


@dataclass(frozen=True)
class PayloadSearch:
    """What came of a try.

    Attributes:
        alignment: the last one.
        payload: the bits; None if no candidate passed the check.
        check_log2: evidence of the best check, in bits.
        compared: candidates.
    """

    alignment: Alignment
    payload: tuple[int, ...] | None
    check_log2: float
    compared: int


def read_payload(place: Place, begin: Floats, effort: Effort, check_bits: int) -> PayloadSearch:
    """Look for the payload of a text.

    Args:
        place: the text and the stretch of the tape.
        begin: law of the word of the stretch that the text begins with, shape (size,).
        effort: how hard to try.
        check_bits: evidence that a candidate needs.
    """
    pilots = place.pilots()
    ratios, compared, best = pilots.ratios(), 0, 0.0
    for _ in range(effort.rounds):
        alignment = align(ratios, _likeliest(effort.models, ratios, begin), begin)
        pairs = pairs_of(place.text, near_path(alignment, _REACH))
        level = place.levels(pairs)
        middle = pairs.at((level > 0) & (level < place.stretch.payload_bits))
        votes = votes_of(place, alignment)
        found = search(place, votes, effort.width).first(_COMPARED)
        compared += 2 * len(found.bits)
        bits = _promising(place, votes, found)
        if bits is not None:
            digests = place.randomness.digests(bits.tolist())
            field = pilots.put(middle, place.ratios(middle, digests[place.levels(middle)]))
            alignment, gain = _check(place, field, digests[-1], effort, begin)
            best = max(best, gain)
            if gain >= check_bits:
                return PayloadSearch(alignment, tuple(bits.tolist()), gain, compared)
        ratios = pilots.put(middle, _expected(place, middle, found)).ratios()
    return PayloadSearch(alignment, None, best, compared)


def _likeliest(models: tuple[EditModel, ...], ratios: Ratios, begin: Floats) -> EditModel:
    if len(models) == 1:
        return models[0]
    return max(models, key=lambda model: evidence(ratios, model, begin))


def _promising(place: Place, votes: Votes, found: Beginnings) -> Ints | None:
    """The payload with most evidence at the check places of one alignment, if that is worth a closer look."""
    places = range(int(np.searchsorted(votes.level[votes.first], place.stretch.payload_bits)), len(votes.first))
    if not len(places):
        return None
    gains = log2_votes(place, votes, places, both(place.randomness, found.digests))
    number = int(gains.argmax())
    if gains[number] < _PROMISE:
        return None
    bit, beginning = divmod(number, len(found.bits))
    return np.append(found.bits[beginning], bit)


def _check(place: Place, field: Field, digest: np.uint64, effort: Effort, begin: Floats) -> tuple[Alignment, float]:
    """The alignment of a text with all places of a candidate, and the gain of the check places in bits.

    Where to look and which edit model to take is settled by the other places alone.
    """
    ratios = field.ratios()
    model = _likeliest(effort.models, ratios, begin)
    before = align(ratios, model, begin)
    pairs = pairs_of(place.text, near_path(before, _REACH))
    pairs = pairs.at(place.levels(pairs) >= place.stretch.payload_bits)
    after = align(field.put(pairs, place.ratios(pairs, np.array([digest]).reshape(()))).ratios(), model, begin)
    return after, after.log2_evidence - before.log2_evidence


def _expected(place: Place, pairs: Pairs, found: Beginnings) -> Singles:
    """The mean ratio of pairs of levels 1 to K - 1 over the likeliest beginnings."""
    scores = found.log2_evidence[:_MIXED]
    weight = np.exp2(np.maximum((scores - scores[0]) / 2, -30))
    level = place.levels(pairs)
    total = np.zeros(len(level), dtype=np.float32)
    for share, bits in zip(weight / weight.sum(), found.bits, strict=False):
        digests: Words = place.randomness.digests(bits.tolist())[level]
        total += np.float32(share) * place.ratios(pairs, digests)
    return total
