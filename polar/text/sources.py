"""Where the schemes get their laws and pools from: a language model, or the record of an earlier walk.

The canvas of a step is the context, the tokens of the block so far, and masks to the end of the block of L tokens. The
context is the prompt and all earlier blocks, as far as the model can read: its last max_length - L tokens. Both ends
build the same canvases. In exact arithmetic they get the same numbers on any machines. In floats they do as long as
they use the same software on the same kind of machine; where that is not sure, the sender passes the record on
(`polar.text.records`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from polar.text.records import Asking
from polar.text.schemes.stream import Tokens
from polar.text.vocabulary import Vocabulary
from wm_env.common.arrays import Floats, Ints
from wm_env.lm.models.exact.law import masses
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.pools.candidates import Pool, make_pools
from wm_env.lm.pools.settings import PoolSettings
from wm_env.lm.text import token_bytes

MASS_BITS = 48
"""The law of a token is quantised to multiples of 2^-48, the least probability that differs from none."""

_FINE_BITS = 60

Answer = TypeVar("Answer")
Result = TypeVar("Result")


@dataclass(frozen=True)
class QuantisedLaw:
    """A law of tokens as cumulative integers in the order of ranks, shape (tokens + 1,), from 0 to about
    2^`MASS_BITS`, which is the whole mass."""

    cumulative: Ints

    def at(self, ranks: Ints) -> list[int]:
        """As in `TokenLaw`."""
        marks: list[int] = self.cumulative[ranks].tolist()
        return marks


def quantise(log2_prob: Floats) -> QuantisedLaw:
    """Round the cumulative law down to multiples of 2^-`MASS_BITS`.

    It is summed in integers of 2^-60, so that equal laws give equal integers on every machine. The mass of any range
    of V ranks, so of any prefix, is off by less than 2^-48 + V 2^-61.
    """
    sums = masses(torch.from_numpy(log2_prob), _FINE_BITS).cumsum(0).numpy()
    return QuantisedLaw(np.concatenate([np.zeros(1, dtype=np.int64), sums >> (_FINE_BITS - MASS_BITS)]))


@dataclass(frozen=True)
class ModelSource:
    """A language model that continues one prompt.

    Attributes:
        lm: the model.
        vocabulary: the tokens that it may say, by the order of their bytes.
        prompt: token ids of the prompt.
        block_length: L.
        temperature: tau.
    """

    lm: MaskedLM
    vocabulary: Vocabulary
    prompt: Tokens
    block_length: int
    temperature: float

    def law(self, tokens: Tokens) -> QuantisedLaw:
        """The law of the token after `tokens`."""
        canvas, position = self.canvas(tokens)
        law = self.lm.log2_probs(torch.tensor([canvas]), position, self.temperature)[0]
        return quantise(law.cpu().numpy()[self.vocabulary.ids])

    def canvas(self, tokens: Tokens) -> tuple[Tokens, int]:
        """The canvas after `tokens`, and the position of the next one."""
        begun = len(tokens) % self.block_length
        context = self.context(tokens[: len(tokens) - begun])
        masks = (self.lm.mask_id,) * (self.block_length - begun)
        return context + tokens[len(tokens) - begun :] + masks, len(context) + begun

    def context(self, tokens: Tokens) -> Tokens:
        """What the model sees before the block that follows `tokens`, whole blocks."""
        return (self.prompt + tokens)[-(self.lm.max_length - self.block_length) :]


def open_vocabulary(lm: MaskedLM) -> Vocabulary:
    """The tokens that `lm` may say."""
    banned = lm.banned.tolist()
    return Vocabulary({token: string for token, string in token_bytes(lm.tokenizer).items() if not banned[token]})


@dataclass(frozen=True)
class PoolSource:
    """The pools of candidate blocks of one text.

    Attributes:
        model: the model and the prompt.
        token_bytes: `wm_env.lm.text.token_bytes` of the model's tokenizer.
        settings: how the candidates are chosen, with the text's own key.
    """

    model: ModelSource
    token_bytes: dict[int, bytes]
    settings: PoolSettings

    def pool(self, tokens: Tokens) -> Pool:
        """The candidates of the block that follows `tokens`."""
        context = np.array([self.model.context(tokens)], dtype=np.int64).reshape(1, -1)
        return make_pools(self.model.lm, self.token_bytes, context, self.settings)[0]


def drive(asking: Asking[Answer, Result], answer: Callable[[Tokens], Answer]) -> Result:
    """Run a walk to its end, with `answer` for its questions."""
    try:
        question = next(asking)
        while True:
            question = asking.send(answer(question))
    except StopIteration as stop:
        result: Result = stop.value
        return result
