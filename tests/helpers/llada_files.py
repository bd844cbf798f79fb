"""LLaDA checkpoints written tensor by tensor under LLaDA's names, and LLaDA's forward pass written out."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tiny_lm import ALL_BYTES, tokenizer_of
from torch import Tensor

VOCABULARY = 260  # 256 bytes, end, mask, and two rows without a token
MASK_ID = 257


def config_json(**changes: object) -> dict[str, object]:
    """`config.json` in the shape of LLaDA-8B's, small."""
    return {
        "activation_type": "silu",
        "alibi": False,
        "alibi_bias_max": 8.0,
        "architectures": ["LLaDAModelLM"],
        "attention_dropout": 0.0,
        "attention_layer_norm": False,
        "attention_layer_norm_with_affine": True,
        "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"},
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "d_model": 32,
        "embedding_dropout": 0.0,
        "embedding_size": VOCABULARY,
        "eos_token_id": 256,
        "flash_attention": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "init_cutoff_factor": None,
        "init_device": "meta",
        "init_fn": "mitchell",
        "init_std": 0.02,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "mask_token_id": MASK_ID,
        "max_sequence_length": 1024,
        "mlp_hidden_size": 48,
        "mlp_ratio": 4,
        "model_type": "llada",
        "multi_query_attention": None,
        "n_heads": 4,
        "n_kv_heads": 2,
        "n_layers": 3,
        "pad_token_id": 256,
        "precision": "amp_bf16",
        "residual_dropout": 0.0,
        "rms_norm_eps": 1e-5,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": 500000.0,
        "scale_logits": False,
        "transformers_version": "4.46.3",
        "use_cache": False,
        "vocab_size": VOCABULARY,
        "weight_tying": False,
        **changes,
    }


def random_tensors(seed: int = 0) -> dict[str, Tensor]:
    """The tensors of `config_json()` under LLaDA's names, large enough that every part of the network matters."""
    width, kv, inner = 32, 16, 48
    shapes = {"wte": (VOCABULARY, width), "ln_f": (width,), "ff_out": (VOCABULARY, width)}
    for layer in range(3):
        for name, shape in (
            ("attn_norm", (width,)),
            ("q_proj", (width, width)),
            ("k_proj", (kv, width)),
            ("v_proj", (kv, width)),
            ("attn_out", (width, width)),
            ("ff_norm", (width,)),
            ("ff_proj", (inner, width)),
            ("up_proj", (inner, width)),
            ("ff_out", (width, inner)),
        ):
            shapes[f"blocks.{layer}.{name}"] = shape
    generator = torch.Generator().manual_seed(seed)
    return {
        f"model.transformer.{name}.weight": torch.randn(shape, generator=generator) * (0.3 if len(shape) == 2 else 1.0)
        for name, shape in shapes.items()
    }


def write_checkpoint(folder: Path, tensors: dict[str, Tensor], shards: int = 1, **changes: object) -> Path:
    """A checkpoint folder of one file, or of several with an index as LLaDA-8B has."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(**changes)))
    tokenizer_of(ALL_BYTES).save_pretrained(folder)
    names = list(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def forward_written_out(tensors: dict[str, Tensor], canvas: list[int]) -> np.ndarray:
    """(T, V) logits of one row in float64, straight from LLaDA's description, one head and one position at a time."""

    def weight(name: str) -> np.ndarray:
        return tensors[f"model.transformer.{name}.weight"].double().numpy()

    def rms(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * weight(name)

    def rotate(vector: np.ndarray, position: int) -> np.ndarray:
        half = len(vector) // 2
        turned = np.empty_like(vector)
        for i in range(half):
            angle = position * 500000.0 ** (-2 * i / len(vector))
            turned[i] = vector[i] * np.cos(angle) - vector[i + half] * np.sin(angle)
            turned[i + half] = vector[i + half] * np.cos(angle) + vector[i] * np.sin(angle)
        return turned

    x = weight("wte")[canvas]
    for layer in range(3):
        block = f"blocks.{layer}."
        h = rms(x, block + "attn_norm")
        q, k, v = (h @ weight(block + name).T for name in ("q_proj", "k_proj", "v_proj"))
        heads = np.empty_like(x)
        for head in range(4):
            own, shared = slice(8 * head, 8 * head + 8), slice(8 * (head // 2), 8 * (head // 2) + 8)
            turned_q = [rotate(row, i) for i, row in enumerate(q[:, own])]
            turned_k = [rotate(row, i) for i, row in enumerate(k[:, shared])]
            scores = np.array([[a @ b / np.sqrt(8) for b in turned_k] for a in turned_q])
            attention = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads[:, own] = attention / attention.sum(axis=1, keepdims=True) @ v[:, shared]
        x = x + heads @ weight(block + "attn_out").T
        h = rms(x, block + "ff_norm")
        gate = h @ weight(block + "ff_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weight(block + "up_proj").T)) @ weight(block + "ff_out").T
    return rms(x, "ln_f") @ weight("ff_out").T
