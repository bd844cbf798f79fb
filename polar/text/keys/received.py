"""The receiver's ledger: which messages were read with a key, so that a replay shows and a search knows where to go."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polar.text.keys.key import NONCE_LIMIT
from polar.text.keys.lock import locked_ledger
from wm_env.common.files import link_target, read_json, write_json
from wm_env.common.json_values import read_as

_KIND = "covert-watermark messages read 2"
_EARLIER = {"covert-watermark messages read 1": "version 0.3"}

MOST_SEEN = 100_000
"""Entries that are kept, the latest."""


@dataclass(frozen=True)
class Seen:
    """A message that was read.

    Attributes:
        sender: as in `Settings`.
        nonce: of the message.
        use: what the key was used for, in hex.
        text: SHA-256 of the text in the form that was read, in hex.
        message: what names the message to the owner of the key, and tells nothing to others, in hex.
    """

    sender: str
    nonce: int
    use: str
    text: str
    message: str


def seen_beside(key_file: Path) -> Path:
    """The receiver's ledger of the key in `key_file`."""
    target = link_target(key_file)
    return target.with_name(target.name + ".seen")


def read_seen(path: Path) -> tuple[Seen, ...]:
    """What a ledger holds; nothing if there is none.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such ledger, or damaged.
    """
    if not path.exists():
        return ()
    if not path.is_file():
        raise FileExistsError(f"{path} is a folder, a device or a pipe: name another --ledger")
    try:
        values = read_json(path)
        if (kind := str(values.get("kind"))) in _EARLIER:
            raise ValueError(f"{path} was written by {_EARLIER[kind]}")
        if kind != _KIND:
            raise ValueError(f"{path} is no list of messages that were read")
        seen = read_as(tuple[Seen, ...], values.get("seen"), path, "seen")
        if wrong := [entry.nonce for entry in seen if not 0 <= entry.nonce < NONCE_LIMIT]:
            raise ValueError(f"{path}: nonce {wrong[0]} is none")
        return seen
    except ValueError as error:
        raise ValueError(f"{error}: name another --ledger, or remove it") from None


def note_seen(path: Path, new: Seen, say: Callable[[str], object] = lambda line: None) -> tuple[Seen, ...]:
    """Add a message, whole or not at all, in a file that only its owner can read; returns what it held before.

    What others noted since the ledger was read is kept: it is read again while its lock is held. Who has to wait for
    the lock says so.

    Raises:
        OSError: it or its lock cannot be written.
        ValueError: it is no such ledger any more.
    """
    target = link_target(path)
    with locked_ledger(target, "decode", say, "read with this ledger on one machine at a time"):
        seen = read_seen(target)
        entries: list[dict[str, Any]] = [vars(entry) for entry in dict.fromkeys([*seen, new])]
        write_json(target, {"kind": _KIND, "seen": entries[-MOST_SEEN:]}, mode=0o600)
    return seen


def what_was_seen(seen: Sequence[Seen], new: Seen) -> str | None:
    """One line if a message of this nonce was read before, None if not."""
    earlier = [entry for entry in seen if (entry.use, entry.nonce) == (new.use, new.nonce)]
    if not earlier:
        return None
    if any(entry.message == new.message for entry in earlier):
        return f"nonce {new.nonce} was read before, with the same message: in this text or in a copy of it"
    return f"nonce {new.nonce} was read before, with another message: the sender used the nonce twice"


def nonces_to_try(
    seen: Sequence[Seen], sender: str, count: int, texts: Collection[str] = (), limit: int = NONCE_LIMIT
) -> list[int]:
    """`count` nonces that the next message of a sender may have: those above what was seen first, then those below.

    A quarter of them is below: fewer where there are no more, and more near `limit`, which is that of the scheme. If
    one of `texts`, SHA-256 in hex of the forms of a text, was read before, its nonces come first: a replay is found at
    once. They are the same nonces in another order.
    """
    own = [entry for entry in seen if entry.sender == sender and entry.nonce < limit]
    following = max((entry.nonce for entry in own), default=-1) + 1
    above = min(max(-(-3 * count // 4), count - following), limit - following)
    window = [*range(following, following + above), *range(following - 1, following - 1 - (count - above), -1)]
    replayed = {entry.nonce for entry in own if entry.text in texts}
    return sorted(replayed.intersection(window), reverse=True) + [nonce for nonce in window if nonce not in replayed]
