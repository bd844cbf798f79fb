"""Keyed races along a key sequence, read by edit distance (after Kuditipudi et al. 2023).

Place j of the key sequence has a number for every token. The sequence has a part for each symbol of the payload, and
each value of the symbol has numbers of its own: the receiver aligns the text with each of them, and takes the cheapest.
The cost of an aligned token is 1 + ln(1 - r), of a gap `GAP`; the part of a text that belongs to a symbol is looked for
(alignments are local). The sequence is the text's own, and the receiver knows which: that is a favour.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np

from mark_schemes.door import MarkRead, from_symbols, to_symbols
from mark_schemes.hashing import seed_of, uniforms, words_of
from wm_env.common.arrays import Floats, Ints
from wm_env.lm.tokenizer import TextTokenizer

SIZES = [8, 8, 8, 8]
GAP = 1.0


class EditDistance:
    """As in `Mark`."""

    name: ClassVar[str] = "Gumbel, edit distance"
    needs_length: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def chooser(self, key: int, number: int, payload: Sequence[int], length: int) -> "_Chooser":
        return _Chooser(seed_of(key, number), to_symbols(payload, SIZES), length)

    def read(self, key: int, number: int, text: str, length: int) -> MarkRead:
        tokens = np.array(self._tokenizer.encode(text))
        seed = seed_of(key, number)
        best, total = [], 0.0
        for (start, stop), size in zip(pairwise(_edges(length)), SIZES, strict=True):
            found = alignments(seed, range(start, stop), 2**size, tokens)
            best.append(int(found.argmax()))
            total += float(found.max())
        return MarkRead(from_symbols(best, SIZES), total)


def _edges(length: int) -> list[int]:
    return [length * number // len(SIZES) for number in range(len(SIZES) + 1)]


def alignments(seed: int, places: range, values: int, tokens: Ints) -> Floats:
    """The gain of the best local alignment of a text with a part of the key sequence, for each value, shape (values,).

    Gaps in the sequence of any length cost `GAP` a place: the least over them is a running maximum.
    """
    seeds = _seeds(seed, np.array(places), np.arange(values))
    ramp = GAP * np.arange(len(places))
    row = np.zeros((values, len(places)))
    best = np.zeros(values)
    distinct, which = np.unique(tokens, return_inverse=True)
    gains = {number: -1 - np.log1p(-uniforms(words_of(seeds, distinct[number]))) for number in range(len(distinct))}
    for number in which.tolist():
        gain = gains[number]
        moved = np.maximum(row - GAP, 0.0)
        moved[:, 1:] = np.maximum(moved[:, 1:], row[:, :-1] + gain[:, 1:])
        moved[:, 0] = np.maximum(moved[:, 0], gain[:, 0])
        row = np.maximum.accumulate(moved + ramp, axis=1) - ramp
        best = np.maximum(best, row.max(axis=1))
    return best


def _seeds(seed: int, places: Ints, values: Ints) -> np.ndarray:
    return words_of(words_of(seed, places)[None, :], values[:, None])


class _Chooser:
    def __init__(self, seed: int, symbols: list[int], length: int) -> None:
        self._seed, self._symbols, self._edges = seed, symbols, _edges(length)
        self._place = 0

    def choose(self, law: Floats) -> int:
        part = min(int(np.searchsorted(self._edges, self._place, side="right")) - 1, len(SIZES) - 1)
        seed = _seeds(self._seed, np.array([self._place]), np.array([self._symbols[part]]))[0]
        tokens = np.flatnonzero(law > 0)
        self._place += 1
        return int(tokens[(np.log(uniforms(words_of(seed, tokens))) / law[tokens]).argmax()])
