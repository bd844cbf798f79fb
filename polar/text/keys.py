"""Keys: the key file, and what is derived from it for one message.

From the 32-byte key, the nonce and a label, HKDF-SHA256 derives a key of its own for every purpose; ChaCha20 under
that key is the stream of pad bits or of shared random draws. `docs/keys.md` says what this protects.
"""

import hashlib
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from polar.text.framing import CHECK_BITS
from wm_env.common.files import (
    check_writable,
    naming,
    sync_folder,
)

KEY_BYTES = 32
NONCE_LIMIT = 1 << 64

_KEY_KIND = "covert-watermark key 2"


@dataclass(frozen=True)
class Key:
    """A shared secret of 32 bytes; `repr` does not show it."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(self.secret)}")


def new_key() -> Key:
    """A key from the operating system's random source."""
    return Key(secrets.token_bytes(KEY_BYTES))


def save_key(key: Key, path: Path) -> None:
    """Write a key file that only its owner can read (mode 600); a file that exists is never overwritten.

    Raises:
        FileExistsError: there is such a file.
        OSError: it cannot be written; no part of it is left.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is no folder: make it first, or name another file")
    check_writable(path.parent, "name another file")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with naming(path), os.fdopen(handle, "w", encoding="ascii") as file:
            os.fchmod(handle, 0o600)
            file.write(f"{_KEY_KIND}\n{key.secret.hex()}\n{_check_value(key)}\n")
            file.flush()
            os.fsync(handle)
        sync_folder(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def load_key(path: Path) -> Key:
    """Read a key file: its kind, the secret in hexadecimal digits, and a check value of the secret, a line each.

    Raises:
        OSError: no such file, it is none, or others than the owner can read it.
        ValueError: it is not a key file, one of another version, or damaged.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a key file")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such key file; make one with `python -m polar keygen FILE`")
    if not path.is_file():
        raise OSError(f"{path} is a device or a pipe: name a key file")
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        content = file.read(4096)
    if mode & 0o077:
        raise PermissionError(f"{path} can be read by others (mode {mode:o}): chmod 600 {path}")
    kind, *rest = content.decode("ascii", "replace").splitlines() or [""]
    if kind != _KEY_KIND:
        raise ValueError(f"{path} is not a key file of this version: make a new key with `python -m polar keygen FILE`")
    try:
        key = Key(bytes.fromhex(rest[0]))
        if rest[1:] != [_check_value(key)]:
            raise ValueError
    except (ValueError, IndexError):
        raise ValueError(f"{path} is damaged: copy the key file again") from None
    return key


def _check_value(key: Key) -> str:
    """16 digits that tell a whole secret from a damaged one. They stand beside it, so they need not hide it."""
    return hashlib.sha256(_KEY_KIND.encode() + key.secret).hexdigest()[:16]


def check_nonce(nonce: int) -> None:
    """Raise ValueError for what is no nonce."""
    if not 0 <= nonce < NONCE_LIMIT:
        raise ValueError(f"nonce={nonce}: a number from 0 to 2^64 - 1 is needed")


@dataclass(frozen=True)
class MessageKeys:
    """What a key gives to one message; different nonces or schemes share nothing.

    Attributes:
        key: the shared secret.
        nonce: number of the message under this key, in [0, 2^64).
        scheme: the coder's name.
    """

    key: Key
    nonce: int
    scheme: str

    def __post_init__(self) -> None:
        check_nonce(self.nonce)

    def derive(self, label: str) -> bytes:
        """32 bytes for one purpose."""
        info = b"\0".join((b"covert-watermark 1", self.scheme.encode(), label.encode(), self.nonce.to_bytes(8, "big")))
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(self.key.secret)

    def stream(self, label: str) -> "KeyStream":
        """A fresh stream of pseudo-random bits for one purpose, from its beginning."""
        return KeyStream(self.derive(label))

    def check(self, data: bytes) -> int:
        """The frame's check value: the leading bits of HMAC-SHA256."""
        mac = HMAC(self.derive("check"), SHA256())
        mac.update(data)
        return int.from_bytes(mac.finalize(), "big") >> (256 - CHECK_BITS)


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
