"""LLaDA's `config.json` and its tensors: what is implemented, and how LLaDA's names become Llama's.

Free of transformers, whose import takes seconds: exact arithmetic needs no more of a checkpoint than this.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wm_env.common.json_values import entry

MOST_LAYERS = 1 << 10
LARGEST_SIZE = 1 << 24

REQUIRED_VALUES: Mapping[str, object] = {
    "model_type": "llada",
    "block_type": "llama",
    "block_group_size": 1,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "activation_type": "silu",
    "rope": True,
    "rope_full_precision": True,
    "alibi": False,
    "attention_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "bias_for_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "multi_query_attention": None,
}
"""The one value of each flag that this network implements; the first four must be stated, the rest may be absent."""

_STATED = ("model_type", "block_type", "layer_norm_type", "activation_type")

# What config.json of an integer checkpoint states beside its shape, see `wm_env.lm.models.exact.checkpoint`.
_OF_INTEGERS = frozenset(("arithmetic", "weight_format", "weights_sha256"))

# Keys that do not change what a trained network computes: initialisation, dropout, bookkeeping of other programs.
_WITHOUT_EFFECT = frozenset(
    (
        *("alibi_bias_max", "architectures", "attention_dropout", "attention_layer_norm_with_affine", "auto_map"),
        *("bos_token_id", "dtype", "embedding_dropout", "flash_attention", "init_cutoff_factor", "init_device"),
        *("init_fn", "init_std", "mlp_ratio", "pad_token_id", "precision", "residual_dropout", "torch_dtype"),
        *("transformers_version", "use_cache", "_name_or_path"),
    )
)

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
_TOP_NAMES = {"wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head"}
_LAYER = re.compile(r"model\.transformer\.blocks\.(\d+)\.(\w+)\.weight")
_TOP = re.compile(r"model\.transformer\.(\w+)\.weight")


@dataclass(frozen=True)
class LLaDAConfig:
    """The fields of LLaDA's `config.json` that shape the network, under their own names."""

    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    mlp_hidden_size: int
    vocab_size: int
    embedding_size: int
    max_sequence_length: int
    mask_token_id: int
    eos_token_id: int
    rope_theta: float
    rms_norm_eps: float
    weight_tying: bool

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "LLaDAConfig":
        """Read `config.json` as plain data; nothing is filled in from defaults except what LLaDA itself leaves null.

        Raises:
            ValueError: a field is missing, is no positive number, or asks for something this network does not compute.
        """
        _refuse_what_is_not_implemented(values)
        sizes = {
            name: _number(values, name, int)
            for name in ("d_model", "n_layers", "n_heads", "mlp_hidden_size", "vocab_size", "max_sequence_length")
        }
        optional = {"n_kv_heads": sizes["n_heads"], "embedding_size": sizes["vocab_size"]}
        for name, default in optional.items():
            sizes[name] = default if values.get(name) is None else _number(values, name, int)
        config = cls(
            **sizes,
            mask_token_id=_number(values, "mask_token_id", int, minimum=0),
            eos_token_id=_number(values, "eos_token_id", int, minimum=0),
            rope_theta=_number(values, "rope_theta", float),
            rms_norm_eps=_number(values, "rms_norm_eps", float),
            weight_tying=entry(values, "weight_tying", bool, "config.json"),
        )
        if config.d_model % config.n_heads or (config.d_model // config.n_heads) % 2:
            raise ValueError(
                f"d_model {config.d_model} does not split into n_heads {config.n_heads} heads of even width"
            )
        if config.n_heads % config.n_kv_heads:
            raise ValueError(f"n_heads {config.n_heads} is not a multiple of n_kv_heads {config.n_kv_heads}")
        if config.mask_token_id >= config.embedding_size:
            raise ValueError(f"mask_token_id {config.mask_token_id} is outside the {config.embedding_size} embeddings")
        return config

    def to_json(self) -> dict[str, Any]:
        """The complete `config.json` of this network, as LLaDA-8B writes it."""
        return {
            "architectures": ["LLaDAModelLM"],
            **REQUIRED_VALUES,
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
        }


def _refuse_what_is_not_implemented(values: Mapping[str, Any]) -> None:
    architectures = values.get("architectures")
    if architectures is not None and architectures != ["LLaDAModelLM"]:
        raise ValueError(f"config.json names architectures {architectures!r}; only ['LLaDAModelLM'] is implemented")
    for name, required in REQUIRED_VALUES.items():
        if name not in values and name in _STATED:
            raise ValueError(f"config.json lacks {name!r}; a LLaDA checkpoint states {required!r}")
        if name in values and values[name] != required:
            raise ValueError(f"config.json sets {name} to {values[name]!r}; only {required!r} is implemented")
    known = REQUIRED_VALUES.keys() | LLaDAConfig.__dataclass_fields__.keys() | _WITHOUT_EFFECT | _OF_INTEGERS
    for name in sorted(values.keys() - known):
        if values[name] not in (None, False):
            raise ValueError(f"config.json sets {name} to {values[name]!r}; this flag is not implemented")


def _number(values: Mapping[str, Any], name: str, kind: type, minimum: int = 1) -> Any:
    if values.get(name) is None:
        raise ValueError(f"config.json lacks {name!r}")
    value: Any = entry(values, name, kind, "config.json")
    if kind is int:
        check_size(name, value, minimum)
    elif not value > 0:
        raise ValueError(f"config.json: {name} is {value!r}, not a positive number")
    return value


def check_size(name: str, value: int, minimum: int = 1) -> None:
    """Check a size from a config.json, before a network of it is built.

    Raises:
        ValueError: it is too small, or larger than any network's.
    """
    largest = MOST_LAYERS if name in ("n_layers", "num_hidden_layers") else LARGEST_SIZE
    if not minimum <= value <= largest:
        raise ValueError(f"config.json: {name} is {value}, not an integer from {minimum} to {largest}")


def llama_name(llada: str) -> str | None:
    """The name in `LlamaForCausalLM` of the tensor that LLaDA calls `llada`, or None if LLaDA has no such tensor.

    The whole name is matched: `ff_out` is the LM head at the top and the MLP's down-projection inside a block.
    """
    if match := _LAYER.fullmatch(llada):
        inner = _LAYER_NAMES.get(match[2])
        return inner and f"model.layers.{match[1]}.{inner}.weight"
    if match := _TOP.fullmatch(llada):
        outer = _TOP_NAMES.get(match[1])
        return outer and f"{outer}.weight"
    return None


def tensor_names(config: LLaDAConfig) -> dict[str, str]:
    """LLaDA's name -> Llama's name of every tensor a checkpoint of this shape holds, and of no other."""
    top = [name for name in _TOP_NAMES if not (name == "ff_out" and config.weight_tying)]
    llada = [f"model.transformer.{name}.weight" for name in top]
    for layer in range(config.n_layers):
        llada += [f"model.transformer.blocks.{layer}.{name}.weight" for name in _LAYER_NAMES]
    return {name: str(llama_name(name)) for name in llada}
