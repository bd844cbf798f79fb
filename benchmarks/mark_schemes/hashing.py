"""Keyed numbers of the marks, and the contexts that they hang on.

The numbers are good statistics and no cryptography: the finaliser of SplitMix64. Ours uses AES, as the product does.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from wm_env.common.arrays import Floats, Ints

Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix(values: Words) -> Words:
    """Uniform 64-bit numbers, one for each value."""
    with np.errstate(over="ignore"):
        values = values + _GOLDEN
        values = (values ^ (values >> np.uint64(30))) * _FIRST
        values = (values ^ (values >> np.uint64(27))) * _SECOND
        return values ^ (values >> np.uint64(31))


def seed_of(*parts: int) -> int:
    """One number for several, such as a key and a context."""
    seed = 0
    for part in parts:
        seed = int(mix(np.array([(seed ^ part) & (2**64 - 1)], dtype=np.uint64))[0])
    return seed


def words_of(seed: int | Words, tokens: Ints) -> Words:
    """A uniform number for each token; a seed may be an array that broadcasts with them."""
    with np.errstate(over="ignore"):
        return mix(mix(tokens.astype(np.uint64)) ^ np.asarray(seed, dtype=np.uint64))


def uniforms(words: Words) -> Floats:
    """Numbers inside (0, 1)."""
    numbers: Floats = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return numbers


class Window:
    """The last tokens of a text; the sender's side of `contexts`.

    Args:
        width: tokens of a context.
        once: whether a context that was there before gives no seed, so that no number is used twice in a text.
    """

    def __init__(self, key: int, width: int, once: bool = True) -> None:
        self._key, self._width, self._once = key, width, once
        self._tokens: list[int] = []
        self._seen: set[int] = set()

    def seed(self) -> int | None:
        """The seed of the next token, None where the context is short or was there before."""
        if len(self._tokens) < self._width:
            return None
        seed = seed_of(self._key, *self._tokens[-self._width :])
        if self._once and seed in self._seen:
            return None
        self._seen.add(seed)
        return seed

    def push(self, token: int) -> None:
        """Count a token."""
        self._tokens.append(token)


def contexts(key: int, width: int, tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(seed, token) for the tokens of a text whose context is there for the first time."""
    window = Window(key, width)
    for token in tokens:
        if (seed := window.seed()) is not None:
            yield seed, token
        window.push(token)


def sample(law: Floats, rng: np.random.Generator) -> int:
    """A plain draw."""
    sums = law.cumsum()
    return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
