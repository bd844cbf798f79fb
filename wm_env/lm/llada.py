"""A masked-diffusion language model ready for the chain rule, loaded from a checkpoint in LLaDA's format.

No remote code is run: `config.json` is read as data, tensors come from safetensors files, and the network is
transformers' Llama (`wm_env.lm.network`). `load_lm` builds, `MaskedLM` answers.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from wm_env.files import fingerprint
from wm_env.lm.network import LLaDAConfig, build_network, tensor_names

EMBEDDED = Path(__file__).parent / "mini"

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class MaskedLM:
    """A masked-diffusion LM with what the chain rule needs.

    `banned` marks, over all V rows of the LM head, what no text may contain: the mask, ids without a token, and every
    special or reserved token. `fingerprint` covers the configuration and all tensors as stored, so it names the model
    whatever the device and dtype it runs in.
    """

    network: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    name: str
    mask_id: int
    banned: Tensor
    max_length: int
    fingerprint: str
    tokenizer_fingerprint: str

    @torch.no_grad()
    def log2_probs(self, canvas: Tensor, position: int, temperature: float) -> Tensor:
        """log2 p_tau(. | canvas) at one position: p_tau = softmax(logits / tau) over the ids that are not banned.

        Rows are of equal length and carry no padding, so a row's result does not depend on its neighbours. Only the
        wanted position goes through the LM head.

        Args:
            canvas: (N, T) int64 token ids, masks included; T at most `max_length`.
            position: 0..T-1, the same in every row.
            temperature: tau > 0.

        Returns:
            (N, V) float64 in bits, on the network's device; -inf where banned; each row's probabilities sum to 1.

        Raises:
            ValueError: shape, length, position or temperature is out of range, or the network returned a NaN.
        """
        if canvas.ndim != 2 or canvas.dtype != torch.int64 or 0 in canvas.shape:
            raise ValueError(f"canvas must be int64 of shape (N, T), got {canvas.dtype} of shape {tuple(canvas.shape)}")
        length = canvas.shape[1]
        if length > self.max_length:
            raise ValueError(f"canvas of {length} tokens; {self.name} reads at most {self.max_length}")
        if not 0 <= position < length:
            raise ValueError(f"position {position} is outside a canvas of {length} tokens")
        if not (0 < temperature < math.inf):
            raise ValueError(f"temperature must be a positive number, got {temperature}")
        hidden = self.network.model(canvas.to(self.banned.device), use_cache=False).last_hidden_state[:, position]
        logits = self.network.lm_head(hidden).double() / temperature
        if logits.isnan().any():
            raise ValueError(f"{self.name} returned NaN logits; load it in float32 or check the checkpoint")
        return torch.log_softmax(logits.masked_fill(self.banned, -math.inf), dim=-1) / math.log(2)

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`, nothing added.

        The names of special tokens inside the text are encoded letter by letter.

        Raises:
            ValueError: the tokenizer still produced an id that no text may contain.
        """
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)[
            "input_ids"
        ]
        for token in ids:
            if self.banned[token]:
                name = self.tokenizer.convert_ids_to_tokens(token)
                raise ValueError(f"the text contains {name!r}, which {self.name} keeps for itself; remove it")
        return ids


