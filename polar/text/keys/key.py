"""Keys, and the files that hold them."""

import hashlib
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from wm_env.common.files import check_writable, naming, sync_folder
from wm_env.common.foreign.encodings import text_of

KEY_BYTES = 32
NONCE_LIMIT = 1 << 64

_KEY_KIND = "covert-watermark key 3"
_ANY_KIND = re.compile(r"covert-watermark key \d{1,9}")
_EARLIER = {"covert-watermark key 1": "a version before 0.1", "covert-watermark key 2": "version 0.1"}


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
    check_writable(path.parent, "name another file", path.name)
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

    What an editor adds does not count: a byte-order mark, the encoding that it says, and white space around lines.

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
    try:
        lines = [line.strip() for line in text_of(content).splitlines()]
    except ValueError as error:
        raise ValueError(f"{path} is not a key file: {error}, or copy the key file again") from None
    kind, *rest = list(filter(None, lines)) or [""]
    if kind in _EARLIER:
        raise ValueError(
            f"{path} was written by {_EARLIER[kind]}, whose texts this version does not read: read them with that "
            "version, and make a new key with `python -m polar keygen FILE`"
        )
    if kind != _KEY_KIND:
        what = f" of this version ({kind!r})" if _ANY_KIND.fullmatch(kind) else ""
        raise ValueError(f"{path} is not a key file{what}: make a new key with `python -m polar keygen FILE`")
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
