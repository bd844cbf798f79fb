"""Where on the tape a text may stand, by the pilots alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polar.text.schemes.robust.randomness import LANES, Randomness
from polar.text.schemes.robust.reading.filters import (
    advance_scan,
    advance_starts,
    multiply_scan,
    multiply_starts,
)
from polar.text.schemes.robust.reading.likelihood import LEAD_CELL, Likelihood
from polar.text.schemes.robust.tape import SEGMENT, levels
from polar.text.schemes.robust.words import SplitText
from wm_env.common.arrays import Floats

_BEFORE, _BEHIND = 8, 24
"""A text from its beginning is looked for up to so many words added and deleted."""

_START_EDITS = ((0.1, 0.01, 0.01), (0.1, 0.1, 0.1))
"""How often a word is replaced, added, deleted: two guesses, whose evidence is averaged."""

_SCAN_EDITS = (0.1, 0.01, 0.01, 0.002)
"""The same for a search anywhere, and how often the marked text ends."""

_MOST = 4
"""Nonces that are tried."""

_BESIDE = 12.0
"""Bits by which their evidence may be behind the best one's."""

_SURE = 24.0
"""Bits of evidence for one nonce that are enough to go on with it."""

_ENTER = 0.003
"""Probability that marked text begins at a word of a document."""


@dataclass(frozen=True)
class Find:
    """A place of the tape where a text may stand.

    Attributes:
        word: of the tape.
        log2_odds: log2 of an e-value for "the text stands there".
        table: number of the table of likelihoods that fits best if so.
    """

    word: int
    log2_odds: float
    table: int


@dataclass(frozen=True)
class Found:
    """Where a text may begin on the tape.

    Attributes:
        log2_evidence: log2 of an e-value for "the text, or a part of it, stands on the tape".
        finds: likely places, best first.
        centre: the word of the text that stands there.
        from_start: whether the text was compared with the beginnings of the nonces only.
    """

    log2_evidence: float
    finds: list[Find]
    centre: int
    from_start: bool


def find_starts(randomness: Randomness, tables: Sequence[Likelihood], text: SplitText, nonces: range) -> Found:
    """Compare the text with the beginning of each nonce's stretch, which is cheap.

    It stops where one nonce is sure: an e-value may be taken at any time that depends on the past alone.
    """
    reach = min(text.words + _BEHIND, SEGMENT)
    groups = (np.array(nonces)[:, None] * (SEGMENT // LANES) + np.arange(-(-reach // LANES))).reshape(-1)
    leads: dict[tuple[int, int], NDArray[np.uint16]] = {}
    pilot = np.ascontiguousarray((levels(1) == 0)[:reach].T)
    lead_tables = np.stack([table.lead_ratio for table in tables], axis=1)
    # One row for each guess at the edits and each table, which share the ratios of the table.
    edits = np.repeat(np.array(_START_EDITS), len(tables), axis=0)
    width = _BEFORE + _BEHIND
    weight = np.full((len(edits), len(nonces), width), 0.5 / width)
    weight[..., _BEFORE] += 0.5
    weight /= len(nonces)
    log2 = np.zeros(len(edits))
    starts = np.append(np.flatnonzero(np.diff(text.word, prepend=-1)), len(text.token))
    for word in range(min(text.words, SEGMENT - _BEHIND)):
        ratio = np.ones((len(tables), *weight.shape[1:]))
        for token in range(starts[word], starts[word + 1]):
            slot = int(text.slot[token])
            first = word - _BEFORE - bool(text.opens[token] and word)
            if (name := (int(text.token[token]), slot)) not in leads:
                row = randomness.pilot_leads(groups, np.array([slot]), text.token[token : token + 1])
                leads[name] = row.reshape(len(nonces), -1)
            multiply_starts(ratio, leads[name], pilot[slot], first, LEAD_CELL, lead_tables[text.kind[token]])
        total = advance_starts(weight, ratio, edits)
        log2 = log2 + np.log2(total)
        if word % 16 == 15 and (log2 + np.log2(weight.sum(axis=2).max(axis=1))).max() > _SURE:
            break
    odds = np.log2(weight.sum(axis=2) * len(nonces)) + log2[:, None]
    scores = np.logaddexp2.reduce(odds, axis=0) - np.log2(len(edits))
    likely = np.argsort(-scores, kind="stable")[:_MOST]
    finds = [
        Find(SEGMENT * nonces[number], float(scores[number]), int(odds[:, number].argmax()) % len(tables))
        for number in likely[scores[likely] > scores[likely[0]] - _BESIDE].tolist()
    ]
    return Found(mean_log2(log2), finds, 0, True)


def mean_log2(values: Sequence[float] | Floats) -> float:
    """log2 of the mean of numbers of these logarithms."""
    return float(np.logaddexp2.reduce(values) - np.log2(len(values)))


def scan(randomness: Randomness, tables: Sequence[Likelihood], text: SplitText, nonces: range) -> Found:
    """Compare every word of the text with every word of the tape: parts of texts, and texts inside others."""
    founds = [_scan(randomness, tables[number], number, text, nonces) for number in range(len(tables))]
    best = max(founds, key=lambda found: found.finds[0].log2_odds)
    return replace(best, log2_evidence=mean_log2([found.log2_evidence for found in founds]))


def _scan(randomness: Randomness, likelihood: Likelihood, table: int, text: SplitText, nonces: range) -> Found:
    best, log2 = (-np.inf, 0, 0), 0.0
    for word, (total, odds, place) in enumerate(_filter(randomness, likelihood, text, nonces)):
        log2 += float(np.log2(total))
        best = max(best, (odds, word, place))
    score, centre, place = best
    score += float(np.log2(len(nonces)))
    return Found(log2, [Find(SEGMENT * nonces.start + place, score, table)], centre, False)


def _filter(
    randomness: Randomness, likelihood: Likelihood, text: SplitText, nonces: range
) -> Iterator[tuple[float, float, int]]:
    """For each word of the text: the factor of the evidence, log2 of the odds of the likeliest word of the tape against
    no mark, and that word.
    """
    size = SEGMENT * len(nonces)
    groups = np.arange(size // LANES) + nonces.start * (SEGMENT // LANES)
    places = [np.flatnonzero(np.tile(row == 0, len(nonces))) for row in levels(1).T]
    known: dict[tuple[int, int], NDArray[np.int32]] = {}
    edits = np.array(_SCAN_EDITS)
    outside, weight, then = 1.0, np.zeros(size, dtype=np.float32), np.empty(size, dtype=np.float32)
    starts = np.append(np.flatnonzero(np.diff(text.word, prepend=-1)), len(text.token))
    for word in range(text.words):
        ratio = np.ones(size, dtype=np.float32)
        for token in range(starts[word], starts[word + 1]):
            slot = int(text.slot[token])
            if (name := (int(text.token[token]), slot)) not in known:
                leads = randomness.pilot_leads(groups, np.array([slot]), text.token[token : token + 1])[0]
                known[name] = LEAD_CELL[leads[places[slot]]]
            table = likelihood.lead_ratio[text.kind[token]]
            multiply_scan(ratio, places[slot], int(text.opens[token]), known[name], table)
        advance_scan(weight, then, ratio, outside * _ENTER / size, edits)
        outside = outside * (1 - _ENTER) + _SCAN_EDITS[-1] * float(weight.sum())
        total = outside + float(then.sum())
        weight, then = then, weight
        weight /= np.float32(total)
        outside /= total
        place = int(weight.argmax())
        yield total, float(np.log2(max(weight[place], 1e-30)) - np.log2(max(outside, 1e-300))), place
