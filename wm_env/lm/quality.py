"""How good a masked language model is at what the package does with it: left-to-right blocks, bits and samples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from wm_env.lm.corpus import encode_plainly, read_documents
from wm_env.lm.llada import MaskedLM


@dataclass(frozen=True)
class Quality:
    """Exact chain-rule figures over windows of text, with the standard errors of their means over the windows."""

    bits_per_token: float
    bits_per_token_error: float
    bits_per_byte: float
    bits_per_byte_error: float
    windows: int


def cut_windows(tokenizer: PreTrainedTokenizerFast, text: Path, length: int, count: int, seed: int) -> Tensor:
    """`count` random windows of `length` tokens, (count, length) int64, uniform over all positions inside documents.

    Raises:
        ValueError: the text has no document of `length` tokens.
        OSError: the text cannot be read.
    """
    documents = encode_plainly(tokenizer, list(read_documents(text)))
    room = np.array([max(0, len(document) - length + 1) for document in documents], dtype=np.int64)
    if room.sum() == 0:
        raise ValueError(f"{text} has no document of {length} tokens or more")
    ends = np.cumsum(room)
    places = np.random.default_rng(seed).integers(ends[-1], size=count)
    which = np.searchsorted(ends, places, side="right")
    starts = places - (ends - room)[which]
    return torch.tensor([documents[d][s : s + length] for d, s in zip(which, starts, strict=True)])


def chain_rule_bits(lm: MaskedLM, windows: Tensor, context: int, temperature: float = 1.0, rows: int = 512) -> Tensor:
    """-log2 p(x_i | context, x_<i, masks at i..L), exactly, one commit per step from left to right.

    Args:
        lm: the model.
        windows: (N, context + L) int64; the last L tokens are scored.
        context: clean tokens before the block.
        temperature: tau of the model's law.
        rows: windows a forward pass takes at once; does not change the result beyond rounding.

    Returns:
        (N, L) float64 in bits, on the CPU; +inf where the text holds a banned token.
    """
    bits = torch.empty(len(windows), windows.shape[1] - context, dtype=torch.float64)
    for part in torch.split(torch.arange(len(windows)), rows):
        for step in range(bits.shape[1]):
            canvas = windows[part].clone()
            canvas[:, context + step :] = lm.mask_id
            law = lm.log2_probs(canvas, context + step, temperature).cpu()
            bits[part, step] = -law.gather(1, windows[part, context + step, None])[:, 0]
    return bits


def measure(lm: MaskedLM, windows: Tensor, context: int = 48) -> Quality:
    """Bits per token and per byte of the windows' last tokens given `context` tokens before them, at temperature 1."""
    bits = chain_rule_bits(lm, windows, context)
    per_window = bits.sum(dim=1).numpy()
    lengths = np.array([_bytes(lm.tokenizer, row[context:].tolist()) for row in windows])
    ratio = per_window.sum() / lengths.sum()
    root = math.sqrt(len(windows))
    return Quality(
        bits_per_token=float(bits.mean()),
        bits_per_token_error=float(per_window.std(ddof=1) / bits.shape[1] / root),
        bits_per_byte=float(ratio),
        bits_per_byte_error=float((per_window - ratio * lengths).std(ddof=1) / lengths.mean() / root),
        windows=len(windows),
    )


def _bytes(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> int:
    # In a byte-level BPE every character of a token's name stands for one byte.
    return sum(len(token) for token in tokenizer.convert_ids_to_tokens(ids))


def sample(lm: MaskedLM, prompt: str, tokens: int, block: int, temperature: float, generator: torch.Generator) -> str:
    """Continue `prompt` by `tokens` tokens, block after block; inside a block from left to right, one token a step.

    Raises:
        ValueError: prompt and continuation are longer than the model reads.
    """
    canvas = torch.tensor([lm.encode(prompt)], dtype=torch.int64)
    for _ in range(tokens // block):
        canvas = torch.cat((canvas, torch.full((1, block), lm.mask_id)), dim=1)
        for position in range(canvas.shape[1] - block, canvas.shape[1]):
            law = lm.log2_probs(canvas, position, temperature).cpu().exp2()
            canvas[0, position] = torch.multinomial(law[0], 1, generator=generator)
    return str(lm.tokenizer.decode(canvas[0].tolist()))
