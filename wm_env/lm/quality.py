"""How good a masked language model is at what the package does with it: left-to-right blocks.

python -m wm_env.lm.quality mini --text valid.txt      exact bits per token and per byte
python -m wm_env.lm.quality mini --prompts prompts.txt continuations to read
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wm_env.common.command import exit_code, quitting_on_interrupt, run_command, show
from wm_env.common.files import check_seed

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    import tyro
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

    from wm_env.common.arguments import parse
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.models.masked_lm import MaskedLM
    from wm_env.lm.pretrain.corpus import encode_plainly, read_documents
    from wm_env.lm.pretrain.objective import BLOCK
    from wm_env.lm.prompts import read_prompt_file
    from wm_env.lm.text import token_bytes


MOST_WINDOWS = 100_000
"""Most windows that are scored, all in memory at once; a standard error is then 1/316 of the spread of the windows."""


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


def measure_quality(lm: MaskedLM, windows: Tensor, context: int = 48) -> Quality:
    """Bits per token and per byte of the windows' last tokens given `context` tokens before them, at temperature 1."""
    bits = chain_rule_bits(lm, windows, context)
    per_window = bits.sum(dim=1).numpy()
    spelling = token_bytes(lm.tokenizer)
    lengths = np.array([sum(len(spelling[token]) for token in row) for row in windows[:, context:].tolist()])
    ratio = per_window.sum() / lengths.sum()
    root = math.sqrt(len(windows))
    return Quality(
        bits_per_token=float(bits.mean()),
        bits_per_token_error=float(per_window.std(ddof=1) / bits.shape[1] / root),
        bits_per_byte=float(ratio),
        bits_per_byte_error=float((per_window - ratio * lengths).std(ddof=1) / lengths.mean() / root),
        windows=len(windows),
    )


def sample(
    lm: MaskedLM, prompt: str, blocks: int, block_length: int, temperature: float, generator: torch.Generator
) -> str:
    """Continue `prompt` by that many blocks, one after the other; inside a block from left to right, one token a step.

    Raises:
        ValueError: prompt and continuation are longer than the model reads.
    """
    canvas = torch.tensor([lm.encode(prompt)], dtype=torch.int64)
    for _ in range(blocks):
        canvas = torch.cat((canvas, torch.full((1, block_length), lm.mask_id)), dim=1)
        for position in range(canvas.shape[1] - block_length, canvas.shape[1]):
            law = lm.log2_probs(canvas, position, temperature).cpu().exp2()
            canvas[0, position] = torch.multinomial(law[0], 1, generator=generator)
    return str(lm.tokenizer.decode(canvas[0].tolist()))


@dataclass(frozen=True)
class Options:
    """Measure a masked language model on text, or let it continue prompts."""

    model: tyro.conf.Positional[str]
    """mini, the folder of a checkpoint, or a hub id."""
    text: Path | None = None
    """Held-out text (plain, .gz or .xz): prints exact chain-rule bits of blocks of 8 tokens."""
    windows: int = 2048
    """Blocks of the text that are scored."""
    context: int = 48
    """Clean tokens before each block."""
    prompts: Path | None = None
    """File with a prompt a line, or *.jsonl with a "text" field: the first --samples of them are continued."""
    samples: int = 5
    """Most prompts to continue."""
    tokens: int = 64
    """Length of a continuation, a multiple of 8."""
    temperature: float = 1.0
    """tau of the law the continuations are drawn from."""
    seed: int = 0
    """Chooses the windows and draws the continuations."""
    device: str = "cpu"
    """Where the model runs."""
    arithmetic: Literal["exact", "float"] | None = None
    """exact or float32 arithmetic; by default exact for LLaDA and Dream."""


def quality_lines(options: Options) -> Iterator[str]:
    """The lines the command prints, each as soon as it is known.

    Raises:
        ValueError: model, text or numbers do not fit.
        OSError: a file cannot be read.
    """
    if options.text is None and options.prompts is None:
        raise ValueError("give text to measure the model, prompts to read it, or both")
    if min(options.context, options.samples, options.tokens) < 1:
        raise ValueError("context, samples and tokens must be at least 1")
    if not 2 <= options.windows <= MOST_WINDOWS:
        raise ValueError(f"windows={options.windows}: a number from 2 to {MOST_WINDOWS} is needed")
    if options.tokens % BLOCK:
        raise ValueError(f"tokens={options.tokens}: texts are made of blocks of {BLOCK} tokens, give a multiple")
    check_seed(options.seed)
    prompts = () if options.prompts is None else read_prompt_file(options.prompts)[: options.samples]
    lm = load_lm(options.model, device=options.device, arithmetic=options.arithmetic)
    if options.text is not None:
        length = options.context + BLOCK
        windows = cut_windows(lm.tokenizer, options.text, length, options.windows, options.seed)
        quality = measure_quality(lm, windows, options.context)
        yield (
            f"{quality.bits_per_token:.4f} +- {quality.bits_per_token_error:.4f} bits per token, "
            f"{quality.bits_per_byte:.4f} +- {quality.bits_per_byte_error:.4f} bits per byte "
            f"({quality.windows} blocks of {BLOCK} tokens after {options.context}; standard errors)"
        )
    for number, prompt in enumerate(prompts):
        generator = torch.Generator().manual_seed(options.seed + number)
        text = sample(lm, prompt, options.tokens // BLOCK, BLOCK, options.temperature, generator)
        yield f"{prompt} |{text.removeprefix(prompt)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: exit code 0 when done, 1 if it fails, 2 for bad arguments or input, 130 after Ctrl-C."""
    with quitting_on_interrupt(__name__):
        options = parse(Options, prog="python -m wm_env.lm.quality", args=arguments)

    def work() -> None:
        for line in quality_lines(options):
            show(line)

    return exit_code(work)


if __name__ == "__main__":
    run_command(main)
