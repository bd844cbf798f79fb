"""LLaDA: how one of its checkpoints becomes a masked language model.

The network is transformers' own Llama (`wm_env.lm.models.network`). `wm_env.lm.models.load` loads LLaDA and its
relatives by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wm_env.common.files import fingerprint
from wm_env.lm.models.checkpoint_tokenizer import checkpoint_tokenizer
from wm_env.lm.models.exact.checkpoint import check_digests, open_source, stored_form
from wm_env.lm.models.exact.network import ExactNetwork
from wm_env.lm.models.exact.weights import ExactShape, float_tensors
from wm_env.lm.models.llada_config import LLaDAConfig, tensor_names
from wm_env.lm.models.masked_lm import MaskedLM, Network, banned_ids
from wm_env.lm.models.weights import load_tensors, owned

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def llada_logits(network: "PreTrainedModel", canvas: Tensor, position: int) -> Tensor:
    """Logits of the token at `position`, shape (N, V); no other position leaves the last layer."""
    from wm_env.lm.models.forward import hidden_at

    logits: Tensor = network.lm_head(hidden_at(network, canvas, position))
    return logits


def exact_logits(network: ExactNetwork, canvas: Tensor, position: int) -> Tensor:
    """The same of an exact network, float64."""
    return network.logits(canvas, [position])[:, 0]


def exact_shape(config: LLaDAConfig) -> ExactShape:
    """The sizes of the network for exact arithmetic."""
    return ExactShape(
        layers=config.n_layers,
        width=config.d_model,
        heads=config.n_heads,
        groups=config.n_kv_heads,
        inner=config.mlp_hidden_size,
        vocabulary=config.embedding_size,
        theta=config.rope_theta,
        eps=config.rms_norm_eps,
        tied=config.weight_tying,
    )


def load_llada(folder: Path, values: Mapping[str, Any], name: str, device: str, dtype: torch.dtype | None) -> MaskedLM:
    """The model in `folder`, whose config.json holds `values`; see `wm_env.lm.models.load.load_lm`.

    `dtype` None is exact arithmetic.
    """
    config = LLaDAConfig.from_json(values)
    tokenizer = checkpoint_tokenizer(folder)
    names = tensor_names(config)

    def build() -> "PreTrainedModel":
        from wm_env.lm.models.network import build_network

        return build_network(config, "meta")

    network, digests = open_network(folder, values, exact_shape(config), names, device, dtype, build)
    if not isinstance(network, ExactNetwork) and config.weight_tying:
        network.lm_head.weight = network.model.embed_tokens.weight
    return MaskedLM(
        network=network,
        text_tokenizer=tokenizer.text,
        open_tokenizer=tokenizer.open,
        name=name,
        mask_id=config.mask_token_id,
        banned=banned_ids(config.mask_token_id, config.embedding_size, tokenizer.text).to(device),
        max_length=config.max_sequence_length,
        fingerprint=fingerprint({}, {"config": asdict(config), "tensors": digests}),
        tokenizer_fingerprint=tokenizer.fingerprint,
        logits_at=exact_logits if isinstance(network, ExactNetwork) else llada_logits,
    )


def open_network(
    folder: Path,
    values: Mapping[str, Any],
    shape: ExactShape,
    names: Mapping[str, str],
    device: str,
    dtype: torch.dtype | None,
    build: Callable[[], "PreTrainedModel"],
) -> tuple[Network, dict[str, str]]:
    """The network of a checkpoint, and the digests of its tensors by stored name.

    Args:
        folder, values, shape, names: as in `open_source`.
        device: where it lives.
        dtype: number format, or None for exact arithmetic.
        build: makes the network of transformers on device "meta".
    """
    if dtype is None:
        source, reader = open_source(folder, values, shape, names)
        exact = ExactNetwork(source, device)
        check_digests(folder, values, reader.digests)
        return exact, reader.digests
    network = build()
    if stored_form(values) is None:
        digests = load_tensors(network, names, folder, device, dtype)
    else:
        source, reader = open_source(folder, values, shape, names)
        state = {name: owned(tensor, device, dtype) for name, tensor in float_tensors(source)}
        network.load_state_dict(state, strict=False, assign=True)
        digests = reader.digests
        check_digests(folder, values, digests)
    network.requires_grad_(False)
    return network.eval(), digests
