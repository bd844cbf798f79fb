"""The polar transform U = V G over GF(2), G the p-fold Kronecker power of [[1, 0], [1, 1]], in natural order."""

import numpy as np
from numpy.typing import NDArray

from wm_env.common.arrays import Ints


def polar_transform(words: NDArray[np.integer]) -> Ints:
    """U = V G along the last axis, in O(L log L) additions modulo 2; its own inverse.

    No bit reversal: U_0 is the parity of all of V, and U_{L-1} = V_{L-1}.

    Args:
        words: bits, integers 0 and 1, shape (..., L), L a power of two.

    Raises:
        ValueError: L is not a power of two, or an entry is not a bit.
    """
    length = words.shape[-1] if words.ndim else 0
    if length < 1 or length & (length - 1):
        raise ValueError(f"words of {length} bits: the polar transform needs a power of two")
    if (words >> 1).any():
        raise ValueError("words must hold bits, 0 or 1")
    transformed = words.astype(np.int64)
    step = 1
    while step < length:
        pairs = transformed.reshape(*words.shape[:-1], length // (2 * step), 2, step)
        pairs[..., 0, :] ^= pairs[..., 1, :]
        step *= 2
    return transformed


def label_words(labels: NDArray[np.integer], block_length: int) -> Ints:
    """V of label numbers: the number in binary, most significant bit first; shape (..., L)."""
    places = np.arange(block_length - 1, -1, -1)
    bits: Ints = np.asarray(labels, dtype=np.int64)[..., None] >> places & 1
    return bits
