"""Files that are written whole or not at all, and fingerprints that name their content."""

import errno
import fcntl
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from wm_env.common.foreign.encodings import text_of
from wm_env.common.json_values import parse_json, read_as

_MOUNTS = Path("/proc/self/mountinfo")

_SHARED = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "fuse.sshfs", "fuse.glusterfs", "lustre", "gpfs")
"""How file systems are called whose locks may not hold between machines."""

_MARKED = 1 << 16

MOST_BYTES = 1 << 26
"""Most that is read at once, 64 MiB: a device or a pipe may have no end."""


def write_atomically(path: Path, write: Callable[[Path], object], mode: int = 0o666) -> None:
    """Call `write` on a temporary neighbour of `path`, then rename it onto `path`.

    A reader sees the old file or the new one, never a part, also after a loss of power; once this returns, the new one
    is on the disk. Missing parent folders are made. Where `path` is a link, the file that it names is written, and the
    link stays one. `mode` is that of the file, less the umask, as for `os.open`.

    Raises:
        OSError: the folder cannot be written, or a folder or device has this name; nothing is left behind, no new
            folder either.
    """
    target = _output_target(path, "give another name")
    made = make_folder(target.parent)
    try:
        _replace(target, write, mode)
    except BaseException:
        # The new folders go, from the innermost out, up to the first into which another process has put a file.
        with suppress(OSError):
            for folder in made:
                folder.rmdir()
        raise


def _replace(target: Path, write: Callable[[Path], object], mode: int) -> None:
    with _blaming(target):
        temporary = _temporary(target.parent, target.name)
        try:
            with naming(target):
                write(temporary)
                _sync(temporary)
            # mkstemp makes private files; give this one the mode that open() would have.
            mask = os.umask(0)
            os.umask(mask)
            temporary.chmod(mode & ~mask)
            temporary.replace(target)
            sync_folder(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


def _temporary(folder: Path, name: str) -> Path:
    """A new file in `folder` that nobody else has, to be renamed to `name`."""
    handle, path = tempfile.mkstemp(dir=folder, prefix=f".{name}.", suffix=".tmp")
    os.close(handle)
    return Path(path)


@contextmanager
def _blaming(target: Path) -> Iterator[None]:
    """Errors in the context name `target` where they would name its temporary file, or no file."""
    try:
        with naming(target):
            yield
    except OSError as error:
        name = "" if error.filename is None else Path(os.fsdecode(error.filename)).name
        if name.startswith(f".{target.name}.") and name.endswith(".tmp"):
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise


_LOST = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
"""Error numbers (errno) of data that did not reach the disk."""


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and the parents that it lacks, on the disk before it returns what it made, the innermost first.

    Raises:
        OSError: it cannot be made, as in the place of a link to nothing.
    """
    _check_links(folder, "name another folder")
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync_folder(place.parent)
    return missing


def _check_links(folder: Path, advice: str) -> None:
    """Refuse a folder that is a link to nothing, or is to be made below one: mkdir calls it a file that exists.

    `advice` says what to do instead of removing the link.

    Raises:
        FileExistsError: there is such a link.
    """
    for place in (folder, *folder.parents):
        if place.is_symlink() and not place.exists():
            raise FileExistsError(f"{place} is a link to nothing: {advice}, or remove the link")


def sync_folder(folder: Path) -> None:
    """Wait until the names of the files in `folder` are on the disk, where its file system can wait for that.

    Raises:
        OSError: they cannot be written.
    """
    try:
        with naming(folder):
            _sync(folder)
    except OSError as error:
        if error.errno in _LOST:
            raise
        # Files can be made in a folder that cannot be opened, one without read permission, and some file systems do
        # not take fsync of folders: EINVAL, ENOTSUP, EBADF and others say so. Then wait for all disks.
        os.sync()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Within the context errors of the operating system that name no file, as on a full disk, name `path`."""
    try:
        yield
    except OSError as error:
        if error.strerror is not None and error.filename is None:
            error.filename = str(path)
        raise


def is_open_as(handle: int, path: Path) -> bool:
    """Whether `path` names the file or folder that `handle` has open: it may have been removed, or replaced, since."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def link_target(path: Path) -> Path:
    """The absolute path of the file that `path` names once all links are followed, whether there is one or not."""
    return Path(os.path.realpath(path))


def check_output(path: Path, advice: str, mark: str | None = None) -> None:
    """Check that `write_atomically` can write `path`, before the work that its content takes.

    All steps of writing are taken with files of no content; a file that `path` names already stays as it is.

    Args:
        path: what is to be written later.
        advice: what to do instead, the end of the error.
        mark: as in `check_replaceable`; None if the caller knows what is there.

    Raises:
        OSError: it cannot, or another file would be replaced.
    """
    target = _output_target(path, advice)
    check_writable(target.parent, advice, target.name)
    if target.exists() and (reason := _why_it_stays(target)) is not None:
        raise PermissionError(f"{path} cannot be replaced ({reason}): {advice}")
    if mark is not None:
        check_replaceable(path, mark, advice)


def _why_it_stays(target: Path) -> str | None:
    """Why an existing file cannot be replaced although files can be made in its folder; None if it can be."""
    try:
        # To remove a folder and to replace a file take the same permissions, and Linux looks at these first: the file
        # of another user in a sticky folder, an immutable file, a folder that files are only added to. A file that may
        # be replaced is then refused for being no folder.
        target.rmdir()
    except NotADirectoryError:
        return "a file is mounted there" if str(target) in _mount_points() else None
    except OSError as error:
        return error.strerror
    return None


def _mount_points() -> dict[str, str]:
    """Mount points of this machine with the kinds of their file systems; empty on other systems than Linux."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return {}
    fields = [line.split(" ") for line in lines]
    # Blanks, tabs, line ends and backslashes are octal numbers there.
    places = [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field[4]) for field in fields]
    kinds = [field[field.index("-") + 1] if "-" in field else "" for field in fields]
    return dict(zip(places, kinds, strict=True))


