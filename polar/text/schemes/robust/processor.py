"""Marking in other people's programs: a `LogitsProcessor` for `generate` of transformers.

    mark = CovertWatermark(load_key(path), payload, nonce=0, tokenizer=tokenizer, temperature=0.7, top_p=0.95)
    model.generate(**inputs, logits_processor=[mark], do_sample=False)

The processor takes the place of sampling: it leaves one token at each step, the winner of the keyed race. So
temperature, top-k and top-p are given here and not to `generate`, and are applied in this order, as `generate` does;
the law that is kept is the one after them. What other processors do to the scores before is part of that law too.
Each row of a batch is a text with a nonce of its own, and so is each beam.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from polar.text.keys.key import Key
from polar.text.schemes.robust.sampling import truncated
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.schemes.robust.tape import nonces_of
from polar.text.schemes.robust.words import as_letters
from polar.text.schemes.robust.writer import Writer
from wm_env.lm.tokenizer import TextTokenizer


class CovertWatermark(LogitsProcessor):  # type: ignore[misc]
    """Marks the texts of one call of `generate`, with a total variation of 0 from plain sampling.

    Args:
        key: the shared secret.
        payload: K bits, the same in all texts of the batch.
        nonce: number of the first text; the text of row b has nonce + b. Note what was used: no nonce may come twice.
        tokenizer: of the model, a fast one of transformers or a `TextTokenizer`.
        settings: as the receiver's.
        temperature, top_k, top_p: the law that is sampled from.
    """

    def __init__(
        self,
        key: Key,
        payload: Sequence[int],
        nonce: int,
        tokenizer: Any,
        settings: RobustSettings | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
    ) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature={temperature}: a positive number is needed")
        text_tokenizer = as_text_tokenizer(tokenizer)
        letters = as_letters(text_tokenizer.strings)
        self._endings = text_tokenizer.added
        self._make: Callable[[int], Writer] = lambda row: Writer(
            key, payload, nonce + row, settings or RobustSettings(), letters
        )
        self._temperature, self._top_k, self._top_p = temperature, top_k, top_p
        self._writers: list[Writer] = []
        self._seen = torch.empty((0, 0), dtype=torch.int64)
        self._chosen: list[int] = []
        self._over: list[bool] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Logits of the next token, shape (B, V), with all but one of each row at -inf.

        A text that has ended, whose rows `generate` fills up, is left alone.

        Raises:
            ValueError: a call of `generate` is not the first one: make a new processor, with another nonce. Or
                `generate` said another token than the mark chose, as when it is forced to.
        """
        if self._writers:
            self._check_taken(input_ids)
        else:
            self._writers = [self._make(row) for row in range(len(input_ids))]
            self._over = [False] * len(input_ids)
        self._seen = input_ids.clone()
        laws = torch.softmax(scores.double() / self._temperature, dim=-1).cpu().numpy()
        marked = scores.clone()
        self._chosen = []
        for row, writer in enumerate(self._writers):
            if self._over[row]:
                self._chosen.append(-1)
                continue
            self._chosen.append(writer.choose(truncated(laws[row], self._top_p, self._top_k)))
            marked[row] = -torch.inf
            marked[row, self._chosen[row]] = 0.0
        return marked

    def _check_taken(self, input_ids: Tensor) -> None:
        """Check that the texts are those of the last step, each with the token that was chosen for it."""
        if len(input_ids) != len(self._writers) or not torch.equal(input_ids[:, :-1], self._seen):
            raise ValueError("this mark was used for other texts: make a new CovertWatermark with the next nonce")
        for row, token in enumerate(input_ids[:, -1].tolist()):
            if self._over[row] or token == self._chosen[row]:
                continue
            if token not in self._endings:
                raise ValueError(
                    f"generate said token {token} where the mark chose {self._chosen[row]}: let no processor "
                    "behind the mark change its choice"
                )
            self._over[row] = True

    @property
    def nonces_used(self) -> int:
        """How many nonces from the first one on were used up."""
        spans = [row + len(nonces_of(0, writer.words)) for row, writer in enumerate(self._writers)]
        return int(np.max(spans, initial=0))


def as_text_tokenizer(tokenizer: Any) -> TextTokenizer:
    """The `TextTokenizer` behind a fast tokenizer of transformers."""
    if isinstance(tokenizer, TextTokenizer):
        return tokenizer
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ValueError(f"{type(tokenizer).__name__} is no fast tokenizer: give one that has a tokenizer.json")
    return TextTokenizer(tokenizer.backend_tokenizer.to_str())
