"""The ledger: the nonces that were used with a key, so that none is used twice."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from polar.text.keys.key import NONCE_LIMIT
from polar.text.keys.lock import lock_of, locked_ledger, open_lock
from wm_env.common.command import WorkFailedError
from wm_env.common.files import (
    check_output,
    fingerprint,
    is_open_as,
    link_target,
    read_json,
    write_json,
)
from wm_env.common.json_values import read_as

_LEDGER_KIND = "covert-watermark nonces 3"
_EARLIER = {"covert-watermark nonces 2": "version 0.1"}
_OTHER = "name another --ledger, and keep to it"


@dataclass(frozen=True)
class _LedgerFile:
    """What the file of a ledger holds; the check value is the fingerprint of all else."""

    kind: Literal["covert-watermark nonces 3"]
    used: tuple[int, ...]
    check: str


class NonceLedger:
    """The nonces that were used with a key, in a small JSON file; open it with `open_ledger`."""

    def __init__(self, path: Path, used: set[int], lock: TextIO) -> None:
        self._path = path
        self._used = used
        self._lock = lock

    def first_free(self, start: int = 0) -> int:
        """The smallest nonce from `start` on that was not used."""
        return _first_free(self._used, start)

    def check_unused(self, nonce: int) -> None:
        """Raise ValueError if a text was made with this nonce."""
        _check_unused(self._used, nonce)

    def record(self, *nonces: int) -> None:
        """Note nonces as used, on the disk before this returns.

        The lock only keeps others away while its file stays where it is, so it is looked for before and after: who
        opens the ledger once it has been removed finds this nonce, or this call fails.

        Raises:
            WorkFailedError: the lock was removed, or another noted the nonce since the ledger was opened, so that it
                may be another text's.
            OSError: the file cannot be read or written.
            ValueError: it is not a ledger any more.
        """
        self._check_locked(nonces)
        noted = _read_ledger(self._path)
        if taken := (noted - self._used).intersection(nonces):
            raise WorkFailedError(
                f"another embed has used nonce {min(taken)} while this one ran: its text is not printed; start it again"
            )
        self._used |= noted.union(nonces)
        content = {"kind": _LEDGER_KIND, "used": sorted(self._used)}
        write_json(self._path, content | {"check": fingerprint({}, content)}, mode=0o600)
        self._check_locked(nonces)

    def _check_locked(self, nonces: tuple[int, ...]) -> None:
        if not is_open_as(self._lock.fileno(), lock_of(self._path)):
            raise WorkFailedError(
                f"{lock_of(self._path)} was removed while it was locked, and nonce {nonces[0]} may be another text's: "
                "the text is not printed; start it again, and leave that file where it is"
            )


@contextmanager
def open_ledger(path: Path, say: Callable[[str], object] = lambda line: None) -> Iterator[NonceLedger]:
    """The ledger at `path`, for this process alone: others with the same ledger wait, and `say` so.

    A nonce counts as used once it is recorded, so an embedding that fails or is interrupted uses up none. Links are
    followed first: one file has one lock and one content, whatever it is called.

    Raises:
        OSError: the file or its lock cannot be read or written.
        ValueError: the file is not a ledger.
    """
    target = link_target(path)
    on_network = "use this key on one machine at a time, or give each a --sender of its own"
    with locked_ledger(target, "embed", say, on_network, _OTHER) as lock:
        yield NonceLedger(target, _read_ledger(target), lock)


def check_ledger(path: Path, nonce: int | None) -> None:
    """Refuse, without waiting for others, what `open_ledger` would; nothing is written.

    Args:
        path: the ledger.
        nonce: one that must not be in it, if not None.

    Raises:
        OSError: the file or its lock cannot be read or written.
        ValueError: the file is not a ledger, or the nonce is in it.
    """
    target = link_target(path)
    check_output(target, _OTHER)
    if os.path.lexists(lock_of(target)):
        open_lock(target).close()
    used = _read_ledger(target)
    if nonce is not None:
        _check_unused(used, nonce)


def ledger_beside(key_file: Path) -> Path:
    """The ledger of the key in `key_file`, next to the file itself and not to a link to it.

    Raises:
        ValueError: the file has several names (hard links), so that there would be a ledger beside each.
    """
    target = link_target(key_file)
    if _has_several_names(target):
        raise ValueError(
            f"{key_file} has several names (hard links), and nonces would be noted beside one: remove the others, or "
            "name one --ledger for all"
        )
    return target.with_name(target.name + ".nonces")


def _has_several_names(path: Path) -> bool:
    # A folder counts its subfolders as names of its own.
    return path.is_file() and path.stat().st_nlink > 1


def _first_free(used: set[int], start: int = 0) -> int:
    nonce = start
    while nonce in used:
        nonce += 1
    return nonce


def _check_unused(used: set[int], nonce: int) -> None:
    if nonce in used:
        raise ValueError(
            f"nonce {nonce} was used with this key: the next free one is {_first_free(used)} "
            "(or --allow-nonce-reuse, if you know what it gives away)"
        )


def _read_ledger(path: Path) -> set[int]:
    if not path.exists():
        return set()
    if _has_several_names(path):
        # Writing makes a new file under one name, and the others would keep the old one.
        raise ValueError(f"{path} has several names (hard links), and nonces would be noted in one: remove the others")
    try:
        values = read_json(path)
        earlier = _EARLIER.get(str(values.get("kind")))
        if earlier is None:
            return _used_nonces(values, path)
    except ValueError as error:
        raise ValueError(f"{error}; this is not a ledger of nonces, or damaged: restore it, or use a new key") from None
    raise ValueError(f"{path} was written by {earlier}, as its key was: make a new key")


def _used_nonces(values: dict[str, Any], path: Path) -> set[int]:
    stored = read_as(_LedgerFile, values, path)
    if wrong := [nonce for nonce in stored.used if not 0 <= nonce < NONCE_LIMIT]:
        raise ValueError(f"{path}: nonce {wrong[0]} is none")
    if stored.check != fingerprint({}, {"kind": stored.kind, "used": stored.used}):
        raise ValueError(f"{path}: the nonces do not fit their check value")
    return set(stored.used)
