"""Finished batches of states, kept beside the output until the tree is whole, so that a killed build can go on."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from wm_env.common.files import write_atomically
from wm_env.common.tensors import Arrays, FileFormat, read_tensors, write_tensors
from wm_env.lm.pools.candidates import Pool
from wm_env.lm.text import spell

PART_FORMAT = FileFormat(kind="covert-watermark pools", version=1)

_OF_CANDIDATES = ("tokens", "log2_prob", "cover")
"""Arrays with an entry for every candidate of all pools."""
_OF_POOLS = ("exact", "merged", "dropped")
"""Arrays with an entry for every pool."""
_NAMES = {"contexts", "sizes", *_OF_CANDIDATES, *_OF_POOLS}
"""The arrays of a part; a file without them is damaged."""

Context = tuple[int, ...]


def parts_folder(output: Path) -> Path:
    """Where the finished batches of the build of `output` are."""
    return output.with_name(output.name + ".parts")


def clean_parts(folder: Path, law: Mapping[str, Any]) -> None:
    """Delete the parts in `folder` that are damaged or made with another number of rows; make the folder.

    `law` (JSON types) is everything that the pools depend on.

    Raises:
        ValueError: parts of another build are there, whose work would be lost.
        OSError: the folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored = list(_laws(folder))
    for theirs in [theirs for _, theirs in stored if theirs is not None]:
        for name, value in law.items():
            if name != "rows" and theirs.get(name) != value:
                raise ValueError(
                    f"{folder} holds finished states of another build, with {name} {theirs.get(name)!r}, not "
                    f"{value!r}: give its options to go on with it, choose another --out, or remove that folder"
                )
    for path, found in stored:
        if found != law:
            path.unlink()


def read_parts(folder: Path, law: Mapping[str, Any], vocabulary: Mapping[int, bytes]) -> dict[Context, Pool]:
    """The pools of all parts of `law` in `folder`, by context."""
    pools: dict[Context, Pool] = {}
    for path in sorted(folder.glob("*.safetensors")):
        arrays, stored = read_tensors(path, PART_FORMAT)
        if stored == law and arrays.keys() == _NAMES:
            pools.update(_unpack(arrays, vocabulary))
    return pools


def recorded_rows(folder: Path, law: Mapping[str, Any]) -> int | None:
    """The number of rows with which an interrupted build in `folder` began; this build must go on with the same.

    None if there is no such batch, or if the law does not depend on the number of rows.

    Args:
        folder: the finished batches.
        law: what this build's laws depend on; a batch counts if it differs in "rows" at most.
    """
    if "rows" not in law:
        return None
    for _, stored in _laws(folder):
        if stored is not None and {**stored, "rows": law["rows"]} == law:
            return int(stored["rows"])
    return None


def _laws(folder: Path) -> Iterator[tuple[Path, Mapping[str, Any] | None]]:
    """Every part with its law, None if it is damaged."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            arrays, law = read_tensors(path, PART_FORMAT)
        except ValueError:
            arrays, law = {}, None
        yield path, law if isinstance(law, dict) and arrays.keys() == _NAMES else None


def save_part(folder: Path, law: Mapping[str, Any], contexts: Sequence[Context], pools: Sequence[Pool]) -> None:
    """Add the pools of contexts of equal length to `folder`; the file is there whole or not at all."""
    arrays = _pack(contexts, pools)
    name = sha256(arrays["contexts"].tobytes()).hexdigest()[:32]
    write_atomically(
        folder / f"{name}.safetensors",
        lambda temporary: write_tensors(temporary, PART_FORMAT, arrays, dict(law)),
    )


def delete_parts(folder: Path) -> None:
    """Remove `folder` when the tree is written."""
    shutil.rmtree(folder)


def _pack(contexts: Sequence[Context], pools: Sequence[Pool]) -> Arrays:
    return {
        "contexts": np.array(contexts, dtype=np.int64),
        "sizes": np.array([len(pool.text) for pool in pools], dtype=np.int64),
        **{name: np.concatenate([getattr(pool, name) for pool in pools]) for name in _OF_CANDIDATES},
        **{name: np.array([getattr(pool, name) for pool in pools]) for name in _OF_POOLS},
    }


def _unpack(arrays: Arrays, vocabulary: Mapping[int, bytes]) -> dict[Context, Pool]:
    cuts = np.cumsum(arrays["sizes"])[:-1]
    columns: dict[str, list[Any]] = {name: np.split(arrays[name], cuts) for name in _OF_CANDIDATES}
    columns |= {name: arrays[name].tolist() for name in _OF_POOLS}
    pools: dict[Context, Pool] = {}
    for context, *values in zip(arrays["contexts"].tolist(), *columns.values(), strict=True):
        of_pool = dict(zip(columns, values, strict=True))
        text = tuple(spell(vocabulary, block) for block in of_pool["tokens"].tolist())
        pools[tuple(context)] = Pool(text=text, **of_pool)
    return pools
