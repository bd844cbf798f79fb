"""What a key of so many bits is spent on: first the pad of the message, then common randomness for the encoder."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from wm_env.common.checks import check_known
from wm_env.information import measure
from wm_env.law import BlockLaw

Surplus = Literal["frozen", "dither"]
"""Use of the key bits beyond the message: fix further positions of V, or shift the point that draws V and X."""


@dataclass(frozen=True)
class KeySchedule:
    """How the bits of a block's key are used; K = 2^key_bits keys, numbers 0..K-1, equally likely.

    The leading min(key_bits, l) bits of a key pad as many message bits, in the order of M*. The rest is surplus.

    Attributes:
        message_bits: l >= 0.
        key_bits: log2 K >= 0.
        surplus: what the key bits beyond l do.

    Raises:
        ValueError: another word for the surplus.
    """

    message_bits: int
    key_bits: int
    surplus: Surplus = "frozen"

    def __post_init__(self) -> None:
        check_known("surplus", self.surplus, get_args(Surplus))

    @property
    def pad_bits(self) -> int:
        """Number of message bits under the one-time pad."""
        return min(self.message_bits, self.key_bits)

    @property
    def surplus_bits(self) -> int:
        """Number of key bits beyond the message."""
        return self.key_bits - self.pad_bits

    def pad(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """The word that is added (xor) to the message, in [0, 2^l): key bits first, zeros where the key is short."""
        return keys >> self.surplus_bits << (self.message_bits - self.pad_bits)

    def surplus_word(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rest of the key, in [0, 2^surplus_bits)."""
        return keys & ((1 << self.surplus_bits) - 1)


def key_bits_of(keys: int) -> int:
    """log2 K.

    Raises:
        ValueError: the number of keys is not a power of two.
    """
    if keys < 1 or keys & (keys - 1):
        raise ValueError(f"keys={keys}: the number of keys must be a power of two (1 is no key)")
    return keys.bit_length() - 1


def theorem_key_bits(law: BlockLaw) -> int:
    """ceil(I(U;X|S)): the number of message bits that the paper pads in this block."""
    return math.ceil(float(measure(law).i_ux_given_s) - 1e-9)
