"""What every mark is to the comparison: a chooser of tokens for the sender, a reading of tokens for the receiver."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from polar.text.schemes.robust.sampling import Chooser
from wm_env.common.arrays import Ints

PAYLOAD_BITS = 32


@dataclass(frozen=True)
class MarkRead:
    """What a receiver makes of a text.

    Attributes:
        bits: the likeliest payload, shape (`PAYLOAD_BITS`,); None if the receiver says that there is none.
        score: grows with the evidence that the text is marked.
        parts: what is marked, as ranges of characters, if the receiver can say so.
        attempts: payloads whose check was compared, if there is a check.
    """

    bits: Ints | None
    score: float
    parts: tuple[tuple[int, int], ...] = ()
    attempts: int = 0


class Mark(Protocol):
    """A way to hide 32 bits in a text, with a key that both ends have.

    Attributes:
        name: as in the tables.
        needs_length: whether the sender must know the number of tokens from the beginning, and the receiver too.
        unbiased: whether the law of a text over the key is the model's.
    """

    name: ClassVar[str]
    needs_length: ClassVar[bool]
    unbiased: ClassVar[bool]

    def chooser(self, key: int, number: int, payload: Sequence[int], length: int) -> Chooser:
        """The sender of text `number` under a key."""

    def read(self, key: int, number: int, text: str, length: int) -> MarkRead:
        """Read a text. Marks that look the number up themselves do not use it; for the others it is a favour."""


def payload_of(number: int) -> list[int]:
    """The payload of text `number`."""
    payload: list[int] = np.random.default_rng([number, PAYLOAD_BITS]).integers(0, 2, PAYLOAD_BITS).tolist()
    return payload


def to_symbols(payload: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The payload as whole numbers of `sizes` bits."""
    digits, symbols = "".join(map(str, payload)), []
    for size in sizes:
        symbols.append(int(digits[:size], 2))
        digits = digits[size:]
    return symbols


def from_symbols(symbols: Sequence[int], sizes: Sequence[int]) -> Ints:
    """The bits of whole numbers of `sizes` bits."""
    digits = "".join(f"{int(symbol):0{size}b}" for symbol, size in zip(symbols, sizes, strict=True))
    return np.array([int(digit) for digit in digits])
