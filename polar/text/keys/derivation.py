"""What a key gives to one message: keys, pads and shared draws that no other message has.

From the 32-byte key, the use (scheme, settings, prompt, sender), the nonce and a label, HKDF-SHA256 derives a key of
its own for every purpose; ChaCha20 under that key is the stream of pad bits or of shared random draws. `docs/keys.md`
says what this protects.
"""

import hashlib
import json
from dataclasses import asdict, dataclass

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from polar.text.keys.key import NONCE_LIMIT, Key
from polar.text.settings import Settings

VERSION = b"covert-watermark 3"
"""Rises whenever texts of an earlier version would be read otherwise."""


def check_nonce(nonce: int, limit: int = NONCE_LIMIT) -> None:
    """Raise ValueError for what is no nonce; `limit`, that of a scheme, is a power of 2."""
    if not 0 <= nonce < limit:
        raise ValueError(f"nonce={nonce}: a number from 0 to 2^{limit.bit_length() - 1} - 1 is needed")


def text_hash(text: str) -> str:
    """SHA-256 of a text in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def use_of(settings: Settings, prompt: str) -> bytes:
    """32 bytes that name what a key is used for: two uses that differ in anything share nothing.

    `prompt` is `text_hash` of the prompt in canonical form. It and the settings of the model's law are part of the use
    unless the receiver needs no model.
    """
    scheme = settings.scheme
    agreed: dict[str, object] = {"scheme": scheme.name, "sender": settings.sender, "check_bits": settings.check_bits}
    agreed["own"] = asdict(scheme)
    if scheme.needs_model:
        agreed["law"] = asdict(settings.law)
        agreed["prompt"] = prompt
    return hashlib.sha256(json.dumps(agreed, sort_keys=True, ensure_ascii=True).encode()).digest()


@dataclass(frozen=True)
class MessageKeys:
    """What a key gives to one message; different nonces or uses share nothing.

    Attributes:
        key: the shared secret.
        nonce: number of the message under this key, in [0, 2^64).
        use: what the key is used for, of `use_of`.
        check_bits: bits of the check value, 32 or 64.
    """

    key: Key
    nonce: int
    use: bytes
    check_bits: int = 32

    def __post_init__(self) -> None:
        check_nonce(self.nonce)

    def derive(self, label: str, about: bytes = b"") -> bytes:
        """32 bytes for one purpose; `about` is what else they depend on."""
        parts = (VERSION, self.use, self.nonce.to_bytes(8, "big"), label.encode(), about)
        info = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(self.key.secret)

    def stream(self, label: str, about: bytes = b"") -> "KeyStream":
        """A fresh stream of pseudo-random bits for one purpose, from its beginning."""
        return KeyStream(self.derive(label, about))

    def check(self, data: bytes) -> int:
        """The check value of a frame, in [0, 2^check_bits): the leading bits of HMAC-SHA256."""
        mac = HMAC(self.derive("check"), SHA256())
        mac.update(data)
        return int.from_bytes(mac.finalize(), "big") >> (256 - self.check_bits)


def message_keys(key: Key, nonce: int, settings: Settings, prompt: str) -> MessageKeys:
    """What `key` gives to the message of this number; `prompt` as in `use_of`."""
    return MessageKeys(key, nonce, use_of(settings, prompt), settings.check_bits)


class KeyStream:
    """ChaCha20's key stream as bits: in order by `below`, or from the beginning by `leading`. Use a stream for one."""

    _CHUNK = 256

    def __init__(self, key: bytes) -> None:
        # Every key is used for one stream, so a constant nonce repeats nothing.
        self._cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
        self._value = 0
        self._length = 0

    def leading(self, length: int) -> int:
        """The first `length` bits, most significant first."""
        while self._length < length:
            chunk = self._cipher.update(bytes(self._CHUNK))
            self._value = self._value << 8 * self._CHUNK | int.from_bytes(chunk, "big")
            self._length += 8 * self._CHUNK
        return self._value >> (self._length - length)

    def below(self, bound: int) -> int:
        """The next draw from 0..bound-1, uniform to within 2^-128."""
        size = (bound.bit_length() + 128 + 7) // 8
        return int.from_bytes(self._cipher.update(bytes(size)), "big") * bound >> 8 * size
