"""Load a masked language model by its name: LLaDA, Dream or an encoder; its config.json says which.

No remote code is run: `config.json` is read as data, tensors come from safetensors files, and the network is one of
transformers' own classes.
"""

import os
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from wm_env.common.checks import check_known
from wm_env.common.files import read_json
from wm_env.common.foreign.devices import usable_device
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.common.json_values import read_as
from wm_env.common.threads import one_thread_after_fork
from wm_env.lm.models.exact.checkpoint import open_source, write_integers
from wm_env.lm.models.exact.quantise import Form
from wm_env.lm.models.folder import find_model
from wm_env.lm.models.llada import exact_shape, load_llada
from wm_env.lm.models.llada_config import LLaDAConfig, tensor_names
from wm_env.lm.models.masked_lm import MaskedLM

Arithmetic = Literal["exact", "float"]

one_thread_after_fork()

_DECODERS = ("llada", "Dream")
"""Values of model_type that are no encoders."""


@usual_torch()
def load_lm(
    source: str | Path,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    arithmetic: Arithmetic | None = None,
) -> MaskedLM:
    """Load a masked language model; its config.json says which kind.

    LLaDA (LLaDA-8B-Base, -Instruct, LLaDA-1.5, and what else has their format), Dream (`wm_env.lm.models.dream`), and
    the classes that transformers knows as `AutoModelForMaskedLM` (`wm_env.lm.models.encoder`).

    Args:
        source: "mini" for the model that ships with the package, a folder, or a hub id "owner/name". From the hub only
            JSON, text and safetensors files are fetched.
        device: where the network lives, e.g. "cpu" or "cuda:0".
        dtype: number format of float arithmetic: torch.float32 (the default of LLaDA and Dream), torch.bfloat16 or
            torch.float64.
        arithmetic: "exact", the same law on every machine (`wm_env.lm.models.exact`), or "float". By default exact
            for LLaDA and Dream, unless a `dtype` is given. Encoders have no exact arithmetic: by default they are
            float64 with rounded logits (`wm_env.lm.models.masked_lm.guarded`), which other machines nearly always
            compute too.

    Raises:
        ValueError: the arithmetic or the model is unknown, the model's configuration, tensors or tokenizer are not what
            is implemented here, or torch cannot compute on the device.
        OSError: files are missing or cannot be fetched.
    """
    if dtype not in (None, torch.float32, torch.bfloat16, torch.float64):
        raise ValueError(f"dtype must be torch.float32, torch.bfloat16 or torch.float64, got {dtype}")
    if arithmetic is not None:
        check_known("arithmetic", arithmetic, get_args(Arithmetic))
    if arithmetic == "exact" and dtype is not None:
        raise ValueError(f"exact arithmetic has a number format of its own: leave out dtype {dtype}")
    device = checked_device(device)
    folder = find_model(source)
    values = _read_config(folder)
    kind = read_as(str, values.get("model_type", "llada"), folder / "config.json", "model_type")
    if kind not in _DECODERS:
        return _load_other(folder, values, str(source), device, dtype, arithmetic)
    if arithmetic == "float":
        dtype = dtype or torch.float32
    if kind == "Dream":
        from wm_env.lm.models.dream import load_dream

        return load_dream(folder, values, str(source), device, dtype)
    return load_llada(folder, values, str(source), device, dtype)


def _load_other(
    folder: Path,
    values: dict[str, Any],
    name: str,
    device: str,
    dtype: torch.dtype | None,
    arithmetic: Arithmetic | None,
) -> MaskedLM:
    """An encoder."""
    from wm_env.lm.models.encoder import is_encoder, load_encoder

    if not is_encoder(values):
        raise ValueError(
            f"{folder / 'config.json'}: model_type {values.get('model_type')!r} with architectures "
            f"{values.get('architectures')!r} is not read; LLaDA, Dream and the ForMaskedLM classes of transformers are"
        )
    if arithmetic == "exact":
        raise ValueError(f"{name} is an encoder: there is no exact arithmetic for it, use float")
    return load_encoder(folder, values, name, device, dtype or torch.float64)


def write_integer_model(source: str | Path, out: Path, form: Form) -> list[Path]:
    """Write the integer checkpoint of a LLaDA or Dream model, see `wm_env.lm.models.exact.checkpoint`.

    Raises:
        ValueError: the model is an encoder or unknown, or its configuration or tensors are not what is implemented.
        OSError: files are missing, or `out` exists or cannot be written.
    """
    folder = find_model(source)
    values = _read_config(folder)
    kind = values.get("model_type", "llada")
    if kind not in _DECODERS:
        raise ValueError(f"{source} has model_type {kind!r}: only LLaDA and Dream have exact arithmetic")
    if kind == "Dream":
        from wm_env.lm.models.dream import exact_dream

        shape = exact_dream(values)
        names = {name: name for name, _, _ in shape.tensors()}
    else:
        config = LLaDAConfig.from_json(values)
        shape, names = exact_shape(config), tensor_names(config)
    integers, _ = open_source(folder, values, shape, names, form)
    return write_integers(integers, names, values, folder, out)


def dtype_named(name: str | None) -> torch.dtype | None:
    """The torch dtype of a name such as "float32"; None for None.

    Raises:
        ValueError: another name.
    """
    formats = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
    if name is None:
        return None
    check_known("dtype", name, formats)
    return formats[name]


def checked_device(name: str) -> str:
    """As `usable_device`, by its name; "cuda" is the GPU that torchrun means for this process."""
    return str(usable_device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" else name))


def _read_config(folder: Path) -> dict[str, Any]:
    """The object in `folder`/config.json, read as plain JSON; OSError without the file, ValueError if it is none."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no config.json; give the folder of a checkpoint")
    return read_json(path)
