"""SynthID-type (after Dathathri et al. 2024): a tournament of 30 rounds, whose numbers hang on the payload.

The mark itself has no payload. Here the numbers g of a token are drawn for (context, symbol, token): the receiver tries
all values of a symbol. Each round keeps the law over the key. The rounds weigh as in the published weighted mean.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mark_schemes.door import MarkRead, from_symbols, to_symbols
from mark_schemes.hashing import Window, Words, contexts, sample, seed_of, words_of
from wm_env.common.arrays import Floats, Ints
from wm_env.lm.tokenizer import TextTokenizer

WIDTH, ROUNDS = 2, 30
SIZES = [11, 11, 10]
_WEIGHTS = np.append(np.linspace(10, 1, ROUNDS) / np.linspace(10, 1, ROUNDS).sum(), [0.0, 0.0])
_BITS = np.arange(1 << 16)[:, None] >> np.arange(16) & 1
_LOW, _HIGH = _BITS @ _WEIGHTS[:16], _BITS @ _WEIGHTS[16:]
"""The weighted sums of the first and the last 16 rounds, by their bits."""


class Tournament:
    """As in `Mark`."""

    name: ClassVar[str] = "SynthID-type"
    needs_length: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def chooser(self, key: int, number: int, payload: Sequence[int], length: int) -> "_Chooser":
        return _Chooser(key, number, to_symbols(payload, SIZES))

    def read(self, key: int, number: int, text: str, length: int) -> MarkRead:
        scores = [np.zeros(2**size) for size in SIZES]
        count = 0
        for seed, token in contexts(key, WIDTH, self._tokenizer.encode(text)):
            symbol = _symbol(seed)
            values = mixed_seeds(seed, np.arange(2 ** SIZES[symbol]))
            scores[symbol] += _mean_round(words_of(values, np.array([token]))) - 0.5
            count += 1
        best = [int(score.argmax()) for score in scores]
        return MarkRead(
            from_symbols(best, SIZES), sum(float(part.max()) for part in scores) / float(np.sqrt(max(count, 1)))
        )


class _Chooser:
    def __init__(self, key: int, number: int, symbols: list[int]) -> None:
        self._window, self._symbols = Window(key, WIDTH), symbols
        self._rng = np.random.default_rng([key, number])

    def choose(self, law: Floats) -> int:
        seed = self._window.seed()
        tokens = np.flatnonzero(law > 0)
        mass = law[tokens] / law[tokens].sum()
        if seed is not None:
            value = mixed_seeds(seed, np.array([self._symbols[_symbol(seed)]]))
            for drawn in _rounds(words_of(value, tokens)):
                mass = mass * (1 + drawn - mass @ drawn)
        token = int(tokens[sample(mass, self._rng)])
        self._window.push(token)
        return token


def mixed_seeds(seed: int, values: Ints) -> Words:
    """The seed for each value of a symbol."""
    return words_of(seed ^ 0x5EED, values)


def _rounds(words: Words) -> Floats:
    """The numbers g, 0 or 1, of each round, shape (`ROUNDS`, tokens)."""
    bits = np.unpackbits(words.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    drawn: Floats = np.ascontiguousarray(bits[:, :ROUNDS].T).astype(np.float64)
    return drawn


def _mean_round(words: Words) -> Floats:
    """The weighted mean of the numbers g over the rounds."""
    low, high = words & np.uint64(0xFFFF), words >> np.uint64(16) & np.uint64(0xFFFF)
    mean: Floats = _LOW[low.astype(np.int64)] + _HIGH[high.astype(np.int64)]
    return mean


def _symbol(seed: int) -> int:
    return seed_of(seed, 1) % len(SIZES)
