"""Tiny random checkpoints of LLaDA's relatives, in the formats in which the real ones are published."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tiny_lm import ALL_BYTES, LETTERS, tokenizer_of
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

DREAM_MASK = 257
ENCODER_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ENCODER_MASK = 4
FIRST_BYTE = len(ENCODER_SPECIALS)


def dream_json(**changes: object) -> dict[str, object]:
    """`config.json` in the shape of Dream-7B's, small."""
    return {
        "architectures": ["DreamModel"],
        "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "modeling_dream.DreamModel"},
        "bos_token_id": 256,
        "eos_token_id": 256,
        "hidden_act": "silu",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "mask_token_id": DREAM_MASK,
        "max_position_embeddings": 512,
        "max_window_layers": 2,
        "model_type": "Dream",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 256,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 260,
        **changes,
    }


def dream_tensors(seed: int = 0) -> dict[str, Tensor]:
    """The tensors of `dream_json()` under Qwen2's names, biases included."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (260, 32),
        "model.norm.weight": (32,),
        "lm_head.weight": (260, 32),
    }
    for layer in range(2):
        block = f"model.layers.{layer}."
        for name, rows, columns in (("q", 32, 32), ("k", 16, 32), ("v", 16, 32)):
            shapes[f"{block}self_attn.{name}_proj.weight"] = (rows, columns)
            shapes[f"{block}self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{block}self_attn.o_proj.weight"] = (32, 32)
        for name, rows, columns in (("gate", 48, 32), ("up", 48, 32), ("down", 32, 48)):
            shapes[f"{block}mlp.{name}_proj.weight"] = (rows, columns)
        shapes[f"{block}input_layernorm.weight"] = (32,)
        shapes[f"{block}post_attention_layernorm.weight"] = (32,)
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * (0.3 if len(shape) == 2 else 1.0)
        for name, shape in shapes.items()
    }


def write_dream(folder: Path, tensors: dict[str, Tensor], **changes: object) -> Path:
    """A checkpoint folder of Dream with a tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dream_json(**changes)))
    tokenizer_of(ALL_BYTES).save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors")
    return folder


def dream_written_out(tensors: dict[str, Tensor], canvas: list[int]) -> np.ndarray:
    """(T, V) outputs of one row in float64, not shifted: Qwen2's description with every position seeing every other."""

    def weight(name: str) -> np.ndarray:
        return tensors[name].double().numpy()

    def rms(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * weight(name)

    def rotate(rows: np.ndarray) -> np.ndarray:
        """Pair (i, i + half) of row t is turned by t * theta^(-2i / width), as a complex number."""
        half = rows.shape[1] // 2
        angle = np.arange(len(rows))[:, None] * 1000000.0 ** (-2 * np.arange(half) / rows.shape[1])
        turned = (rows[:, :half] + 1j * rows[:, half:]) * np.exp(1j * angle)
        return np.concatenate([turned.real, turned.imag], axis=1)

    x = weight("model.embed_tokens.weight")[canvas]
    for layer in range(2):
        block = f"model.layers.{layer}."
        h = rms(x, block + "input_layernorm.weight")
        q, k, v = (
            h @ weight(f"{block}self_attn.{name}_proj.weight").T + weight(f"{block}self_attn.{name}_proj.bias")
            for name in "qkv"
        )
        heads = np.empty_like(x)
        for head in range(4):
            own, shared = slice(8 * head, 8 * head + 8), slice(8 * (head // 2), 8 * (head // 2) + 8)
            scores = rotate(q[:, own]) @ rotate(k[:, shared]).T / np.sqrt(8)
            attention = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads[:, own] = attention / attention.sum(axis=1, keepdims=True) @ v[:, shared]
        x = x + heads @ weight(block + "self_attn.o_proj.weight").T
        h = rms(x, block + "post_attention_layernorm.weight")
        gate = h @ weight(block + "mlp.gate_proj.weight").T
        inner = gate / (1 + np.exp(-gate)) * (h @ weight(block + "mlp.up_proj.weight").T)
        x = x + inner @ weight(block + "mlp.down_proj.weight").T
    return rms(x, "model.norm.weight") @ weight("lm_head.weight").T


def encoder_tokenizer(tokens: tuple[bytes, ...] = ALL_BYTES) -> PreTrainedTokenizerFast:
    """RoBERTa's kind: special tokens first, then `tokens`; <s> and </s> around every text."""
    vocabulary = {name: number for number, name in enumerate(ENCODER_SPECIALS)}
    vocabulary |= {"".join(LETTERS[byte] for byte in token): FIRST_BYTE + n for n, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ENCODER_SPECIALS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", pad_token="<pad>", eos_token="</s>", mask_token="<mask>"
    )


def write_encoder(folder: Path, network: torch.nn.Module, tokenizer: PreTrainedTokenizerFast | None = None) -> Path:
    """A checkpoint folder as transformers' own classes write it."""
    network.save_pretrained(folder)
    (tokenizer or encoder_tokenizer()).save_pretrained(folder)
    return folder


def word_piece_tokenizer(words: tuple[str, ...]) -> PreTrainedTokenizerFast:
    """BERT's kind: [PAD], two unused places, [UNK], [CLS], [SEP], [MASK], then `words`; lower case only."""
    names = ("[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocabulary = {name: number for number, name in enumerate((*names, *words))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 5), ("[CLS]", 4))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names if "unused" not in name])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
