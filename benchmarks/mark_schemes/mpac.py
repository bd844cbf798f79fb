"""MPAC (Yoo, Ahn, Kwak 2024): the token before names a symbol of the payload; its colour gets a bias.

Radix r = 4, delta = 2, a context of one token, as recommended there. The law is bent.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mark_schemes.door import PAYLOAD_BITS, MarkRead, from_symbols, to_symbols
from mark_schemes.hashing import Window, contexts, sample, seed_of, words_of
from wm_env.common.arrays import Floats
from wm_env.lm.tokenizer import TextTokenizer

BITS, DELTA, WIDTH = 2, 2.0, 1
SIZES = [BITS] * (PAYLOAD_BITS // BITS)
_COLOURS = np.uint64(2**BITS)


class Mpac:
    """As in `Mark`."""

    name: ClassVar[str] = "MPAC"
    needs_length: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def chooser(self, key: int, number: int, payload: Sequence[int], length: int) -> "_Chooser":
        return _Chooser(key, number, to_symbols(payload, SIZES))

    def read(self, key: int, number: int, text: str, length: int) -> MarkRead:
        votes = np.zeros((len(SIZES), 2**BITS))
        for seed, token in contexts(key, WIDTH, self._tokenizer.encode(text)):
            votes[_symbol(seed), int(words_of(seed, np.array([token]))[0] % _COLOURS)] += 1
        score = (votes.max(axis=1).sum() - votes.sum() / 2**BITS) / np.sqrt(max(votes.sum(), 1.0))
        return MarkRead(from_symbols(votes.argmax(axis=1).tolist(), SIZES), float(score))


class _Chooser:
    def __init__(self, key: int, number: int, symbols: list[int]) -> None:
        self._window = Window(key, WIDTH, once=False)
        self._rng, self._symbols = np.random.default_rng([key, number]), symbols
        self.variations: list[float] = []
        """Total variation of each token's law from the model's, for one key."""

    def choose(self, law: Floats) -> int:
        seed = self._window.seed()
        biased = law / law.sum()
        if seed is not None:
            colour = words_of(seed, np.arange(len(law))) % _COLOURS
            raised = biased * np.where(colour == self._symbols[_symbol(seed)], np.exp(DELTA), 1.0)
            raised /= raised.sum()
            self.variations.append(float(np.abs(raised - biased).sum() / 2))
            biased = raised
        token = sample(biased, self._rng)
        self._window.push(token)
        return token


def _symbol(seed: int) -> int:
    return seed_of(seed, 1) % len(SIZES)
