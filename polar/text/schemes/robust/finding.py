"""Where on the tape a text may stand, by the pilots alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polar.text.schemes.robust.likelihood import Likelihood, lead_ratios
from polar.text.schemes.robust.randomness import LANES, Randomness
from polar.text.schemes.robust.tape import SEGMENT, SLOTS, levels
from polar.text.schemes.robust.words import SplitText


_BEFORE, _BEHIND = 8, 24
"""A text from its beginning is looked for up to so many words added and deleted."""

_REPLACED, _ADDED, _DELETED, _LEFT = 0.1, 0.01, 0.01, 0.002

_MOST = 3
"""Nonces that are tried."""

_BESIDE = 12.0
"""Bits by which their evidence may be behind the best one's."""

_ENTER = 0.003
"""Probability that marked text begins at a word of a document."""


@dataclass(frozen=True)
class Found:
    """Where a text may begin on the tape.

    Attributes:
        log2_evidence: log2 of an e-value for "the text, or a part of it, stands on the tape".
        nonces: likely nonces, best first, each with log2 of its own e-value.
        centre: word of the text at which the likeliest nonce was surest; 0 if the text begins with the tape's nonce.
        from_start: whether the text was looked for from the beginning of the nonces only.
    """

    log2_evidence: float
    nonces: list[tuple[int, float]]
    centre: int
    from_start: bool


def find_starts(randomness: Randomness, likelihood: Likelihood, text: SplitText, nonces: int) -> Found:
    """Compare the text with the beginning of each nonce's stretch, which is cheap."""
    reach = min(text.words + _BEHIND, SEGMENT)
    groups = (np.arange(nonces)[:, None] * (SEGMENT // LANES) + np.arange(-(-reach // LANES))).reshape(-1)
    rows, row = np.unique(text.token * SLOTS + text.slot, return_inverse=True)
    leads = randomness.pilot_leads(groups, rows % SLOTS, rows // SLOTS).reshape(len(rows), nonces, -1)
    pilot = levels(1) == 0
    width = _BEFORE + _BEHIND
    shift = np.arange(width) - _BEFORE
    weight = np.full((nonces, width), 0.5 / width)
    weight[:, _BEFORE] += 0.5
    weight /= nonces
    log2 = 0.0
    ratio = np.ones((nonces, width), dtype=np.float64)
    starts = np.append(np.flatnonzero(np.diff(text.word, prepend=-1)), len(text.token))
    for word in range(min(text.words, SEGMENT - _BEHIND)):
        ratio[:] = 1.0
        for token in range(starts[word], starts[word + 1]):
            place = word + shift - bool(text.opens[token] and word)
            which = np.flatnonzero((place >= 0) & pilot[np.clip(place, 0, reach - 1), text.slot[token]])
            values = leads[row[token]][:, place[which]]
            ratio[:, which] *= lead_ratios(likelihood, int(text.kind[token]), values)
        weight *= (1 - _REPLACED) * ratio + _REPLACED
        moved = (1 - _ADDED - _DELETED) * weight
        moved[:, 1:] += _DELETED * weight[:, :-1]
        moved[:, :-1] += _ADDED * weight[:, 1:]
        total = moved.sum()
        weight, log2 = moved / total, log2 + float(np.log2(total))
    share = weight.sum(axis=1)
    likely = [int(nonce) for nonce in np.argsort(-share)[:_MOST]]
    scores = [float(np.log2(share[nonce] * nonces)) + log2 for nonce in likely]
    kept = [(nonce, score) for nonce, score in zip(likely, scores, strict=True) if score > scores[0] - _BESIDE]
    return Found(log2, kept, 0, True)


def scan(randomness: Randomness, likelihood: Likelihood, text: SplitText, nonces: int) -> Found:
    """Compare every word of the text with every word of the tape: parts of texts, and texts inside others."""
    best, log2 = (-np.inf, 0, 0), 0.0
    for word, (total, odds, place) in enumerate(_filter(randomness, likelihood, text, nonces)):
        log2 += float(np.log2(total))
        best = max(best, (odds, word, place))
    score, centre, place = best
    return Found(log2, [(max(0, place - centre) // SEGMENT, score + float(np.log2(nonces)))], centre, False)


def _filter(
    randomness: Randomness, likelihood: Likelihood, text: SplitText, nonces: int
) -> Iterator[tuple[float, float, int]]:
    """For each word of the text: the factor of the evidence, log2 of the odds of the likeliest word of the tape against
    no mark, and that word.
    """
    size = SEGMENT * nonces
    groups, pilot = np.arange(size // LANES), np.tile(levels(1) == 0, (nonces, 1))
    places = [np.flatnonzero(pilot[:, slot]) for slot in range(SLOTS)]
    known: dict[tuple[int, int], NDArray[np.uint16]] = {}
    outside, weight = 1.0, np.zeros(size, dtype=np.float32)
    starts = np.append(np.flatnonzero(np.diff(text.word, prepend=-1)), len(text.token))
    for word in range(text.words):
        moved = np.full(size, outside * _ENTER / size, dtype=np.float32)
        moved[1:] += np.float32(1 - _ADDED - _DELETED - _LEFT) * weight[:-1]
        moved[2:] += np.float32(_DELETED) * weight[:-2]
        ratio = np.ones(size, dtype=np.float32)
        for token in range(starts[word], starts[word + 1]):
            slot, back = int(text.slot[token]), int(text.opens[token])
            if (name := (int(text.token[token]), slot)) not in known:
                leads = randomness.pilot_leads(groups, np.array([slot]), text.token[token : token + 1])[0]
                known[name] = leads[places[slot]]
            here = places[slot] + back
            values = lead_ratios(likelihood, int(text.kind[token]), known[name])
            inside = len(here) - int(here[-1] == size)
            ratio[here[:inside]] *= values[:inside]
        moved *= np.float32(1 - _REPLACED) * ratio + np.float32(_REPLACED)
        moved += np.float32(_ADDED) * weight
        outside = outside * (1 - _ENTER) + _LEFT * float(weight.sum())
        total = outside + float(moved.sum())
        weight, outside = moved / np.float32(total), outside / total
        place = int(weight.argmax())
        yield total, float(np.log2(max(weight[place], 1e-30)) - np.log2(max(outside, 1e-300))), place

