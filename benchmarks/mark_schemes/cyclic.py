"""Cyclic shift, after "three bricks" (Fernandez et al. 2023): keyed races, whose numbers are turned by the payload.

The winner of the race of x with number r(x + m) says the symbol m. A symbol must be smaller than the vocabulary, so 32
bits are three symbols, and the context says which of them a token carries.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mark_schemes.door import MarkRead, from_symbols, to_symbols
from mark_schemes.hashing import Window, contexts, sample, seed_of, uniforms, words_of
from wm_env.common.arrays import Floats
from wm_env.lm.tokenizer import TextTokenizer

WIDTH = 2
SIZES = [11, 11, 10]


class CyclicShift:
    """As in `Mark`."""

    name: ClassVar[str] = "cyclic shift"
    needs_length: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._size = 1 + max(tokenizer.strings)

    def chooser(self, key: int, number: int, payload: Sequence[int], length: int) -> "_Chooser":
        return _Chooser(key, number, to_symbols(payload, SIZES), self._size)

    def read(self, key: int, number: int, text: str, length: int) -> MarkRead:
        scores = [np.zeros(2**size) for size in SIZES]
        counts = np.zeros(len(SIZES))
        for seed, token in contexts(key, WIDTH, self._tokenizer.encode(text)):
            symbol = _symbol(seed)
            turned = (token + np.arange(2 ** SIZES[symbol])) % self._size
            scores[symbol] -= np.log1p(-uniforms(words_of(seed, turned)))
            counts[symbol] += 1
        best = [int(score.argmax()) for score in scores]
        score = sum(float(part.max()) for part in scores) - counts.sum()
        return MarkRead(from_symbols(best, SIZES), score / float(np.sqrt(max(counts.sum(), 1.0))))


class _Chooser:
    def __init__(self, key: int, number: int, symbols: list[int], size: int) -> None:
        self._window, self._symbols, self._size = Window(key, WIDTH), symbols, size
        self._rng = np.random.default_rng([key, number])

    def choose(self, law: Floats) -> int:
        seed = self._window.seed()
        if seed is None:
            token = sample(law, self._rng)
        else:
            tokens = np.flatnonzero(law > 0)
            turned = (tokens + self._symbols[_symbol(seed)]) % self._size
            token = int(tokens[(np.log(uniforms(words_of(seed, turned))) / law[tokens]).argmax()])
        self._window.push(token)
        return token


def _symbol(seed: int) -> int:
    return seed_of(seed, 1) % len(SIZES)
