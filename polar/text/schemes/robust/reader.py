"""The receiver: a text in; its payload, a p-value and the marked parts out. No model, no torch.

    receiver = Receiver(load_key(path), read_text_tokenizer(EMBEDDED))
    receiver.decode(text).payload

The pilots say where on the tape the text stands: first compared with the beginnings of the nonces, which is cheap, then
anywhere (`polar.text.schemes.robust.reading.finding`). `polar.text.schemes.robust.reading.payload` does the rest.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from polar.text.canonical import check_length
from polar.text.keys.key import Key
from polar.text.schemes.robust.randomness import LANES, Randomness
from polar.text.schemes.robust.reading.alignment import EDIT_MODELS, align, start_law
from polar.text.schemes.robust.reading.finding import Find, Found, find_starts, mean_log2, scan
from polar.text.schemes.robust.reading.likelihood import load_likelihoods
from polar.text.schemes.robust.reading.payload import LONG, QUICK, THOROUGH, WIDEST, Effort, read_payload
from polar.text.schemes.robust.reading.places import Place, Stretch
from polar.text.schemes.robust.settings import MOST_CHARACTERS, RobustSettings
from polar.text.schemes.robust.tape import NONCES, SEGMENT
from polar.text.schemes.robust.words import SplitText, as_letters, split_text
from wm_env.common.arrays import Floats
from wm_env.lm.tokenizer import TextTokenizer

FIRST_NONCES = range(128)
"""Nonces that a receiver looks for if it is told nothing."""

_BEFORE, _BEHIND = 600, 250
"""Words on both sides of a find that are read with it: it is mostly near the end of what is marked."""

_LONGEST = 1500
"""Words of a text that are read from its beginning."""

_EFFORTS = ((QUICK, 0), (QUICK, 1), (THOROUGH, 0), (THOROUGH, 1), (LONG, 0), (LONG, 1), (WIDEST, 0), (WIDEST, 1))
"""How hard a text is tried one after the other, at the beginnings of the nonces (0) or anywhere on the tape (1)."""

_SURE = 20.0
"""Bits of evidence at the beginning of a nonce that are enough to say that a text is marked."""

_SPARE = 64
"""Words of the tape beyond the length of the text, for deleted ones."""


@dataclass(frozen=True)
class Detection:
    """Whether a text is marked with a key, and where.

    Attributes:
        score: evidence that it is, in bits: log2 of an e-value.
        p_value: bound on the probability that a text made without the key looks as much like a marked one, in [0, 1].
            Conservative: over the key, at most a share x of texts gets x or less.
        marked: probability of each token that it is the sender's, shape (tokens,).
        spans: where each token stands in the text, as characters.
    """

    score: float
    p_value: float
    marked: Floats = field(repr=False)
    spans: list[tuple[int, int]] = field(repr=False)

    def parts(self, least: float = 0.5, gap: int = 12) -> list[tuple[int, int]]:
        """Marked parts as ranges of characters: tokens of probability `least` or more, at most `gap` tokens apart."""
        parts: list[tuple[int, int]] = []
        last = 0
        for number in np.flatnonzero(self.marked >= least).tolist():
            start, end = self.spans[number]
            if parts and number - last <= gap:
                parts[-1] = (parts[-1][0], end)
            else:
                parts.append((start, end))
            last = number
        return parts


@dataclass(frozen=True)
class Reading(Detection):
    """The same, and the message.

    Attributes:
        payload: the bits; None if there is no message.
        nonce: of the message; None if there is none.
        check_log2: evidence of the message's check, in bits; 0 without a message.
        attempts: candidates whose check was compared.
    """

    payload: tuple[int, ...] | None = None
    nonce: int | None = None
    check_log2: float = 0.0
    attempts: int = 0


class Receiver:
    """Reads texts.

    Args:
        key: the shared secret.
        tokenizer: the model's.
        settings: as the sender's.
        nonces: those that are looked for, one after the other; each costs time.
    """

    def __init__(
        self,
        key: Key,
        tokenizer: TextTokenizer,
        settings: RobustSettings | None = None,
        nonces: range = FIRST_NONCES,
    ) -> None:
        if not len(nonces) or nonces.step != 1 or nonces.start < 0 or nonces.stop > NONCES:
            raise ValueError(f"nonces={nonces}: a range from 0 to {NONCES} at most is needed, such as range(128)")
        self.settings = settings or RobustSettings()
        self.nonces = nonces
        self._tokenizer = tokenizer
        self._letters = as_letters(tokenizer.strings)
        self._randomness = Randomness(key, self.settings.purpose)
        self._tables = load_likelihoods()

    def detect(self, text: str) -> Detection:
        """What the pilots say about a text.

        Raises:
            ValueError: the text is longer than `MOST_CHARACTERS`.
        """
        spans, words = self._split(text)
        marked = np.zeros(len(words.token))
        if not words.words:
            return Detection(0.0, 1.0, marked, spans)
        founds = [find_starts(self._randomness, self._tables, words, self.nonces)]
        if founds[0].log2_evidence < _SURE:
            founds.append(scan(self._randomness, self._tables, words, self.nonces))
        best = max(founds, key=lambda found: found.finds[0].log2_odds)
        part = _part(words, best)
        place, begin = self._place(_cut(words, part), best, best.finds[0])
        kept = align(place.pilots().ratios(), EDIT_MODELS[1], begin).kept
        marked[part] = kept[place.text.word]
        score = _score(founds)
        return Detection(score, min(1.0, 2.0**-score), marked, spans)

    def decode(self, text: str) -> Reading:
        """The message of a text, how sure it is that the text is marked, and where.

        Raises:
            ValueError: the text is longer than `MOST_CHARACTERS`.
        """
        spans, words = self._split(text)
        marked = np.zeros(len(words.token))
        if not words.words:
            return Reading(0.0, 1.0, marked, spans)
        founds: list[Found] = []
        attempts, surest = 0, -math.inf
        for effort, look in _EFFORTS:
            if look == len(founds):
                founds.append((find_starts, scan)[look](self._randomness, self._tables, words, self.nonces))
            found = founds[look]
            part = _part(words, found)
            text_part = _cut(words, part)
            for find in self._tries(found, effort):
                place, begin = self._place(text_part, found, find)
                attempt = read_payload(place, begin, effort, self.settings.check_bits)
                attempts += attempt.compared
                if attempt.payload is not None or attempt.alignment.log2_evidence > surest:
                    surest, marked[:] = attempt.alignment.log2_evidence, 0.0
                    marked[part] = attempt.alignment.kept[text_part.word]
                if attempt.payload is not None:
                    score = _score(founds)
                    p_value = min(1.0, 2 * 2.0**-score, 2 * attempts * 2.0**-attempt.check_log2)
                    gain, nonce = attempt.check_log2, find.word // SEGMENT
                    return Reading(score, p_value, marked, spans, attempt.payload, nonce, gain, attempts)
        score = _score(founds)
        return Reading(score, min(1.0, 2 * 2.0**-score), marked, spans, attempts=attempts)

    def _split(self, text: str) -> tuple[list[tuple[int, int]], SplitText]:
        check_length(text, MOST_CHARACTERS)
        tokens, spans = self._tokenizer.encode_with_spans(text)
        return spans, split_text(tokens, self._letters, self.settings.by_token)

    def _tries(self, found: Found, effort: Effort) -> Iterator[Find]:
        """The places of the tape that an effort is spent on, with the tables that are tried for each."""
        for find in found.finds:
            if find.log2_odds >= effort.least_odds:
                yield find
                if effort.every_table:
                    others = set(range(len(self._tables))) - {find.table}
                    yield from (replace(find, table=table) for table in sorted(others))

    def _place(self, text: SplitText, found: Found, find: Find) -> tuple[Place, Floats]:
        """The text over the words of the tape that it may hold, and where it may begin."""
        word = find.word
        first = word if found.from_start else max(word - _BEFORE - _SPARE, SEGMENT * self.nonces.start) // LANES * LANES
        size = (text.words if found.from_start else word - first + _BEHIND) + _SPARE
        size = min(-(-size // LANES) * LANES, SEGMENT * self.nonces.stop - first)
        stretch = Stretch(first, size, self.settings.payload_bits)
        begin = start_law(size, 0 if found.from_start else None)
        return Place(self._randomness, self._tables[find.table], text, stretch), begin


def _score(founds: list[Found]) -> float:
    """log2 of the mean e-value of both looks at a text; one that was not taken counts as no evidence."""
    return mean_log2([*(found.log2_evidence for found in founds), -math.inf][:2])


def _part(words: SplitText, found: Found) -> slice:
    """The tokens that are read: the words around a find, or the beginning of a text."""
    first, behind = (0, _LONGEST) if found.from_start else (found.centre - _BEFORE, found.centre + _BEHIND)
    start, stop = np.searchsorted(words.word, [first, behind])
    return slice(int(start), int(stop))


def _cut(words: SplitText, part: slice) -> SplitText:
    word = words.word[part]
    return SplitText(words.token[part], word - word[0], words.slot[part], words.opens[part], words.kind[part])
