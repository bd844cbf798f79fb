"""Named arrays with JSON metadata in one safetensors file, with a kind and a version that are checked on reading."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class FileFormat:
    """What a file says it is: a kind in words and a version that rises with every incompatible change."""

    kind: str
    version: int


def write_tensors(path: Path, file_format: FileFormat, arrays: Mapping[str, NDArray[Any]], meta: Any) -> None:
    """Write `arrays` and `meta` (JSON types, no NaN) to `path`."""
    header = {
        "kind": file_format.kind,
        "version": str(file_format.version),
        "meta": json.dumps(meta, allow_nan=False),
    }
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path, metadata=header)


def read_tensors(path: Path, file_format: FileFormat) -> tuple[Arrays, Any]:
    """Read what `write_tensors` wrote.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged or cut short, is of another kind or of another version.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such {file_format.kind} file")
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("kind") != file_format.kind:
                raise ValueError(
                    f"{path} is not a {file_format.kind} file but {header.get('kind', 'something else')!r}"
                )
            if header.get("version") != str(file_format.version):
                raise ValueError(
                    f"{path} has format version {header.get('version')}, this program reads {file_format.version}: "
                    "make it again"
                )
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
            return arrays, json.loads(header["meta"])
    except (SafetensorError, KeyError, json.JSONDecodeError, OSError) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}): make it again or copy it again") from None
