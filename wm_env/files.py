"""Files that are written whole or not at all, and fingerprints that name their content."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary neighbour of `path`, then rename it onto `path`.

    A reader sees the old file or the new one, never a part. Missing parent folders are made. Where `path` is a link,
    the file that it names is written, and the link stays one.

    Raises:
        OSError: the folder cannot be written, or a folder or device has this name; nothing is left behind.
    """
    target = link_target(path)
    if target.exists() and not target.is_file():
        raise FileExistsError(f"{path} is no file that can be written: give another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        # mkstemp makes private files; give this one the mode an ordinary open() would have.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def link_target(path: Path) -> Path:
    """The absolute path of the file that `path` names once all links are followed, whether there is one or not."""
    return Path(os.path.realpath(path))


def check_output(path: Path, advice: str) -> None:
    """Check that `write_atomically` can write `path`, before the work that its content takes.

    Args:
        path: what is to be written later.
        advice: what to do instead, the end of the error.

    Raises:
        OSError: it cannot.
    """
    target = link_target(path)
    if target.exists() and not target.is_file():
        raise FileExistsError(f"{path} is no file that can be written: {advice}")
    check_writable(target.parent, advice)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON with a final newline, whole or not at all.

    Raises:
        ValueError: `value` holds a NaN or an infinity, which JSON cannot say.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        OSError: there is no such file.
        ValueError: it is not JSON, or no object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {first_line(error)}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}, not an object")
    return value


def first_line(error: Exception) -> str:
    """What an error says, for a message of one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def check_writable(folder: Path, advice: str) -> None:
    """Check that files can be made in `folder`, or in the nearest of its parents that exists.

    Args:
        folder: where something is to be written later.
        advice: what to do instead, the end of the error.

    Raises:
        PermissionError: they cannot, or a file is in the way.
    """
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        # Permissions do not tell all: file systems may be read-only, or not for files.
        tempfile.TemporaryFile(dir=existing).close()
    except OSError:
        raise PermissionError(f"{existing} cannot be written: {advice}") from None


def check_seed(seed: int) -> None:
    """Check that 0 <= seed < 2^32, what every generator takes.

    Raises:
        ValueError: it is not.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed}: an integer from 0 to 2^32 - 1 is needed")


def fingerprint(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> str:
    """SHA-256 (64 hex digits) of named arrays and JSON metadata, independent of their order and of the file format."""
    digest = hashlib.sha256()
    digest.update(json.dumps(dict(meta), sort_keys=True, ensure_ascii=False).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
