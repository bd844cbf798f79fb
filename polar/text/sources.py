"""Where the schemes get their laws and pools from: a language model, or the record of an earlier walk.

The canvas of a step is the context, the tokens of the block so far, and masks to the end of the block of L tokens. The
context is the prompt and all earlier blocks, as far as the model can read: its last max_length - L tokens. Both ends
build the same canvases. In exact arithmetic they get the same numbers on any machines. In floats they do as long as
they use the same software on the same kind of machine; where that is not sure, the sender passes the record on
(`polar.text.records`).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from polar.text.arithmetic import NoEntropyError
from polar.text.canonical import CanonicalRule
from polar.text.scheme import Tokens
from polar.text.settings import LawSettings
from polar.text.vocabulary import Vocabulary
from wm_env.common.arrays import Floats, Ints
from wm_env.lm.models.exact.law import masses
from wm_env.lm.models.masked_lm import MaskedLM

MASS_BITS = 48
"""The law of a token is quantised to multiples of 2^-48, the least probability that differs from none."""

_FINE_BITS = 60


@dataclass(frozen=True)
class QuantisedLaw:
    """A law of tokens as integers.

    Attributes:
        cumulative: masses of all tokens of smaller rank, shape (tokens + 1,), from 0 up, at most 2^`MASS_BITS`.
        kept: the share of the model's law that the condition on the form of the text has left.
    """

    cumulative: Ints
    kept: float = 1.0

    def at(self, ranks: Ints) -> list[int]:
        """As in `TokenLaw`."""
        marks: list[int] = self.cumulative[ranks].tolist()
        return marks


def integer_masses(log2_prob: Floats) -> Ints:
    """Masses in multiples of 2^-`MASS_BITS`, from the cumulative law rounded down.

    It is summed in integers of 2^-60, so that equal laws give equal integers on every machine. The mass of any range
    of V ranks, so of any prefix, is off by less than 2^-48 + V 2^-61.
    """
    sums = masses(torch.from_numpy(log2_prob), _FINE_BITS).cumsum(0).numpy()
    quantised: Ints = np.diff(sums >> (_FINE_BITS - MASS_BITS), prepend=0)
    return quantised


def most_likely_mass(law: Ints, ids: Ints, top_p: float) -> Ints:
    """The masses of the fewest likeliest tokens that together have the share `top_p`, ties broken by token ids; 0 for
    the others.
    """
    if top_p >= 1:
        return law
    order = np.lexsort((ids, -law))
    count = int(np.searchsorted(law[order].cumsum(), math.ceil(top_p * int(law.sum())))) + 1
    kept = np.zeros_like(law)
    kept[order[:count]] = law[order[:count]]
    return kept


def restrict(law: Ints, ids: Ints, top_p: float, allowed: NDArray[np.bool_] | None) -> QuantisedLaw:
    """The law of the likeliest tokens, given that they are allowed; if none of them is, that of all allowed ones.

    Raises:
        NoEntropyError: no token is.
    """
    likely = most_likely_mass(law, ids, top_p)
    left = likely if allowed is None else np.where(allowed, likely, 0)
    kept = int(left.sum()) / int(likely.sum())
    if not kept and allowed is not None:
        left = np.where(allowed, law, 0)
    if not left.any():
        raise NoEntropyError("no token of the model keeps the text in canonical form; use another prompt")
    return QuantisedLaw(np.concatenate([np.zeros(1, dtype=np.int64), left.cumsum()]), kept)


@dataclass(frozen=True)
class ModelSource:
    """A language model that continues one prompt.

    Attributes:
        lm: the model.
        vocabulary: the tokens that it may say, by the order of their bytes.
        prompt: token ids of the prompt.
        rule: which tokens keep a text in canonical form.
        settings: of the law of tokens.
    """

    lm: MaskedLM
    vocabulary: Vocabulary
    prompt: Tokens
    settings: LawSettings
    rule: CanonicalRule

    def law(self, tokens: Tokens) -> QuantisedLaw:
        """The law of the token after `tokens`."""
        canvas, position = self.canvas(tokens)
        law = self.lm.log2_probs(torch.tensor([canvas]), position, self.settings.temperature)[0]
        quantised = integer_masses(law.cpu().numpy()[self.vocabulary.ids])
        allowed = None if self.settings.form == "any" else self.rule.after(self.vocabulary.text(tokens))
        return restrict(quantised, self.vocabulary.ids, self.settings.top_p, allowed)

    def canvas(self, tokens: Tokens) -> tuple[Tokens, int]:
        """The canvas after `tokens`, and the position of the next one."""
        begun = len(tokens) % self.settings.block_length
        context = self.context(tokens[: len(tokens) - begun])
        masks = (self.lm.mask_id,) * (self.settings.block_length - begun)
        return context + tokens[len(tokens) - begun :] + masks, len(context) + begun

    def context(self, tokens: Tokens) -> Tokens:
        """What the model sees before the block that follows `tokens`, whole blocks."""
        return (self.prompt + tokens)[-(self.lm.max_length - self.settings.block_length) :]


def open_vocabulary(lm: MaskedLM) -> Vocabulary:
    """The vocabulary of texts of `lm`: the byte strings of all tokens that are not banned."""
    banned = lm.banned.tolist()
    return Vocabulary({token: string for token, string in lm.text_tokenizer.strings.items() if not banned[token]})
