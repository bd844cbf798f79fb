"""What pre-training writes: a model in LLaDA's format, and a checkpoint from which training continues."""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from wm_env.common.files import write_atomically, write_json
from wm_env.common.json_values import parse_json, read_as
from wm_env.common.tensors import disk_errors, unreadable
from wm_env.lm.models.exact.checkpoint import format_values
from wm_env.lm.models.exact.quantise import W8
from wm_env.lm.models.exact.weights import FloatSource, integer_tensors, scale_name
from wm_env.lm.models.llada import exact_shape
from wm_env.lm.models.llada_config import LLaDAConfig, tensor_names
from wm_env.lm.models.weights import save_tensors, tensor_digest

FORMAT = 1


def save_integers(
    folder: Path, network: LlamaForCausalLM, config: LLaDAConfig, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Write `folder` as a checkpoint of 8-bit integers (`wm_env.lm.models.exact`), which `load_lm` reads.

    A network whose matrices are integers times a scale a row, such as `rounding.rounded_state` makes, is stored as it
    is; of any other the integers nearest to its weights.
    """
    state = network.state_dict()
    stored = {llama: llada for llada, llama in tensor_names(config).items()}
    stored |= {scale_name(llama): scale_name(llada) for llama, llada in stored.items()}
    source = FloatSource(exact_shape(config), W8, lambda name, _: state[name].cpu())
    tensors = {stored[name]: tensor.contiguous() for name, tensor in integer_tensors(source)}
    folder.mkdir(parents=True, exist_ok=True)
    digests = {name: tensor_digest(tensor) for name, tensor in tensors.items()}
    write_json(folder / "config.json", {**config.to_json(), **format_values(W8, digests)})
    save_tokenizer(folder, tokenizer)
    save_tensors(folder / "model.safetensors", tensors)


def save_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write the files of `tokenizer` to `folder`, each whole or not at all, tokenizer.json last.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tokenizer.") as made:
        with disk_errors(folder / "tokenizer.json", Exception):  # the tokenizers library has no class of its own
            tokenizer.save_pretrained(made)
        for file in sorted(Path(made).iterdir(), key=lambda file: file.name == "tokenizer.json"):
            write_atomically(folder / file.name, partial(shutil.copyfile, file))


@dataclass(frozen=True)
class TrainingProgress:
    """Where a run stands: steps done, seconds spent, the best validation in bits per token, and all validations."""

    step: int = 0
    seconds: float = 0.0
    best: float = float("inf")
    history: tuple[Mapping[str, float], ...] = ()


def save_progress(
    path: Path,
    network: LlamaForCausalLM,
    optimizers: Sequence[torch.optim.Optimizer],
    progress: TrainingProgress,
    settings: Mapping[str, Any],
) -> None:
    """Write network, optimizer states, progress and settings, whole or not at all.

    Nothing random is stored: every batch is a function of seed, step and rank.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        tensors[f"network {name}"] = parameter.detach()
        for optimizer in optimizers:
            for key, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{key} {name}"] = value
    about = {
        "step": progress.step,
        "seconds": progress.seconds,
        "best": None if progress.best == float("inf") else progress.best,
        "history": list(progress.history),
    }
    metadata = {"format": str(FORMAT), "progress": json.dumps(about), "settings": json.dumps(settings)}
    save_tensors(path, tensors, metadata)


def load_progress(
    path: Path,
    network: LlamaForCausalLM,
    optimizers: Sequence[torch.optim.Optimizer],
    settings: Mapping[str, Any],
) -> TrainingProgress:
    """Put a checkpoint's tensors into `network` and `optimizers` and return its progress.

    Raises:
        OSError: there is no such file.
        ValueError: the file is damaged, of another format, or of a run with other settings (the first is named).
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; there is nothing to resume, start in a new folder")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except SafetensorError as error:
        raise unreadable(path, "checkpoint", error) from None
    if metadata.get("format") != str(FORMAT):
        raise ValueError(f"{path} is no checkpoint of format {FORMAT}")
    stored = read_as(dict[str, Any], parse_json(metadata.get("settings", ""), path), path, "settings")
    for name, value in json.loads(json.dumps(settings)).items():
        if stored.get(name) != value:
            raise ValueError(f"{path} was made with {name} {stored.get(name)!r}, not {value!r}; use the same to resume")
    about = read_as(_About, parse_json(metadata.get("progress", ""), path), path, "progress")
    _check_tensors(path, tensors, network)
    owner = {parameter: optimizer for optimizer in optimizers for parameter in _parameters(optimizer)}
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(tensors.pop(f"network {name}"))
            keys = [entry.split(" ")[0] for entry in tensors if entry.split(" ")[1] == name]
            # AdamW keeps its step count, a scalar, on the CPU.
            state = {key: tensors[f"{key} {name}"] for key in keys}
            owner[parameter].state[parameter] = {
                key: value.to(parameter.device) if value.ndim else value for key, value in state.items()
            }
    return TrainingProgress(
        about.step, about.seconds, float("inf") if about.best is None else about.best, about.history
    )


@dataclass(frozen=True)
class _About:
    """A `Progress` as a file holds it."""

    step: int
    seconds: float
    best: float | None
    history: tuple[dict[str, float], ...]


def _check_tensors(path: Path, tensors: Mapping[str, Tensor], network: LlamaForCausalLM) -> None:
    """Refuse a file without the tensors of `network`, or with a tensor of another shape or of no parameter."""
    parameters = dict(network.named_parameters())
    for name, parameter in parameters.items():
        stored = tensors.get(f"network {name}")
        if stored is None or stored.shape != parameter.shape:
            raise ValueError(f"{path} holds no {name} of shape {tuple(parameter.shape)}: start in a new folder")
    for entry, tensor in tensors.items():
        owner = parameters.get(entry.partition(" ")[2])
        # Of an optimizer: one number for each of a parameter's, or one for all.
        if owner is None or tensor.shape not in (owner.shape, ()):
            raise ValueError(f"{path}: tensor {entry!r} is of no use: start in a new folder")


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
