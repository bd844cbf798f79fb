"""Checkpoint folders: the tensors of safetensors files, read as data.

No code of a checkpoint is ever run and nothing is unpickled, so a folder from a stranger can at worst be refused.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from wm_env.common.files import read_json, write_atomically
from wm_env.common.tensors import disk_errors, unreadable

_PYTORCH = {"format": "pt"}


def checkpoint_files(folder: Path) -> list[Path]:
    """The folder's safetensors files: the index's shards, or the single file.

    Raises:
        OSError: a file is missing.
        ValueError: the index is none.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ValueError(f"{index} has no weight_map")
        files = sorted({str(file) for file in weight_map.values()})
    else:
        files = ["model.safetensors"]
    for file in files:
        if (folder / file).parent != folder or not (folder / file).is_file():
            raise FileNotFoundError(f"{folder} holds no {file}; the checkpoint is incomplete")
    return [folder / file for file in files]


def stored_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """All tensors of the folder's safetensors files, one at a time.

    Raises:
        OSError: a file is missing.
        ValueError: a file is damaged or none of safetensors, or the index is none.
    """
    for path in checkpoint_files(folder):
        with _opened(path) as shard:
            for name in shard.keys():  # noqa: SIM118 - safe_open is no mapping
                yield name, shard.get_tensor(name)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as shard:
            yield shard
    except SafetensorError as error:
        raise unreadable(path, "safetensors", error) from None


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] = _PYTORCH) -> None:
    """Write a safetensors file, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """

    def write(temporary: Path) -> None:
        with disk_errors(path):
            save_file(dict(tensors), temporary, dict(metadata))

    write_atomically(path, write)


class TensorReader:
    """The tensors of a checkpoint by the network's names, read one at a time, in any order.

    Attributes:
        digests: of the tensors that were read, by stored name.
    """

    def __init__(self, folder: Path, names: Mapping[str, str]) -> None:
        """`names` says stored name -> the network's name of every tensor that must be there. Others must not.

        Raises:
            ValueError: a tensor is missing or unexpected, or a file is damaged.
            OSError: a file is missing.
        """
        self.digests: dict[str, str] = {}
        self._folder = folder
        self._stored = {network: stored for stored, network in names.items()}
        self._file: dict[str, Path] = {}
        for path in checkpoint_files(folder):
            with _opened(path) as shard:
                for name in shard.keys():  # noqa: SIM118 - safe_open is no mapping
                    if name not in names or name in self._file:
                        raise ValueError(f"{folder}: unexpected tensor {name!r}")
                    self._file[name] = path
        if missing := sorted(names.keys() - self._file.keys()):
            raise ValueError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]!r}")

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor that the network calls `name`.

        Raises:
            ValueError: it has another shape, or the file is damaged.
        """
        stored = self._stored[name]
        with _opened(self._file[stored]) as shard:
            tensor: Tensor = shard.get_tensor(stored)
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{self._folder}: tensor {stored!r} has shape {tuple(tensor.shape)}, config.json says {shape}"
            )
        if stored not in self.digests:
            self.digests[stored] = tensor_digest(tensor)
        return tensor


def tensor_digest(tensor: Tensor) -> str:
    """Type, shape and SHA-256 of the content of a tensor as it is stored."""
    content = tensor.contiguous().flatten().view(torch.uint8).numpy()
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(content.data).hexdigest()}"


def owned(tensor: Tensor, device: str | torch.device, dtype: torch.dtype) -> Tensor:
    """A copy of a stored tensor in aligned memory of its own.

    A tensor that is read from a file without conversion stays a view of the mapped file, which begins where the
    file's header ends. Matrix kernels choose their order of summation by the address of their operands, so the same
    weights behind a longer header would give other last bits.
    """
    return tensor.to(device=device, dtype=dtype, copy=True)


def load_tensors(
    network: nn.Module, names: Mapping[str, str], folder: Path, device: str, dtype: torch.dtype
) -> dict[str, str]:
    """Put the stored tensors into a network on device "meta"; returns their digests by stored name.

    `names` as in `TensorReader`; what it leaves out stays on "meta". The others become `dtype` and go to `device`.

    Raises:
        ValueError: a tensor is missing, unexpected or of another shape than config.json says.
        OSError: a file is missing.
    """
    read, shapes = TensorReader(folder, names), network.state_dict()
    state = {name: owned(read(name, tuple(shapes[name].shape)), device, dtype) for name in names.values()}
    network.load_state_dict(state, strict=False, assign=True)
    return read.digests
