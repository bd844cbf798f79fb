"""Named arrays with JSON metadata in one safetensors file, with a kind and a version that are checked on reading."""

import errno
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from wm_env.common.files import fingerprint, first_line
from wm_env.common.json_values import entry, parse_json

Arrays = dict[str, NDArray[Any]]

_HEADER = "covert-watermark"

_TYPES = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")
"""Types of safetensors that NumPy has; others, such as BF16, only PyTorch reads."""


@dataclass(frozen=True)
class FileFormat:
    """What a file says it is: a kind in words and a version that rises with every incompatible change.

    `earlier`: for every earlier version of the format, the version of the program that wrote it.
    """

    kind: str
    version: int
    earlier: Mapping[int, str] = field(default_factory=dict)


def write_tensors(path: Path, file_format: FileFormat, arrays: Mapping[str, NDArray[Any]], meta: Any) -> None:
    """Write `arrays` and `meta` (JSON types, no NaN) to `path`; equal content gives equal bytes.

    Raises:
        OSError: it cannot be written, such as on a full disk.
    """
    content = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    stored = json.loads(json.dumps(meta, allow_nan=False))
    header = {
        "kind": file_format.kind,
        "version": file_format.version,
        "fingerprint": fingerprint(content, {"meta": stored}),
        "meta": stored,
    }
    # One entry, because safetensors does not keep the order of several.
    with disk_errors(path):
        save_file(content, path, metadata={_HEADER: json.dumps(header, sort_keys=True)})


@contextmanager
def disk_errors(path: Path, raised: type[Exception] = SafetensorError) -> Iterator[None]:
    """Within the context what a library written in Rust cannot write to `path` is an OSError, as from Python's own.

    `raised` is what the library raises instead; by default what safetensors does.
    """
    try:
        yield
    except raised as error:
        failure = OSError(f"{path.parent} cannot be written ({first_line(error)}): make room, or name another folder")
        failure.errno = errno.EIO  # a failure of the system, not a wrong path
        raise failure from None


def read_tensors(path: Path, file_format: FileFormat) -> tuple[Arrays, Any]:
    """Read what `write_tensors` wrote.

    Raises:
        FileNotFoundError, FileExistsError, IsADirectoryError: no such file.
        ValueError: the file is damaged, cut short or changed, is of another kind or of another version.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a file of kind {file_format.kind}")
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is a device or a pipe: name a {file_format.kind} file")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such {file_format.kind} file")
    try:
        with safe_open(path, framework="numpy") as file:
            try:
                header = parse_json((file.metadata() or {}).get(_HEADER, "{}"), "its header")
            except ValueError as error:
                raise unreadable(path, file_format.kind, error) from None
            kind = header.get("kind") if isinstance(header, dict) else None
            if kind != file_format.kind:
                raise ValueError(f"{path} is no {file_format.kind} file{f' but one of {kind!r}' if kind else ''}")
            version = entry(header, "version", int, path)
            if version != file_format.version:
                writer = file_format.earlier.get(version)
                raise ValueError(
                    f"{path} has format version {version}{f' of {writer}' if writer else ''}, this program "
                    f"reads {file_format.version}: make it again"
                )
            names = list(file.keys())
            for name in names:
                if (declared := file.get_slice(name).get_dtype()) not in _TYPES:
                    raise ValueError(f"{path}: tensor {name} is of type {declared}, which no {file_format.kind} has")
            arrays = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, KeyError, OSError) as error:
        raise unreadable(path, file_format.kind, error) from None
    try:
        is_unchanged = fingerprint(arrays, {"meta": header.get("meta")}) == header.get("fingerprint")
    except ValueError as error:  # halves of characters, or numbers without end
        raise unreadable(path, file_format.kind, error) from None
    if not is_unchanged:
        raise ValueError(
            f"{path} was changed after it was written (fingerprint differs): make it again or copy it again"
        )
    return arrays, header.get("meta")


def unreadable(path: Path, kind: str, error: Exception) -> ValueError:
    """What to raise for a file of `kind` that safetensors refused with `error`: it is something else, or damaged.

    A safetensors file begins with the length of its JSON header in eight bytes; then comes the brace of the header.
    """
    with path.open("rb") as file:
        start = file.read(9)
    if len(start) == 9 and not start.endswith(b"{"):
        return ValueError(f"{path} is no {kind} file")
    return ValueError(f"{path} is damaged or cut short ({first_line(error)}): make it again or copy it again")
