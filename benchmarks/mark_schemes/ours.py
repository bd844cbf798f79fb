"""The product's own scheme `robust`, and plain sampling, behind the door of the marks."""

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np

from mark_schemes.door import MarkRead
from mark_schemes.hashing import sample
from polar.text.keys.key import Key
from polar.text.schemes.robust.reader import Receiver
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.schemes.robust.words import as_letters
from polar.text.schemes.robust.writer import Writer
from wm_env.common.arrays import Floats
from wm_env.lm.tokenizer import TextTokenizer

SETTINGS = RobustSettings()


class Robust:
    """As in `Mark`. The receiver looks for the nonce among 128, and says nothing without 32 bits of check."""

    name: ClassVar[str] = "robust"
    needs_length: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._letters = as_letters(tokenizer.strings)
        self.receiver = lru_cache(maxsize=4)(self._receiver)

    def _receiver(self, key: int) -> Receiver:
        return Receiver(key_of(key), self._tokenizer, SETTINGS)

    def chooser(self, key: int, number: int, payload: Sequence[int], length: int) -> Writer:
        return Writer(key_of(key), payload, number, SETTINGS, self._letters)

    def read(self, key: int, number: int, text: str, length: int) -> MarkRead:
        found = self.receiver(key).decode(text)
        bits = None if found.payload is None else np.array(found.payload)
        return MarkRead(bits, -float(np.log2(found.p_value)), tuple(found.parts()), found.attempts)


class Plain:
    """Texts without a mark."""

    name: ClassVar[str] = "plain"
    needs_length: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def __init__(self, tokenizer: TextTokenizer) -> None:
        pass

    def chooser(self, key: int, number: int, payload: Sequence[int], length: int) -> "_Chooser":
        return _Chooser(np.random.default_rng([key, number]))

    def read(self, key: int, number: int, text: str, length: int) -> MarkRead:
        return MarkRead(None, 0.0)


class _Chooser:
    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, law: Floats) -> int:
        return sample(law, self._rng)


def key_of(key: int) -> Key:
    """The product's key for a number."""
    return Key(bytes([key]) * 32)
