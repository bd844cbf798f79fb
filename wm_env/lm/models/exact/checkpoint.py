"""Checkpoint folders read in exact arithmetic, and written as integers.

`config.json` of an integer checkpoint says `"arithmetic": "exact-1"`, `"weight_format": "w8"` and `"weights_sha256"`,
the fingerprint of its tensors, which is checked when they are read: a changed byte is an error and no other model. See
`weights` for the tensors. A checkpoint in floats says none of this and is quantised while it is read.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from wm_env.common.files import fingerprint, make_folder, write_json
from wm_env.lm.models.exact.network import VERSION
from wm_env.lm.models.exact.quantise import Form
from wm_env.lm.models.exact.weights import (
    ExactShape,
    FloatSource,
    IntegerSource,
    Source,
    folded,
    form_for,
    form_named,
    integer_tensors,
    scale_name,
)
from wm_env.lm.models.weights import TensorReader, save_tensors, tensor_digest

FORMAT_KEYS = ("arithmetic", "weight_format", "weights_sha256")
"""What config.json of an integer checkpoint states beside the shape of the network."""

_SHARD_BYTES = 1 << 32
_BESIDE = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json")


def stored_form(values: Mapping[str, Any]) -> Form | None:
    """The number format of an integer checkpoint with this config.json; None for one in floats.

    Raises:
        ValueError: it is of another version of the arithmetic, or of an unknown format.
    """
    if all(values.get(key) is None for key in FORMAT_KEYS):
        return None
    arithmetic, weight_format, _ = (values.get(key) for key in FORMAT_KEYS)
    if arithmetic != VERSION:
        raise ValueError(f"config.json: the model is made for the arithmetic {arithmetic!r}, this is {VERSION!r}")
    return form_named(weight_format)


def format_values(form: Form, digests: Mapping[str, str]) -> dict[str, str]:
    """The entries `FORMAT_KEYS` of the config.json of an integer checkpoint; digests as of `TensorReader`."""
    return dict(zip(FORMAT_KEYS, (VERSION, form.name, fingerprint({}, dict(digests))), strict=True))


def open_source(
    folder: Path, values: Mapping[str, Any], shape: ExactShape, names: Mapping[str, str], form: Form | None = None
) -> tuple[Source, TensorReader]:
    """The integers of a checkpoint, and the reader that notes the digests of its tensors.

    Args:
        folder, values, shape: the checkpoint, its config.json, the sizes of its network.
        names: stored name -> name in transformers of every tensor of the network in floats.
        form: number format for a checkpoint in floats; `form_for` chooses by default.

    Raises:
        ValueError: tensors are missing, unexpected or damaged, or the format is not implemented.
        OSError: a file is missing.
    """
    stored = stored_form(values)
    if stored is None:
        reader = TensorReader(folder, names)
        return FloatSource(shape, form_for(shape) if form is None else form, reader), reader
    reader = TensorReader(folder, _integer_names(shape, names))
    return IntegerSource(shape, stored, reader), reader


def check_digests(folder: Path, values: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    """Check the tensors of an integer checkpoint, once all were read; those of one in floats have no such number.

    Raises:
        ValueError: they are others than its config.json says.
    """
    if stored_form(values) is not None and values.get(FORMAT_KEYS[2]) != fingerprint({}, dict(digests)):
        raise ValueError(f"{folder} is damaged: its tensors are not those that its config.json names; fetch it again")


def _integer_names(shape: ExactShape, names: Mapping[str, str]) -> dict[str, str]:
    """`names` of the integer checkpoint."""
    gone, integers = folded(shape), {}
    for stored, name in names.items():
        if name in gone:
            continue
        integers[stored] = name
        if len(shape.of(name)) == 2:
            integers[scale_name(stored)] = scale_name(name)
    return integers


def write_integers(
    source: Source, names: Mapping[str, str], values: Mapping[str, Any], tokenizer_of: Path, out: Path
) -> list[Path]:
    """Write an integer checkpoint, matrix by matrix, in files of at most 4 GiB; returns the files of tensors.

    Args:
        names: as in `open_source`.
        values: config.json of the checkpoint that they came from.
        tokenizer_of: its folder.
        out: a folder that does not exist yet.

    Raises:
        OSError: the folder exists, or cannot be written.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists already: choose another folder")
    make_folder(out)
    stored = {name: key for key, name in _integer_names(source.shape, names).items()}
    shard: dict[str, Tensor] = {}
    files: list[Path] = []
    place: dict[str, str] = {}
    digests: dict[str, str] = {}
    size = 0
    for name, tensor in integer_tensors(source):
        if size and size + tensor.nbytes > _SHARD_BYTES:
            files.append(out / f"model-{len(files) + 1:05}.safetensors")
            save_tensors(files[-1], shard)
            shard, size = {}, 0
        shard[stored[name]] = tensor.contiguous()
        place[stored[name]] = f"model-{len(files) + 1:05}.safetensors"
        digests[stored[name]] = tensor_digest(tensor)
        size += tensor.nbytes
    files.append(out / (f"model-{len(files) + 1:05}.safetensors" if files else "model.safetensors"))
    save_tensors(files[-1], shard)
    if len(files) > 1:
        write_json(out / "model.safetensors.index.json", {"metadata": {}, "weight_map": place})
    write_json(out / "config.json", {**values, **format_values(source.form, digests)})
    for file in _BESIDE:
        if (tokenizer_of / file).is_file():
            shutil.copyfile(tokenizer_of / file, out / file)
    return files
