"""Writing marked texts with a masked-diffusion model: from left to right, or most confident places first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from polar.text.schemes.robust.writer import Writer
from wm_env.common.arrays import Floats, Ints
from wm_env.lm.models.marginals import laws_at
from wm_env.lm.models.masked_lm import MaskedLM


class Chooser(Protocol):
    """Chooses the tokens of a text from left to right, as a `Writer` does."""

    def choose(self, law: Floats) -> int:
        """The next token; `law` (V,) holds its probabilities, which need not sum to 1."""


@dataclass(frozen=True)
class Sampling:
    """The law that is sampled from, and kept.

    Attributes:
        temperature: tau of softmax(logits / tau).
        top_p: only the likeliest tokens whose mass reaches this are kept.
        top_k: only so many of the likeliest tokens are kept; None for all.
        block_length: L, masks that the model sees at once.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    block_length: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: a number above 0, at most 1, is needed")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: a number of at least 1 is needed")
        if self.block_length < 1:
            raise ValueError(f"block_length={self.block_length}: a number of at least 1 is needed")


def truncated(law: Floats, top_p: float, top_k: int | None) -> Floats:
    """A law (V,) cut to its `top_k` likeliest tokens, then to the fewest of these that hold `top_p` of their mass.

    Of equally likely tokens that with the lower id comes first. The result is not normalised.
    """
    if top_p == 1 and top_k is None:
        return law
    order = np.argsort(-law, kind="stable")[:top_k]
    before = np.cumsum(law[order]) - law[order]
    kept = order[before < top_p * law[order].sum()]
    result = np.zeros_like(law)
    result[kept] = law[kept]
    return result


def write_forward(lm: MaskedLM, contexts: Ints, writers: Sequence[Chooser], length: int, sampling: Sampling) -> Ints:
    """Continue contexts of equal length, shape (N, C), by `length` tokens each from left to right: shape (N, length).

    The canvas of a token is the context, the block so far and masks to the end of the block of L tokens; of a long text
    the model sees the end.
    """
    tokens = np.empty((len(contexts), 0), dtype=np.int64)
    for number in range(length):
        begun = number % sampling.block_length
        seen = np.concatenate([contexts, tokens], axis=1)[:, -(lm.max_length - sampling.block_length + begun) :]
        masks = np.full((len(contexts), sampling.block_length - begun), lm.mask_id)
        canvas = torch.from_numpy(np.concatenate([seen, masks], axis=1))
        laws = _laws(lm, canvas, seen.shape[1], sampling)
        chosen = [writer.choose(law) for writer, law in zip(writers, laws, strict=True)]
        tokens = np.concatenate([tokens, np.array(chosen)[:, None]], axis=1)
    return tokens


def _laws(lm: MaskedLM, canvas: Tensor, position: int, sampling: Sampling, rows: int = 50) -> list[Floats]:
    parts = [lm.log2_probs(part, position, sampling.temperature).cpu().numpy() for part in canvas.split(rows)]  # type: ignore[no-untyped-call]
    return [truncated(np.exp2(row), sampling.top_p, sampling.top_k) for part in parts for row in part]


def write_confident(lm: MaskedLM, context: Sequence[int], writer: Writer, length: int, sampling: Sampling) -> list[int]:
    """Continue one context as LLaDA does: block by block, in each block the place whose law is surest first.

    A place is sure by the probability of its likeliest token, so the order does not depend on draws that are thrown
    away: each place is drawn once, and the law of this sampler is kept exactly. (LLaDA's own code ranks places by the
    probability of a draw; where it draws at temperature 0 the two are the same.) The writer's clock must be "tokens".
    """
    tokens: list[int] = []
    while len(tokens) < length:
        seen = [*context, *tokens][-(lm.max_length - sampling.block_length) :]
        block = [lm.mask_id] * sampling.block_length
        left = list(range(sampling.block_length))
        while left:
            canvas = torch.tensor([seen + block])
            laws = laws_at(lm, canvas, [len(seen) + place for place in left], sampling.temperature).numpy()
            surest = int(laws.max(axis=1).argmax())
            place = left.pop(surest)
            law = truncated(laws[surest], sampling.top_p, sampling.top_k)
            block[place] = writer.choose_at(law, len(tokens) + place)
        tokens += block
    return tokens[:length]