def network_file_system(path: Path) -> str | None:
    """The kind of network file system that holds `path`, such as "nfs4"; None if it is local or cannot be told."""
    places = _mount_points()
    for place in (link_target(path), *link_target(path).parents):
        if kind := places.get(str(place)):
            return kind if kind.startswith(_SHARED) else None
    return None


def check_replaceable(path: Path, mark: str, advice: str) -> None:
    """Check that a command would replace nothing but a file that it made itself, or an empty one.

    Args:
        path, advice: as in `check_output`.
        mark: a string that every file of this command has in its first or last 64 KiB.

    Raises:
        FileExistsError: another file is there.
    """
    target = link_target(path)
    if not target.is_file() or not (size := target.stat().st_size):
        return
    with target.open("rb") as file:
        start = file.read(_MARKED)
        file.seek(max(0, size - _MARKED))
        end = file.read(_MARKED)
    if mark.encode() not in start and mark.encode() not in end:
        raise FileExistsError(f"{path} exists, and this command did not make it: {advice}")


def _output_target(path: Path, advice: str) -> Path:
    """`link_target(path)`; FileExistsError if a folder or a device is there."""
    target = link_target(path)
    if target.exists() and not target.is_file():
        raise FileExistsError(f"{path} is no file that can be written: {advice}")
    return target


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write `text` as UTF-8, whole or not at all; `mode` as in `write_atomically`."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), mode)


def write_json(path: Path, value: Any, mode: int = 0o666) -> None:
    """Write `value` as indented JSON with a final newline, whole or not at all; `mode` as in `write_atomically`.

    Raises:
        ValueError: `value` holds a NaN or an infinity, which JSON cannot say.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", mode)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Within the context errors of opening or reading `path` become one line that says what is wrong with it.

    Raises:
        OSError: there is no such file, it is a folder, or it cannot be read.
    """
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder: name a file") from None
    except OSError as error:
        if error.errno is None:
            raise
        raise type(error)(f"{path} cannot be read: {error.strerror}") from None


def read_file(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a file.

    Raises:
        OSError: there is none, it is a folder, or it cannot be read; one line that says which.
        ValueError: it has more than `most` bytes.
    """
    with reading(path), path.open("rb") as file:
        return read_all(file, str(path), most)


def read_all(file: BinaryIO, name: str, most: int = MOST_BYTES) -> bytes:
    """The bytes from here to the end of `file`.

    Raises:
        OSError: they cannot be read.
        ValueError: they are more than `most`; `name` says what is read.
    """
    content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{name} has more than {most:,} bytes, or no end: give less")
    return content


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """The text of a file in UTF-8, or in what its byte-order mark says, which is left out.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such text, or has more than `most` bytes.
    """
    content = read_file(path, most)
    try:
        return text_of(content)
    except ValueError as error:
        raise ValueError(f"{path} is {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, encoded as `read_text` reads it.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON, or no object, or has more than `MOST_BYTES`.
    """
    return read_as(dict[str, Any], parse_json(read_text(path), path), path)


def encoded(text: str, name: str) -> bytes:
    """`text` as UTF-8 bytes.

    Python represents bytes of a command line that are not UTF-8 by lone surrogates, which have no encoding.

    Raises:
        ValueError: `text` holds a lone surrogate; the error calls the text `name`.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not UTF-8 text (character {error.start + 1}): give it in a UTF-8 file") from None


def first_line(error: Exception) -> str:
    """What an error says, for a message of one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def check_writable(folder: Path, advice: str, name: str = "file") -> None:
    """Check that files can be made and replaced in `folder`, or in the nearest of its parents that exists.

    Permissions do not tell all: file systems may be read-only, or not for files. So two files are made, and one takes
    the place of the other.

    Args:
        folder: where something is to be written later.
        advice: what to do instead, the end of the error.
        name: of the file that is to be written.

    Raises:
        PermissionError: they cannot, or a file is in the way.
        FileExistsError: a link to nothing is in the way.
        OSError: the disk is full, or the name is too long.
    """
    _check_links(folder, advice)
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    made: list[Path] = []
    try:
        with naming(existing / name), ExitStack() as stack:
            for _ in range(2):
                made.append(_temporary(existing, name))
                stack.callback(made[-1].unlink, missing_ok=True)
            made[0].write_bytes(b"\0")
            _sync(made[0])
            made[0].replace(made[1])
            sync_folder(existing)
    except OSError as error:
        if error.errno in _LOST or error.errno == errno.ENAMETOOLONG:
            raise OSError(error.errno, error.strerror, str(existing / name)) from None
        raise PermissionError(f"{existing} cannot be written: {advice}") from None


@contextmanager
def locked_folder(folder: Path, advice: str) -> Iterator[None]:
    """Within the context an existing folder is this process's alone. It may be removed within the context.

    `advice` says what to do if it is in use, the end of the error.

    Raises:
        BlockingIOError: it is another process's.
        OSError: it cannot be opened.
    """
    in_use = BlockingIOError(f"{folder} is in use by another process: {advice}")
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            with naming(folder):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise in_use from None
        if not is_open_as(handle, folder):
            # Its owner removed it between the two calls.
            raise in_use
        yield
    finally:
        os.close(handle)


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
