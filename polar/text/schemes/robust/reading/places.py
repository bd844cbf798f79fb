"""What the tokens of a text say about a stretch of the tape, place by place."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polar.text.schemes.robust.randomness import LANES, Randomness, Words
from polar.text.schemes.robust.reading.alignment import Alignment, Ratios
from polar.text.schemes.robust.reading.likelihood import Likelihood, Singles, lead_ratios, word_ratios
from polar.text.schemes.robust.tape import SEGMENT, levels
from polar.text.schemes.robust.words import SplitText
from wm_env.common.arrays import Floats, Ints

LENGTHS = np.array([0.0, 0.62, 0.22, 0.10, 0.06])
"""Law of the number of tokens of a word that the receiver does not have."""


@dataclass(frozen=True)
class Stretch:
    """A stretch of the tape.

    Attributes:
        first: its first word on the tape, a multiple of `LANES`.
        size: words.
        payload_bits: K.
    """

    first: int
    size: int
    payload_bits: int

    @property
    def level(self) -> Ints:
        """The level of each place, shape (size, SLOTS)."""
        return levels(self.payload_bits)[(self.first + np.arange(self.size)) % SEGMENT]


@dataclass(frozen=True)
class Pairs:
    """Tokens and the words of a stretch that they may belong to, shape (m,) each.

    Attributes:
        index: number of the token in the text.
        word: the word of the stretch.
        length: of a token that opens a word: how many tokens the word before has on the tape; 0 if as many as in the
            text. 0 for other tokens.
        place, slot: where the token would have stood.
    """

    index: Ints
    word: Ints
    length: Ints
    place: Ints
    slot: Ints

    def at(self, which: NDArray[np.bool_] | Ints) -> "Pairs":
        """Some of the pairs."""
        return Pairs(*(part[which] for part in (self.index, self.word, self.length, self.place, self.slot)))


def pairs_of(text: SplitText, near: NDArray[np.bool_]) -> Pairs:
    """All pairs for which `near`, shape (words, size), is true; tokens that open words once for each length."""
    index, word = np.nonzero(near[text.word])
    opens = np.flatnonzero(text.opens[index] & (word > 0))
    more = len(LENGTHS) - 1
    lengths = np.repeat(np.arange(1, more + 1), len(opens))
    length = np.append(np.zeros(len(index), dtype=np.int64), lengths)
    index, word = (np.append(part, np.tile(part[opens], more)) for part in (index, word))
    back = text.opens[index]
    slot = np.where(length > 0, length, text.slot[index])
    # The first word of a text has no word before: its first token stands at (0, 0).
    first = back & (word == 0)
    return Pairs(index, word, length, word - (back & ~first), np.where(first, 0, slot))


class Field:
    """Likelihood ratios of pairs (token of a text, place of the random tape), for the pairs that were computed.

    Args:
        text: the text, split into words and tokens.
        plain: ratios of every token at the place that its own position in its word gives, shape (tokens, size).
        lengths: ratios of the first token of every word, for the case that the word before has 1, 2, ... tokens on the
            tape, shape (lengths, words, size).
    """

    def __init__(self, text: SplitText, plain: Singles, lengths: Singles) -> None:
        self._text, self._plain, self._lengths = text, plain, lengths
        self._openers = np.cumsum(text.opens) - 1

    def put(self, pairs: Pairs, ratios: Singles) -> "Field":
        """A field that knows these ratios as well."""
        field = Field(self._text, self._plain.copy(), self._lengths.copy())
        plain = pairs.length == 0
        field._plain[pairs.index[plain], pairs.word[plain]] = ratios[plain]
        other = pairs.at(~plain)
        field._lengths[other.length - 1, self._openers[other.index], other.word] = ratios[~plain]
        return field

    def ratios(self) -> Ratios:
        """The ratios of whole words."""
        opens = self._text.opens
        known = self._plain.astype(np.float64)
        unknown = known.copy()
        unknown[opens, 1:] = np.tensordot(LENGTHS[1:].astype(np.float32), self._lengths[:, :, 1:], 1)
        starts = np.flatnonzero(np.diff(self._text.word, prepend=-1))
        return Ratios(np.multiply.reduceat(known, starts, axis=0), np.multiply.reduceat(unknown, starts, axis=0))


@dataclass(frozen=True)
class Place:
    """A text laid over a stretch of one key's tape.

    Attributes:
        randomness: of the key.
        likelihood: the tables.
        text: the words.
        stretch: where on the tape.
    """

    randomness: Randomness
    likelihood: Likelihood
    text: SplitText
    stretch: Stretch

    def pilots(self) -> Field:
        """What level 0 says, everywhere on the stretch."""
        text = self.text
        openers = np.flatnonzero(text.opens)
        lengths = np.arange(1, len(LENGTHS))
        plain = self._pilot_rows(np.arange(len(text.token)), text.slot)
        others = self._pilot_rows(np.tile(openers, len(lengths)), np.repeat(lengths, len(openers)))
        first = self._pilot_rows(openers, np.zeros_like(openers))[:, 0]
        # A token that opens a word stands at a place of the word before; the first word has none.
        plain[openers, 1:] = plain[openers, :-1]
        plain[openers, 0] = first
        return Field(text, plain, _behind(others).reshape(len(lengths), len(openers), self.stretch.size))

    def _pilot_rows(self, index: Ints, slot: Ints) -> Singles:
        """The ratios of tokens at these slots of all words of the stretch, 1 above level 0: shape (m, size)."""
        groups = np.arange(self.stretch.first // LANES, (self.stretch.first + self.stretch.size) // LANES)
        leads = self.randomness.pilot_leads(groups, slot, self.text.token[index])
        ratios = lead_ratios(self.likelihood, self.text.kind[index][:, None], leads)
        ratios[self.stretch.level.T[slot] > 0] = 1
        return ratios

    def ratios(self, pairs: Pairs, digests: Words) -> Singles:
        """The ratios of pairs at levels above 0, for payload beginnings that broadcast with them."""
        shape = (slice(None),) + (None,) * (digests.ndim - 1)
        token, kind = self.text.token[pairs.index], self.text.kind[pairs.index]
        place = (self.stretch.first + pairs.place)[shape], pairs.slot[shape], token[shape]
        return word_ratios(self.likelihood, kind[shape], self.randomness.words(*place, digests))

    def levels(self, pairs: Pairs) -> Ints:
        """The level of each pair's place."""
        return self.stretch.level[pairs.place, pairs.slot]


def _behind(rows: Singles) -> Singles:
    """The rows one word later; 1 at the first word."""
    moved = np.ones_like(rows)
    moved[:, 1:] = rows[:, :-1]
    return moved


def near_path(alignment: Alignment, reach: int) -> NDArray[np.bool_]:
    """Words of the stretch within `reach` of where each word of the text is likely to belong, shape (words, size)."""
    matched = alignment.known + alignment.unknown
    length, size = matched.shape
    sure = np.flatnonzero(matched.sum(axis=1) > 0.3)
    if not len(sure):
        return np.zeros((length, size), dtype=np.bool_)
    centre = np.interp(np.arange(length), sure, matched[sure].argmax(axis=1))
    near: NDArray[np.bool_] = np.abs(np.arange(size) - centre[:, None]) <= reach
    return near


def weights_of(alignment: Alignment, text: SplitText, pairs: Pairs) -> Floats:
    """The probability of each pair."""
    word = text.word[pairs.index]
    known, unknown = alignment.known[word, pairs.word], alignment.unknown[word, pairs.word]
    opens = text.opens[pairs.index] & (pairs.word > 0)
    return np.where(opens, np.where(pairs.length > 0, LENGTHS[pairs.length] * unknown, known), known + unknown)
