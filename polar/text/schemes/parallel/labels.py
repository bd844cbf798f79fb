"""Labels of tokens, and the bits that the labels of a step hold. Free of torch: the receiver needs no more."""

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from polar.code.transform import polar_transform
from wm_env.common.arrays import Ints


def token_label(string: bytes, key: bytes, bits: int) -> int:
    """The label of a token: the leading bits of a keyed hash of its bytes, in [0, 2^bits), bits at most 16."""
    return int.from_bytes(blake2b(string, key=key, digest_size=2).digest(), "big") >> (16 - bits)


def vocabulary_labels(strings: Mapping[int, bytes], size: int, key: bytes, bits: int) -> Ints:
    """The labels of all tokens, shape (size,); 0 for ids without bytes, which no text contains."""
    labels = np.zeros(size, dtype=np.int64)
    for token, string in strings.items():
        labels[token] = token_label(string, key, bits)
    return labels


def read_bits(labels: Ints, message: NDArray[np.bool_]) -> NDArray[np.int64]:
    """What the message positions of steps hold: labels (steps, n), mask (b, n) -> bits (steps, mask.sum())."""
    levels = len(message)
    planes = labels[:, None, :] >> np.arange(levels - 1, -1, -1)[None, :, None] & 1
    return polar_transform(planes)[:, message]