def load_lm(source: str | Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> MaskedLM:
    """Load a LLaDA checkpoint (LLaDA-8B-Base, -Instruct, LLaDA-1.5, or any of the same architecture).

    Args:
        source: "mini" for the model that ships with the package, a folder, or a hub id "owner/name". From the hub only
            JSON and safetensors files are fetched.
        device: where the network lives, e.g. "cpu" or "cuda:0".
        dtype: torch.float32 or torch.bfloat16.

    Raises:
        ValueError: the model is unknown, or its configuration, tensors or tokenizer are not what is implemented here.
        OSError: files are missing or cannot be fetched.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"dtype must be torch.float32 or torch.bfloat16, got {dtype}")
    folder = _find(source)
    config = read_config(folder)
    tokenizer = read_tokenizer(folder)
    network, digest = _load_network(folder, config, device, dtype)
    return MaskedLM(
        network=network,
        tokenizer=tokenizer,
        name=str(source),
        mask_id=config.mask_token_id,
        banned=banned_ids(config, tokenizer).to(device),
        max_length=config.max_sequence_length,
        fingerprint=digest,
        tokenizer_fingerprint=hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
    )


def read_config(folder: Path) -> LLaDAConfig:
    """The configuration in `folder`/config.json, read as plain JSON.

    Raises:
        OSError: there is no such file.
        ValueError: it is not JSON, or not a configuration that is implemented.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no config.json; give the folder of a LLaDA checkpoint")
    return LLaDAConfig.from_json(_read_json(path))


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer in `folder`/tokenizer.json.

    Raises:
        OSError: there is no such file.
        ValueError: the file is not a serialised tokenizer.
    """
    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError(f"{folder} holds no tokenizer.json; the model cannot read text without it")
    try:
        return PreTrainedTokenizerFast.from_pretrained(folder)
    except Exception as error:  # the tokenizers library raises bare Exception on a malformed file
        raise ValueError(f"{folder / 'tokenizer.json'} is not a tokenizer: {_first_line(error)}") from None


def _find(source: str | Path) -> Path:
    if source == "mini":
        return EMBEDDED
    if Path(source).is_dir():
        return Path(source)
    name = str(source)
    if not (isinstance(source, str) and _HUB_ID.fullmatch(name)):
        raise ValueError(f"unknown model {name!r}: give mini, the folder of a checkpoint, or a hub id owner/name")
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:  # the hub client and its transports raise dozens of unrelated classes
        raise OSError(f"{name!r} is no folder and could not be fetched from the hub: {_first_line(error)}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {_first_line(error)}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}, not an object")
    return value


def _load_network(folder: Path, config: LLaDAConfig, device: str, dtype: torch.dtype) -> tuple[LlamaForCausalLM, str]:
    """The network in eval mode, and the SHA-256 over configuration and stored tensors (however sharded)."""
    names = tensor_names(config)
    network = build_network(config, "meta")
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    state: dict[str, Tensor] = {}
    digests: dict[str, str] = {}
    for llada, tensor in _stored_tensors(folder):
        if llada not in names or llada in digests:
            raise ValueError(f"{folder}: unexpected tensor {llada!r}")
        if tuple(tensor.shape) != shapes[names[llada]]:
            wanted = shapes[names[llada]]
            raise ValueError(f"{folder}: tensor {llada!r} has shape {tuple(tensor.shape)}, config.json says {wanted}")
        content = tensor.contiguous().view(torch.uint8).numpy()
        digests[llada] = f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(content.data).hexdigest()}"
        state[names[llada]] = tensor.to(device=device, dtype=dtype)
    if missing := sorted(names.keys() - digests.keys()):
        raise ValueError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]!r}")
    network.load_state_dict(state, strict=not config.weight_tying, assign=True)
    if config.weight_tying:
        network.lm_head.weight = network.model.embed_tokens.weight
    network.requires_grad_(False)
    return network.eval(), fingerprint({}, {"config": asdict(config), "tensors": digests})


def _stored_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """All tensors of the folder's safetensors files, one at a time: the index's shards, or the single file."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ValueError(f"{index} has no weight_map")
        files = sorted({str(file) for file in weight_map.values()})
    else:
        files = ["model.safetensors"]
    for file in files:
        path = folder / file
        if path.parent != folder or not path.is_file():
            raise FileNotFoundError(f"{folder} holds no {file}; the checkpoint is incomplete")
        try:
            with safe_open(path, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118 - safe_open is no mapping
                    yield name, shard.get_tensor(name)
        except SafetensorError as error:
            raise ValueError(f"{path} is truncated or corrupt: {_first_line(error)}") from None


def banned_ids(config: LLaDAConfig, tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """(V,) bool: the mask, ids without a token, and every token added beside the vocabulary of text."""
    vocabulary = set(tokenizer.get_vocab().values())
    if config.mask_token_id not in vocabulary:
        raise ValueError(
            f"mask_token_id {config.mask_token_id} is no token of the tokenizer; they do not belong together"
        )
    if max(vocabulary) >= config.embedding_size:
        raise ValueError(f"the tokenizer has id {max(vocabulary)}, the network only {config.embedding_size} embeddings")
    # LLaDA marks only some of its control tokens as special, but everything it *adds* to the BPE vocabulary is one.
    text = vocabulary - set(tokenizer.added_tokens_decoder) - {config.mask_token_id}
    banned = torch.ones(config.embedding_size, dtype=torch.bool)
    banned[sorted(text)] = False
    return banned


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
