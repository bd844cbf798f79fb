"""A checkpoint of LLaDA-8B's exact shape with random weights: what a speed or a memory figure needs of the real one.

It has the published configuration, the 291 tensors under their published names in six bf16 shards, and a byte-level
tokenizer of 126,349 tokens, of which all but the last 269 are made of ASCII letters.
"""

import itertools
import json
import math
import string
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from wm_env.common.files import make_folder
from wm_env.lm.models.llada_config import LLaDAConfig, tensor_names
from wm_env.lm.models.network import build_network

TEXT_TOKENS, ALL_TOKENS, MASK_ID = 126_080, 126_349, 126_336
SHARDS = 6


def llada_8b(layers: int = 32) -> LLaDAConfig:
    """The configuration of LLaDA-8B, or of its first layers."""
    return LLaDAConfig(
        d_model=4096,
        n_layers=layers,
        n_heads=32,
        n_kv_heads=32,
        mlp_hidden_size=12288,
        vocab_size=126464,
        embedding_size=126464,
        max_sequence_length=4096,
        mask_token_id=MASK_ID,
        eos_token_id=126081,
        rope_theta=500000.0,
        rms_norm_eps=1e-5,
        weight_tying=False,
    )


def write_random_llada(folder: Path, config: LLaDAConfig, device: str, seed: int = 0) -> None:
    """Write the checkpoint; weights are drawn on `device` so that hidden states keep their size from layer to layer."""
    if (folder / "config.json").exists():
        raise FileExistsError(f"{folder} holds a model: name another folder")
    make_folder(folder)
    (folder / "config.json").write_text(json.dumps(config.to_json(), indent=2))
    _tokenizer().save_pretrained(folder)
    shapes = {name: tensor.shape for name, tensor in build_network(config, "meta").state_dict().items()}
    generator = torch.Generator(device).manual_seed(seed)
    names = list(tensor_names(config).items())
    size = -(-len(names) // SHARDS)
    weight_map: dict[str, str] = {}
    for number in range(SHARDS):
        part = {}
        for name, llama in names[number * size : (number + 1) * size]:
            shape = shapes[llama]
            # The head is wider, so that the law over tokens is not flat.
            scale = 1.0 if "wte" in name else (4.0 if ".blocks." not in name else 1.0) / math.sqrt(shape[-1])
            tensor = (
                torch.randn(shape, generator=generator, device=device) * scale if len(shape) == 2 else torch.ones(shape)
            )
            part[name] = tensor.to(torch.bfloat16).cpu()
        file = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _tokenizer() -> PreTrainedTokenizerFast:
    letters = bytes_to_unicode()
    words = itertools.chain(
        letters.values(), *(map("".join, itertools.product(string.ascii_letters, repeat=n)) for n in (2, 3))
    )
    vocabulary: dict[str, int] = {}
    for word in words:
        vocabulary.setdefault(word, len(vocabulary))
        if len(vocabulary) == TEXT_TOKENS:
            break
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [f"<|reserved_{number}|>" for number in range(TEXT_TOKENS, ALL_TOKENS)]
    names[:2] = "<|startoftext|>", "<|endoftext|>"
    names[MASK_ID - TEXT_TOKENS] = "<|mdm_mask|>"
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
