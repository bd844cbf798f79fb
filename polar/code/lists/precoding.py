"""What is put around a polar code: a check (CRC) on the message, a convolution in front of the transform."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from polar.code.compiled import Bits

NO_TAPS = 1
"""The convolution that changes nothing, c = 1: a plain polar code."""

PAC_TAPS = 0o155
"""c = 1 + D^2 + D^3 + D^5 + D^6, Arikan's choice for PAC codes, lowest bit first (0o133 written from the other end)."""


@dataclass(frozen=True)
class Check:
    """A cyclic redundancy check of `bits` bits, g(x) = x^bits + `polynomial`.

    Attributes:
        bits: r >= 0; 0 is no check.
        polynomial: the lower coefficients of g as a number, the highest power in the highest bit.
    """

    bits: int
    polynomial: int

    def __post_init__(self) -> None:
        if not 0 <= self.bits <= 24 or not 0 <= self.polynomial < 1 << self.bits:
            raise ValueError(
                f"bits={self.bits}, polynomial={self.polynomial:#x}: 0 to 24 bits, a polynomial below 2^bits"
            )


NO_CHECK = Check(0, 0)
CHECKS = (NO_CHECK, Check(4, 0x3), Check(6, 0x21), Check(8, 0x9B), Check(11, 0x621), Check(16, 0x1021))
"""Checks of 0, 4, 6, 8, 11 and 16 bits; those of 6 and 11 are the ones of 5G (TS 38.212)."""


def check_values(messages: NDArray[np.integer], check: Check) -> Bits:
    """The remainders of messages: bits of shape (..., k) to bits of shape (..., r), the highest power first."""
    return (messages @ _remainders(messages.shape[-1], check) & 1).astype(np.uint8)


@lru_cache(maxsize=64)
def _remainders(length: int, check: Check) -> NDArray[np.int64]:
    """x^r x^j mod g for every bit j of a message of `length` bits, the first bit the highest power; shape (k, r)."""
    rows, remainder = [], check.polynomial
    for _ in range(length):
        rows.append([remainder >> place & 1 for place in reversed(range(check.bits))])
        carry = remainder >> check.bits - 1 if check.bits else 0
        remainder = (remainder << 1 & (1 << check.bits) - 1) ^ (check.polynomial if carry else 0)
    return np.array(rows[::-1], dtype=np.int64).reshape(length, check.bits)


def convolve(words: NDArray[np.integer], taps: int) -> Bits:
    """V = W T, v_i = sum_j c_j w_(i-j) (mod 2), along the last axis.

    Raises:
        ValueError: taps without c_0, or of more than 32 bits.
    """
    check_taps(taps)
    convolved = np.zeros(words.shape, dtype=np.uint8)
    for delay in range(min(taps.bit_length(), words.shape[-1])):
        if taps >> delay & 1:
            convolved[..., delay:] ^= words[..., : words.shape[-1] - delay].astype(np.uint8)
    return convolved


def deconvolve(words: NDArray[np.integer], taps: int) -> Bits:
    """W of V = W T, along the last axis; errors as of `convolve`."""
    check_taps(taps)
    found = np.zeros(words.shape, dtype=np.uint8)
    delays = [delay for delay in range(1, taps.bit_length()) if taps >> delay & 1]
    for i in range(words.shape[-1]):
        found[..., i] = words[..., i]
        for delay in delays:
            if delay <= i:
                found[..., i] ^= found[..., i - delay]
    return found


def check_taps(taps: int) -> None:
    """Refuse a convolution that cannot be undone bit by bit, or is longer than a register.

    Raises:
        ValueError: taps without c_0, or of more than 32 bits.
    """
    if not 0 < taps < 1 << 32 or not taps & 1:
        raise ValueError(f"taps={taps:#o}: an odd number of at most 32 bits is needed")
