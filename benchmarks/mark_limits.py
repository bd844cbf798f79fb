"""How much a text can say to a receiver that has the key and no model.

A token x of probability p was the winner of a race, so its number s is exponential with rate 1/p; if the receiver has
the wrong payload, with rate 1. It does not know p. With f the mixture of the former over tokens of the same kind, each
token gives log2 f(s) / e^-s bits of evidence; if a share d of the words is replaced, log2 ((1-d) f(s) / e^-s + d), and
the s of a replaced token has rate 1. A receiver that knows where each token stood, and sees all tokens depend on the
whole payload, reads a payload of k bits with c bits of check where the sum over the tokens is at least k + c bits: that
is the random code with maximum likelihood, and the limit that the tables have beside each row.
"""

from collections.abc import Sequence

import numpy as np
from mark_schemes.door import PAYLOAD_BITS
from mark_texts import MarkText, tokenizer

from polar.text.schemes.robust.randomness import Words
from polar.text.schemes.robust.reading.likelihood import Likelihood, load_likelihoods, word_ratios
from polar.text.schemes.robust.words import as_letters, split_text
from wm_env.common.arrays import Floats

CHECK_BITS = 32


def evidence(texts: Sequence[MarkText], replaced: float, likelihood: Likelihood, seed: int = 0) -> list[Floats]:
    """Evidence of each token of each text in bits, with a share of the words replaced."""
    letters = as_letters(tokenizer().strings)
    rng = np.random.default_rng(seed)
    rows = []
    for text in texts:
        words = split_text(text.tokens, letters)
        gone = (rng.random(words.words) < replaced)[words.word]
        mass = np.where(gone, 1.0, np.exp2(text.log2_mass))
        times = mass * rng.exponential(size=len(mass))
        numbers: Words = (-np.expm1(-times) * 2.0**64).clip(0, 2.0**64 - 2048).astype(np.uint64)
        ratio = word_ratios(likelihood, words.kind, numbers).astype(np.float64)
        rows.append(np.log2((1 - replaced) * ratio + replaced))
    return rows


def best_evidence(texts: Sequence[MarkText], replaced: float) -> list[Floats]:
    """The same with the table that fits the texts best."""
    tables = [evidence(texts, replaced, likelihood) for likelihood in load_likelihoods()]
    return max(tables, key=lambda rows: float(np.concatenate(rows).mean()))


def limit(texts: Sequence[MarkText], replaced: float, check_bits: int = CHECK_BITS) -> float:
    """Share of texts whose evidence reaches payload and check."""
    return float(np.mean([row.sum() >= PAYLOAD_BITS + check_bits for row in best_evidence(texts, replaced)]))


def least_tokens(texts: Sequence[MarkText], share: float, replaced: float = 0.0) -> int | None:
    """The least number of tokens of which this share of the texts reaches payload and check; None if none does."""
    sums = np.stack([row.cumsum() for row in best_evidence(texts, replaced)])
    # Evidence may fall again: what counts is the text as it is, not its best part.
    enough = np.flatnonzero((sums >= PAYLOAD_BITS + CHECK_BITS).mean(axis=0) >= share)
    return int(enough[0]) + 1 if len(enough) else None
