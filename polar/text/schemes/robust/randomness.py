"""The shared uniform numbers: one for every place on the tape, token and beginning of the payload.

AES-256 under derived keys: no block is encrypted for two purposes, so the numbers are pseudo-random as far as AES is.
A block names a place (40 bits), a token (24 bits) and a digest of the payload's first bits (64 bits). AES and not a
slower hash, because a receiver asks for a million numbers a text.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from polar.text.keys.key import Key
from polar.text.schemes.robust.tape import SLOTS
from wm_env.common.arrays import Ints

Words = NDArray[np.uint64]
"""Uniform 64-bit numbers."""

NO_BITS = np.zeros(1, dtype=np.uint64)
"""The digest of no payload bits."""

LANES = 8
"""Neighbouring words whose pilots share a block, which gives each its leading 16 bits: that makes a search cheap."""


class Randomness:
    """The uniform numbers of one key and one use of it.

    `use` says what the numbers are for; different uses share nothing.
    """

    def __init__(self, key: Key, use: str = "") -> None:
        self._words, self._pilots, self._digests = (_Cipher(key, use, label) for label in ("words", "pilots", "bits"))

    def words(self, word: Ints, slot: Ints, token: Ints, digest: Words) -> Words:
        """The numbers of places and tokens for payload beginnings; all arguments broadcast."""
        place = (word * SLOTS + slot).astype(np.uint64) << np.uint64(24) | token.astype(np.uint64)
        return self._words.encrypt(place, digest)[..., 0]

    def pilots(self, word: Ints, slot: Ints, token: Ints) -> Words:
        """The numbers of level 0; all arguments broadcast. Leading 16 bits as in `pilot_leads`."""
        lanes = self._pilots.encrypt(word // LANES * SLOTS + slot, token).view("<u2")
        lane = np.broadcast_to(word % LANES, lanes.shape[:-1])[..., None]
        lead = np.take_along_axis(lanes, lane, axis=-1)[..., 0].astype(np.uint64)
        return lead << np.uint64(48) | self.words(word, slot, token, NO_BITS[0]) >> np.uint64(16)

    def pilot_leads(self, groups: Ints, slot: Ints, token: Ints) -> NDArray[np.uint16]:
        """The leading 16 bits of the numbers of level 0 in groups of `LANES` words, for slots and tokens of shape (m,).

        Group g holds the words `LANES` g and following; the result has shape (m, `LANES` groups).
        """
        lanes = self._pilots.encrypt(groups * SLOTS + slot[:, None], token[:, None]).view("<u2")
        return lanes.reshape(len(token), LANES * len(groups))

    def extend(self, digests: Words, bit: int | Ints) -> Words:
        """The digests of payload beginnings, each with one more bit: the same one, or one for each."""
        return self._digests.encrypt(digests, np.asarray(bit))[..., 0]

    def digests(self, bits: Sequence[int]) -> Words:
        """The digest for each level 0, 1, ..., K, K + 1 of a payload of K bits."""
        chain = [NO_BITS]
        for bit in bits:
            chain.append(self.extend(chain[-1], int(bit)))
        return np.concatenate([*chain, chain[-1]])


class _Cipher:
    def __init__(self, key: Key, use: str, label: str) -> None:
        info = b"\0".join((b"covert-watermark robust 1", use.encode(), label.encode()))
        derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(key.secret)
        self._encryptor = Cipher(AES(derived), ECB()).encryptor()

    def encrypt(self, first: NDArray[Any], second: NDArray[Any]) -> Words:
        """Blocks of two little-endian words each, which broadcast to (...), encrypted: shape (..., 2)."""
        blocks = np.empty((*np.broadcast_shapes(first.shape, second.shape), 2), dtype="<u8")
        blocks[..., 0] = first
        blocks[..., 1] = second
        output = np.empty(blocks.nbytes + 16, dtype=np.uint8)
        if blocks.size:
            self._encryptor.update_into(blocks.data.cast("B"), output.data)
        return output[: blocks.nbytes].view("<u8").reshape(blocks.shape)
