"""The receiver: a text in; its payload, a p-value and the marked parts out. No model, no torch.

    receiver = Receiver(load_key(path), load_reader("mini"))
    receiver.read(text).payload

The pilots say where on the tape the text stands: first compared with the beginnings of the nonces, which is cheap, then
anywhere (`polar.text.schemes.robust.finding`). `polar.text.schemes.robust.payload` does the rest.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from polar.text.keys import Key
from polar.text.schemes.robust.alignment import start_law
from polar.text.schemes.robust.finding import Found, find_starts, scan
from polar.text.schemes.robust.likelihood import Likelihood, load_likelihoods
from polar.text.schemes.robust.payload import QUICK, THOROUGH, Attempt, read_payload
from polar.text.schemes.robust.places import Place, Stretch
from polar.text.schemes.robust.randomness import LANES, Randomness
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.schemes.robust.tape import SEGMENT
from polar.text.schemes.robust.tokens import Reader
from polar.text.schemes.robust.words import SplitText, split_text
from wm_env.tree import Floats

MOST_CHARACTERS = 200_000
"""Longer texts are refused."""

_WINDOW = 700
"""Words on both sides of a find that are read with it."""

_SPARE = 64
"""Words of the tape beyond the length of the text, for deleted ones."""

_WORTH = 3.0
"""Bits of evidence for a nonce from which on more than a quick try is made."""


@dataclass(frozen=True)
class Read:
    """What a text says to the owner of a key.

    Attributes:
        payload: the bits; None if there is no message.
        nonce: of the message; None if there is none.
        p_value: bound on the probability that a text made without the key looks as much like a marked one, in [0, 1].
            Conservative: over the key, at most a share x of texts gets x or less.
        check_log2: evidence of the message's check, in bits; 0 without a message.
        attempts: candidates whose check was compared.
        score: evidence that the text is marked, in bits: log2 of an e-value.
        marked: probability that each token is the sender's, shape (tokens,).
        spans: where each token stands in the text, as characters.
    """

    payload: tuple[int, ...] | None
    nonce: int | None
    p_value: float
    check_log2: float
    attempts: int
    score: float
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


class Receiver:
    """Reads texts.

    Args:
        key: the shared secret.
        reader: the model's tokenizer.
        settings: as the sender's.
    """

    def __init__(self, key: Key, reader: Reader, settings: RobustSettings | None = None) -> None:
        self.settings = settings or RobustSettings()
        self._reader = reader
        self._randomness = Randomness(key, self.settings.purpose)
        self._likelihoods = load_likelihoods()

    def read(self, text: str) -> Read:
        """The message of a text, how sure it is that the text is marked, and where.

        Raises:
            ValueError: the text is longer than `MOST_CHARACTERS`.
        """
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"the text has {len(text)} characters, at most {MOST_CHARACTERS} are read: give a part of it")
        tokens = self._reader.encode(text)
        words = split_text(tokens.ids, self._reader.strings, self.settings.by_token)
        marked = np.zeros(len(words.token))
        if not words.words:
            return Read(None, None, 1.0, 0.0, 0, 0.0, marked, tokens.spans)
        scores, attempts = [], 0
        nonce, attempt = 0, None
        for look in (find_starts, scan):
            founds = [look(self._randomness, table, words, self.settings.nonces) for table in self._likelihoods]
            scores.append(_mean_log2([found.log2_evidence for found in founds]))
            best = max(range(len(founds)), key=lambda number: founds[number].log2_evidence)
            part = _part(words, founds[best].centre)
            text_part = _cut(words, part)
            for nonce, attempt in self._attempts(text_part, founds[best], self._likelihoods[best]):
                attempts += attempt.compared
                if attempt.payload is not None:
                    break
            if attempt is not None:
                marked[:] = 0.0
                marked[part] = attempt.alignment.kept[text_part.word]
            if attempt is not None and attempt.payload is not None:
                break
        # Without a second look, half of the weight stands for it.
        score = _mean_log2([*scores, -math.inf][:2])
        p_value = 2 * 2.0**-score
        if attempt is None or attempt.payload is None:
            return Read(None, None, min(1.0, p_value), 0.0, attempts, score, marked, tokens.spans)
        p_value = min(1.0, p_value, 2 * attempts * 2.0**-attempt.check_log2)
        return Read(attempt.payload, nonce, p_value, attempt.check_log2, attempts, score, marked, tokens.spans)

    def _attempts(self, text: SplitText, found: Found, table: Likelihood) -> Iterator[tuple[int, Attempt]]:
        """Quick tries of the likely nonces, then thorough ones of those that are worth it."""
        for effort in (QUICK, THOROUGH):
            for nonce, log2_evidence in found.nonces:
                if effort is QUICK or log2_evidence >= _WORTH:
                    place = Place(self._randomness, table, text, self._stretch(nonce, text.words, found.from_start))
                    begin = start_law(place.stretch.size, 0 if found.from_start else None)
                    yield nonce, read_payload(place, begin, effort, self.settings.check_bits)

    def _stretch(self, nonce: int, words: int, from_start: bool) -> Stretch:
        """The words of the tape, from a nonce on, that a text may hold."""
        size = words + _SPARE if from_start else max(words + _SPARE, SEGMENT)
        size = min(size, SEGMENT * (self.settings.nonces - nonce))
        return Stretch(SEGMENT * nonce, -(-size // LANES) * LANES, self.settings.payload_bits)


def _mean_log2(values: list[float]) -> float:
    """log2 of the mean of numbers of these logarithms."""
    return float(np.logaddexp2.reduce(values)) - math.log2(len(values))


def _part(words: SplitText, centre: int) -> slice:
    """The tokens of the words around a word."""
    start, stop = np.searchsorted(words.word, [centre - _WINDOW, centre + _WINDOW])
    return slice(int(start), int(stop))


def _cut(words: SplitText, part: slice) -> SplitText:
    word = words.word[part]
    return SplitText(words.token[part], word - word[0], words.slot[part], words.opens[part], words.kind[part])
