"""LLaDA: how one of its checkpoints becomes a masked language model.

The network is transformers' own Llama (`wm_env.lm.models.network`). `wm_env.lm.models.load` loads LLaDA and its
relatives by name.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from wm_env.common.files import fingerprint
from wm_env.lm.models.forward import hidden_at
from wm_env.lm.models.masked_lm import MaskedLM, banned_ids, tokenizer_fingerprint
from wm_env.lm.models.network import LLaDAConfig, build_network, tensor_names
from wm_env.lm.models.weights import load_tensors, read_tokenizer


def llada_logits(network: PreTrainedModel, canvas: Tensor, position: int) -> Tensor:
    """Logits of the token at `position`, shape (N, V); no other position leaves the last layer."""
    logits: Tensor = network.lm_head(hidden_at(network, canvas, position))
    return logits


def load_llada(folder: Path, values: Mapping[str, Any], name: str, device: str, dtype: torch.dtype) -> MaskedLM:
    """The model in `folder`, whose config.json holds `values`; see `wm_env.lm.models.load.load_lm`."""
    config = LLaDAConfig.from_json(values)
    tokenizer = read_tokenizer(folder)
    network = build_network(config, "meta")
    digests = load_tensors(network, tensor_names(config), folder, device, dtype)
    if config.weight_tying:
        network.lm_head.weight = network.model.embed_tokens.weight
    network.requires_grad_(False)
    return MaskedLM(
        network=network.eval(),
        tokenizer=tokenizer,
        name=name,
        mask_id=config.mask_token_id,
        banned=banned_ids(config.mask_token_id, config.embedding_size, tokenizer).to(device),
        max_length=config.max_sequence_length,
        fingerprint=fingerprint({}, {"config": asdict(config), "tensors": digests}),
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        logits_at=llada_logits,
    )
