"""A text as words, and the place on the tape of each token.

Both ends read these off the token ids and the strings of the vocabulary alone. A token opens a word if it has a
character that is no white space, and white space stands at its beginning or before it, or if it begins with a wide
character (Chinese, Japanese, Korean). The first token opens one. White space alone belongs to the word before it.

The sender must know the place of a token before the token, so the place counts what was said: the next token stands at
(w, k) if the last word was the w-th and has k tokens so far, whether or not the token will open a word. Places of a
text are all different. A token that opens a word therefore stands at a place of the word before: if that word was
edited, the receiver does not know k, and averages over what it may have been.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polar.text.schemes.robust.tape import SLOTS
from wm_env.common.arrays import Ints

_RANKS = (300, 400, 600, 1000, 2000, 4000)
"""Ids grow as tokens get rarer, in a vocabulary made by merges."""

KINDS = 2 * 2 * (len(_RANKS) + 1) * 3
"""Kinds of tokens: opens a word or not, letters or not, seven ranks, and how much of it was in the text before."""


@dataclass(frozen=True)
class SplitText:
    """A text, token by token, shape (tokens,) each.

    Attributes:
        token: ids.
        word: number of the word, from 0 on.
        slot: k of the place; of the very first token 0, wherever the text begins on the tape.
        opens: whether it is the first token of a word, so that its place is one of the word before.
        kind: in 0..KINDS-1.
    """

    token: Ints
    word: Ints
    slot: Ints
    opens: NDArray[np.bool_]
    kind: Ints

    @property
    def words(self) -> int:
        """Number of words."""
        return int(self.word[-1]) + 1 if len(self.word) else 0


def as_letters(strings: Mapping[int, bytes]) -> dict[int, str]:
    """The strings of a tokenizer as letters; a part of a character is U+FFFD."""
    return {token: string.decode("utf-8", "replace") for token, string in strings.items()}


class WordClock:
    """The places of a text's tokens, as they come from left to right.

    Args:
        strings: the string of each token id, as it stands in a text; an id that is missing opens no word.
        by_token: every token is a word of its own, as for a sampler that does not go from left to right.

    Attributes:
        word, slot: the place of the next token, from (0, 0) on.
    """

    def __init__(self, strings: Mapping[int, str], by_token: bool = False) -> None:
        self._strings = strings
        self._by_token = by_token
        self._blank_before = False
        self.word, self.slot = 0, 0

    def advance(self, token: int) -> bool:
        """Count the next token; whether it opened a word behind another one."""
        string = self._strings.get(token, "")
        opens = not self._by_token and (self.word, self.slot) != (0, 0) and opens_word(string, self._blank_before)
        self._blank_before = string[-1:].isspace()
        if opens:
            self.word, self.slot = self.word + 1, 1
        elif self._by_token or self.slot == SLOTS - 1:
            self.word, self.slot = self.word + 1, 0
        else:
            self.slot += 1
        return opens


def opens_word(string: str, blank_before: bool) -> bool:
    """Whether a token opens a word, wherever it stands."""
    if not string or string.isspace():
        return False
    return string[0].isspace() or blank_before or unicodedata.east_asian_width(string[0]) in "WF"


def split_text(tokens: Iterable[int], strings: Mapping[int, str], by_token: bool = False) -> SplitText:
    """The words and places of a text."""
    token = np.array(tokens if isinstance(tokens, list) else list(tokens), dtype=np.int64)
    clock = WordClock(strings, by_token)
    word, slot, opens = np.zeros_like(token), np.zeros_like(token), np.zeros(len(token), dtype=np.bool_)
    for number, item in enumerate(token.tolist()):
        word[number], slot[number] = clock.word, clock.slot
        opens[number] = clock.advance(item)
    word += opens
    # A word that is full and over at once leaves a number that no token has.
    word = np.cumsum(np.diff(word, prepend=0) > 0)
    opens[:1] = not by_token
    return SplitText(token, word, slot, opens, _kinds(token, opens, strings))


def _kinds(token: Ints, opens: NDArray[np.bool_], strings: Mapping[int, str]) -> Ints:
    letters = np.array([strings.get(number, "").strip().isalpha() for number in token.tolist()], dtype=np.int64)
    rank = np.searchsorted(_RANKS, token, side="right")
    return ((opens * 2 + letters) * (len(_RANKS) + 1) + rank) * 3 + _repeated(token)


def _repeated(token: Ints) -> Ints:
    """For each token 2 if it ends three tokens in a row that the text had before, 1 if two, else 0."""
    pairs: set[tuple[int, ...]] = set()
    repeated = np.zeros(len(token), dtype=np.int64)
    ids = token.tolist()
    for place in range(1, len(ids)):
        two, three = tuple(ids[place - 1 : place + 1]), tuple(ids[max(place - 2, 0) : place + 1])
        repeated[place] = 2 if len(three) == 3 and three in pairs else int(two in pairs)
        pairs.update((two, three))
    return repeated
