"""The payload of a text of which it is known where on the tape it may stand.

The check. Places of level K + 1 are not looked at until there are candidates. The factor by which they then raise a
candidate's e-value has a mean of at most 1 if that payload was not sent, whatever the text is: so a candidate that was
not sent reaches 2^c with probability at most 2^-c (Markov's inequality), as a check value of c bits would let it pass.
Every candidate that is compared counts as an attempt.
"""

from dataclasses import dataclass

import numpy as np

from polar.text.schemes.robust.randomness import Words
from polar.text.schemes.robust.reading.alignment import EDIT_MODELS, Alignment, EditModel, Ratios, align, evidence
from polar.text.schemes.robust.reading.beam import Candidates, log2_votes, search, votes_of
from polar.text.schemes.robust.reading.likelihood import Singles
from polar.text.schemes.robust.reading.places import Field, Pairs, Place, near_path, pairs_of
from wm_env.common.arrays import Floats, Ints

_REACH = 12
"""Words on both sides of the likeliest alignment where places are looked at."""

_PROMISE = 8.0
"""Bits that a candidate shows at check places along one alignment before its check is computed over all."""

_MIXED = 4
"""Candidates whose mean says what the tokens of levels 1 to K tell about the alignment."""


@dataclass(frozen=True)
class Effort:
    """How hard a text is tried.

    Attributes:
        models: edit models that are compared.
        width: beginnings of payloads that the beam keeps.
        candidates: payloads whose check is compared.
        rounds: alignments, each with what the last one read.
    """

    models: tuple[EditModel, ...]
    width: int
    candidates: int
    rounds: int


QUICK = Effort(EDIT_MODELS[:1], 256, 64, 1)
THOROUGH = Effort(EDIT_MODELS, 2048, 256, 4)


@dataclass(frozen=True)
class PayloadSearch:
    """What came of a try.

    Attributes:
        alignment: the last one.
        payload: the bits; None if no candidate passed the check.
        check_log2: evidence of the best check, in bits.
        compared: candidates whose check was compared.
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
    payload_bits = place.stretch.payload_bits
    pilots = place.pilots()
    ratios, compared, best = pilots.ratios(), set[bytes](), 0.0
    for _ in range(effort.rounds):
        alignment = align(ratios, _likeliest(effort.models, ratios, begin), begin)
        pairs = pairs_of(place.text, near_path(alignment, _REACH))
        level = place.levels(pairs)
        middle = pairs.at((level > 0) & (level <= payload_bits))
        found = search(place, votes_of(place, alignment, payload_bits), effort.width, effort.candidates)
        fresh = np.array([bits.tobytes() not in compared for bits in found.bits])
        compared |= {bits.tobytes() for bits in found.bits}
        bits = _promising(place, alignment, found.bits[fresh])
        if bits is not None:
            digests = place.randomness.digests(bits.tolist())
            field = pilots.put(middle, place.ratios(middle, digests[place.levels(middle)]))
            alignment, gain = _check(place, field, digests[-1], effort, begin)
            best = max(best, gain)
            if gain >= check_bits:
                return PayloadSearch(alignment, tuple(bits.tolist()), gain, len(compared))
        ratios = pilots.put(middle, _expected(place, middle, found)).ratios()
    return PayloadSearch(alignment, None, best, len(compared))


def _likeliest(models: tuple[EditModel, ...], ratios: Ratios, begin: Floats) -> EditModel:
    if len(models) == 1:
        return models[0]
    return max(models, key=lambda model: evidence(ratios, model, begin))


def _promising(place: Place, alignment: Alignment, bits: Ints) -> Ints | None:
    """The payload with most evidence at the check places of one alignment, if that is worth a closer look."""
    top = place.stretch.payload_bits + 1
    votes = votes_of(place, alignment, top)
    places = range(int(np.searchsorted(votes.level[votes.first], top)), len(votes.first))
    if not len(bits) or not len(places):
        return None
    gains = log2_votes(place, votes, places, place.randomness.whole_digests(bits))
    return bits[gains.argmax()] if gains.max() >= _PROMISE else None


def _check(place: Place, field: Field, digest: np.uint64, effort: Effort, begin: Floats) -> tuple[Alignment, float]:
    """The alignment of a text with all places of a candidate, and the gain of the check places in bits.

    Where to look and which edit model to take is settled by the other places alone.
    """
    ratios = field.ratios()
    model = _likeliest(effort.models, ratios, begin)
    before = align(ratios, model, begin)
    pairs = pairs_of(place.text, near_path(before, _REACH))
    pairs = pairs.at(place.levels(pairs) == place.stretch.payload_bits + 1)
    after = align(field.put(pairs, place.ratios(pairs, np.array([digest]).reshape(()))).ratios(), model, begin)
    return after, after.log2_evidence - before.log2_evidence


def _expected(place: Place, pairs: Pairs, found: Candidates) -> Singles:
    """The mean ratio of pairs of levels 1 to K over the likeliest payloads."""
    scores = found.log2_evidence[:_MIXED]
    weight = np.exp2(np.maximum((scores - scores[0]) / 2, -30))
    level = place.levels(pairs)
    total = np.zeros(len(level), dtype=np.float32)
    for share, bits in zip(weight / weight.sum(), found.bits, strict=False):
        digests: Words = place.randomness.digests(bits.tolist())[level]
        total += np.float32(share) * place.ratios(pairs, digests)
    return total
