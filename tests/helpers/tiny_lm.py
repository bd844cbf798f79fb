"""A tiny random LLaDA checkpoint with a crafted byte-level tokenizer, and its law by brute force."""

from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from wm_env.common.files import write_json
from wm_env.lm.models.llada_config import LLaDAConfig, tensor_names
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.network import build_network
from wm_env.lm.models.weights import save_tensors
from wm_env.lm.pretrain.checkpoint import save_tokenizer

LETTERS = bytes_to_unicode()

# Six tokens of text: "ab" has two spellings, and the two halves of "é" are no text on their own.
TINY_TOKENS = (b"a", b"b", b" ", b"ab", "é".encode()[:1], "é".encode()[1:])
ALL_BYTES = tuple(bytes([value]) for value in range(256))


def tokenizer_of(tokens: tuple[bytes, ...], merges: tuple[tuple[bytes, bytes], ...] = ()) -> PreTrainedTokenizerFast:
    """Ids in the order of `tokens`, then <|endoftext|> and <|mdm_mask|>."""

    def word(token: bytes) -> str:
        return "".join(LETTERS[byte] for byte in token)

    vocabulary = {word(token): number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [(word(first), word(second)) for first, second in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<|endoftext|>", "<|mdm_mask|>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def write_lm(
    folder: Path,
    tokens: tuple[bytes, ...] = TINY_TOKENS,
    merges: tuple[tuple[bytes, bytes], ...] = ((b"a", b"b"),),
    seed: int = 0,
    scale: float = 0.4,
) -> Path:
    """Two random layers of width 16 over 40 positions; one more row of embeddings than there are tokens."""
    mask_id = len(tokens) + 1
    config = LLaDAConfig(
        d_model=16,
        n_layers=2,
        n_heads=2,
        n_kv_heads=2,
        mlp_hidden_size=24,
        vocab_size=mask_id + 2,
        embedding_size=mask_id + 2,
        max_sequence_length=40,
        mask_token_id=mask_id,
        eos_token_id=mask_id - 1,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        weight_tying=False,
    )
    network = build_network(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, scale, generator=generator)
    state = network.state_dict()
    save_tokenizer(folder, tokenizer_of(tokens, merges))
    write_json(folder / "config.json", config.to_json())
    tensors = {llada: state[llama].contiguous() for llada, llama in tensor_names(config).items()}
    save_tensors(folder / "model.safetensors", tensors)
    return folder


def brute_force(lm, allowed: int, context: list[int], length: int, temperature: float) -> dict[tuple[int, ...], float]:
    """log2 probability of every block of `length` of the tokens 0..allowed-1: a full forward a prefix, own softmax.

    The network of transformers computes, whatever `lm` computes in.
    """
    network = load_lm(lm.name, arithmetic="float").network
    scores: dict[tuple[int, ...], float] = {(): 0.0}
    for step in range(length):
        longer = {}
        for prefix, score in scores.items():
            canvas = torch.tensor([[*context, *prefix, *[lm.mask_id] * (length - step)]])
            with torch.no_grad():
                logits = network(canvas, use_cache=False).logits[0, len(context) + step, :allowed]
            scaled = logits.numpy().astype(np.float64) / temperature
            weights = np.exp(scaled - scaled.max())
            for token, probability in enumerate(weights / weights.sum()):
                longer[*prefix, token] = score + np.log2(probability)
        scores = longer
    return scores
