"""StealthInk-type (after Jiang et al. 2025): one bit a place, an unbiased reweighting of a keyed order of the tokens.

The tokens stand in a keyed order, the one of the bit 1 backwards. The later half of their mass is doubled, the earlier
half dropped: over the key a token keeps its probability. The receiver sees whether a token stands late in the order.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mark_schemes.door import PAYLOAD_BITS, MarkRead
from mark_schemes.hashing import Window, contexts, sample, seed_of, uniforms, words_of
from wm_env.common.arrays import Floats
from wm_env.lm.tokenizer import TextTokenizer

WIDTH = 2


class PermutedHalf:
    """As in `Mark`."""

    name: ClassVar[str] = "StealthInk-type"
    needs_length: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def chooser(self, key: int, number: int, payload: Sequence[int], length: int) -> "_Chooser":
        return _Chooser(key, number, list(payload))

    def read(self, key: int, number: int, text: str, length: int) -> MarkRead:
        votes = np.zeros(PAYLOAD_BITS)
        count = 0
        for seed, token in contexts(key, WIDTH, self._tokenizer.encode(text)):
            place = float(uniforms(words_of(seed, np.array([token])))[0])
            # A token of the bit 1 stands early: log of the density 2 (1 - x) of its place against 2 x.
            votes[_bit(seed)] += np.log(1 - place) - np.log(place)
            count += 1
        return MarkRead((votes > 0).astype(np.int64), float(np.abs(votes).sum() / np.sqrt(max(count, 1))))


class _Chooser:
    def __init__(self, key: int, number: int, payload: list[int]) -> None:
        self._window, self._payload = Window(key, WIDTH), payload
        self._rng = np.random.default_rng([key, number])

    def choose(self, law: Floats) -> int:
        seed = self._window.seed()
        if seed is None:
            token = sample(law, self._rng)
        else:
            tokens = np.flatnonzero(law > 0)
            place = uniforms(words_of(seed, tokens))
            order = np.argsort(-place if self._payload[_bit(seed)] else place)
            masses = law[tokens[order]].cumsum()
            point = masses[-1] * (1 + self._rng.random()) / 2
            token = int(tokens[order[np.searchsorted(masses, point, side="left")]])
        self._window.push(token)
        return token


def _bit(seed: int) -> int:
    return seed_of(seed, 1) % PAYLOAD_BITS
