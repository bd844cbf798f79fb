"""Dream-7B on transformers' own Qwen2: the same tensors, attention in both directions, logits shifted by one.

Dream (arXiv 2508.15487) was made from Qwen2.5 and kept its habit: the output at position i predicts the token at
position i + 1, masked or not. So the law of a masked position is read one position to its left.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from wm_env.common.files import fingerprint
from wm_env.lm.models.checkpoint_tokenizer import checkpoint_tokenizer
from wm_env.lm.models.exact.network import ExactNetwork
from wm_env.lm.models.exact.weights import ExactShape
from wm_env.lm.models.llada import exact_logits, llada_logits, open_network
from wm_env.lm.models.llada_config import check_size
from wm_env.lm.models.masked_lm import MaskedLM, Network, banned_ids
from wm_env.lm.models.network import ATTENTION

_REQUIRED: Mapping[str, object] = {
    "architectures": ["DreamModel"],
    "hidden_act": "silu",
    "rope_scaling": None,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}
"""The one value of each flag that is implemented; a flag may be absent."""

_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "mask_token_id"),
)
_NUMBERS = ("rope_theta", "rms_norm_eps")


def load_dream(folder: Path, values: Mapping[str, Any], name: str, device: str, dtype: torch.dtype | None) -> MaskedLM:
    """The Dream checkpoint in `folder`, whose config.json holds `values`; see `wm_env.lm.models.load.load_lm`.

    `dtype` None is exact arithmetic.

    Raises:
        ValueError: configuration, tensors or tokenizer are not what is implemented here.
        OSError: files are missing.
    """
    shape = _checked(values)
    tokenizer = checkpoint_tokenizer(folder)
    mask_id, size = int(shape["mask_token_id"]), int(shape["vocab_size"])
    sizes = exact_dream(values)
    names = {key: key for key, _, _ in sizes.tensors()}
    network, digests = open_network(folder, values, sizes, names, device, dtype, lambda: _build(shape))
    if isinstance(network, PreTrainedModel):
        # The frequencies of the rotation are no stored tensor, and stay in fp32 whatever the dtype of the network.
        with torch.device(device):
            network.model.rotary_emb = Qwen2RotaryEmbedding(_qwen2(shape))
    return MaskedLM(
        network=network,
        text_tokenizer=tokenizer.text,
        open_tokenizer=tokenizer.open,
        name=name,
        mask_id=mask_id,
        banned=banned_ids(mask_id, size, tokenizer.text).to(device),
        max_length=int(shape["max_position_embeddings"]),
        fingerprint=fingerprint({}, {"kind": "Dream", "config": shape, "tensors": digests}),
        tokenizer_fingerprint=tokenizer.fingerprint,
        logits_at=shifted_logits,
    )


def _build(shape: Mapping[str, float]) -> PreTrainedModel:
    with torch.device("meta"):
        return Qwen2ForCausalLM(_qwen2(shape))


def exact_dream(values: Mapping[str, Any]) -> ExactShape:
    """Sizes of a Dream network, as exact arithmetic needs them, from the values of its config.json.

    Raises:
        ValueError: a value is missing, or describes a network that this package does not implement.
    """
    shape = _checked(values)
    return ExactShape(
        layers=int(shape["num_hidden_layers"]),
        width=int(shape["hidden_size"]),
        heads=int(shape["num_attention_heads"]),
        groups=int(shape["num_key_value_heads"]),
        inner=int(shape["intermediate_size"]),
        vocabulary=int(shape["vocab_size"]),
        theta=float(shape["rope_theta"]),
        eps=float(shape["rms_norm_eps"]),
        tied=False,
        biases=True,
    )


def shifted_logits(network: Network, canvas: Tensor, position: int) -> Tensor:
    """Logits of the token at `position`, shape (N, V): the output one position before it; of position 0, its own."""
    read = exact_logits if isinstance(network, ExactNetwork) else llada_logits
    return read(network, canvas, max(position - 1, 0))


def _checked(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that shape the network.

    ValueError if one is missing or out of range, or a flag asks for something else than is implemented.
    """
    for name, required in _REQUIRED.items():
        if name in values and values[name] != required:
            raise ValueError(f"config.json sets {name} to {values[name]!r}; of Dream only {required!r} is implemented")
    for name in (*_SIZES, *_NUMBERS):
        value = values.get(name)
        wanted = int if name in _SIZES else (int, float)
        if not isinstance(value, wanted) or isinstance(value, bool) or not value > 0:
            raise ValueError(f"config.json: {name} is {value!r}; Dream needs a positive number there")
        if name in _SIZES:
            check_size(name, int(value))
    heads, groups = values["num_attention_heads"], values["num_key_value_heads"]
    if values["hidden_size"] % heads or values["hidden_size"] // heads % 2 or heads % groups:
        raise ValueError(
            f"config.json: hidden_size {values['hidden_size']} does not split into {heads} heads of even width, or "
            f"the heads not into {groups} groups"
        )
    return {name: values[name] for name in (*_SIZES, *_NUMBERS)}


def _qwen2(shape: Mapping[str, float]) -> Qwen2Config:
    """The same network in transformers' terms."""
    sizes = {name: shape[name] for name in _SIZES if name != "mask_token_id"}
    return Qwen2Config(
        **sizes,
        rms_norm_eps=shape["rms_norm_eps"],
        rope_parameters={"rope_type": "default", "rope_theta": shape["rope_theta"]},
        tie_word_embeddings=False,
        is_causal=False,
        use_cache=False,
        attn_implementation=ATTENTION,
    )
