"""Random laws of tokens without a model: every text so far has its own integers, the same for whoever asks."""

import hashlib

import numpy as np

from polar.text.vocabulary import Vocabulary


class TableLaw:
    """Integer masses in the order of ranks; zeros and very unequal masses occur."""

    def __init__(self, vocabulary: Vocabulary, seed: bytes, tokens: tuple[int, ...], most: int = 5000) -> None:
        digest = hashlib.sha256(seed + repr(tokens).encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        masses = np.floor(most ** rng.random(len(vocabulary.ids)) - 0.5).astype(np.int64)
        masses[rng.integers(len(masses))] += 1
        self.masses = masses.tolist()
        self._cumulative = np.concatenate([[0], np.cumsum(masses)])

    def at(self, ranks: np.ndarray) -> list[int]:
        return self._cumulative[ranks].tolist()

    def probability(self, vocabulary: Vocabulary, token: int) -> tuple[int, int]:
        """Numerator and denominator."""
        rank = vocabulary.ids.tolist().index(token)
        return self.masses[rank], sum(self.masses)
