"""Where each word of an edited text stood on the tape: a hidden Markov model, forward and backward.

The states after a word are: *outside*, as long as the marked text has not begun; *kept*, word w of the tape;
*replaced*, another word in its place; *extra*, put in after word w; *stray*, in a passage that the marked text was
mixed with, or behind its end.

The model is only a weighting. Every path uses a word of the tape at most once, and the weights of all paths sum to at
most 1, so the sum over the paths of the product of their likelihood ratios is an e-value as each ratio is: without the
key its mean is at most 1, whatever the weights are. The same holds for the factor by which it rises when places come in
that had not been looked at.
"""

from dataclasses import dataclass

import numpy as np

from wm_env.common.arrays import Floats


@dataclass(frozen=True)
class EditModel:
    """How often a text is edited, as probabilities at a word.

    Attributes:
        replaced: another word stands in its place.
        deleted: at least one word of the tape is skipped before it.
        added: an extra word comes.
        more: another one is deleted, or comes, after the first.
        stray: a stray passage begins.
        back: it ends.
        enter: the marked text begins, if it did not with the first word (`start`).
        start: it begins with the first word.
    """

    replaced: float
    deleted: float
    added: float
    more: float = 0.15
    stray: float = 0.002
    back: float = 0.01
    enter: float = 0.01
    start: float = 0.5


EDIT_MODELS = (
    EditModel(replaced=0.02, deleted=0.005, added=0.005),
    EditModel(replaced=0.12, deleted=0.01, added=0.01),
    EditModel(replaced=0.3, deleted=0.02, added=0.02),
    EditModel(replaced=0.05, deleted=0.1, added=0.1),
    EditModel(replaced=0.2, deleted=0.15, added=0.15),
)

MOST_SKIPPED = 6
"""Words that one deletion skips at most."""


@dataclass(frozen=True)
class Ratios:
    """Likelihood ratios of word j at word w of the tape, shape (words, tape words).

    Attributes:
        known: if the word before is the one that stood before on the tape.
        unknown: if it is not, so that the place of the token that opens the word is uncertain.
    """

    known: Floats
    unknown: Floats


@dataclass(frozen=True)
class Alignment:
    """What is known about the words of a text.

    Attributes:
        log2_evidence: log2 of the e-value for "marked" against "not marked".
        known: probability that word j is word w of the tape, as it was, and so is the word before, shape (words, tape
            words).
        unknown: the same where the word before is another one.
    """

    log2_evidence: float
    known: Floats
    unknown: Floats

    @property
    def kept(self) -> Floats:
        """Probability that each word is the sender's."""
        total: Floats = self.known.sum(axis=1) + self.unknown.sum(axis=1)
        return total


def start_law(size: int, start: int | None = 0) -> Floats:
    """Where on the tape the first kept word stands: at `start`, soon after it, or anywhere; anywhere if None."""
    anywhere = np.full(size, 1.0 / size)
    if start is None:
        return anywhere
    near = np.zeros(size)
    near[start:] = 0.5 ** np.arange(1.0, size - start + 1)
    near[start] += 1.0
    law: Floats = (near / near.sum() + anywhere) / 2
    return law


class _Weights:
    """Weights of going on after 0, 1, ... skipped words: after a word of the tape, and after an extra one."""

    def __init__(self, model: EditModel, size: int) -> None:
        lengths = model.more ** np.arange(MOST_SKIPPED)
        skips = np.concatenate([[1 - model.deleted], model.deleted * lengths / lengths.sum()])
        self.after_tape = (1 - model.added - model.stray) * skips
        self.after_extra = (1 - model.more) * skips
        self.straight = self.after_tape[0]
        self.after_kept = self.after_tape.copy()
        self.after_kept[0] = 0.0
        self.back = model.back / size


class _Forward:
    """The forward pass; every row of weights is divided by `scale`, so that it sums to 1."""

    def __init__(self, ratios: Ratios, model: EditModel, begin: Floats) -> None:
        length, size = ratios.known.shape
        weights = _Weights(model, size)
        self.known, self.unknown, self.scale = np.zeros((length, size)), np.zeros((length, size)), np.zeros(length)
        outside, (kept, replaced, extra, stray) = 1.0, np.zeros((4, size))
        straight = np.zeros(size)
        for word in range(length):
            enter = model.enter if word else model.start
            jumped = (outside * enter) * begin
            if word:
                straight[1:] = weights.straight * kept[:-1]
                jumped[1:] += np.convolve(kept, weights.after_kept)[: size - 1]
                jumped[1:] += np.convolve(replaced, weights.after_tape)[: size - 1]
                jumped[1:] += np.convolve(extra, weights.after_extra)[: size - 1]
                jumped[1:] += weights.back * np.cumsum(stray)[:-1]
            on_tape = kept + replaced
            extra = model.more * extra + model.added * on_tape
            stray = (1 - model.back) * stray + model.stray * on_tape
            known = (1 - model.replaced) * straight * ratios.known[word]
            unknown = (1 - model.replaced) * jumped * ratios.unknown[word]
            kept, replaced = known + unknown, model.replaced * (straight + jumped)
            outside *= 1 - enter
            total = outside + (kept + replaced + extra + stray).sum()
            kept, replaced, extra, stray, outside = (part / total for part in (kept, replaced, extra, stray, outside))
            self.known[word], self.unknown[word], self.scale[word] = known / total, unknown / total, total

    @property
    def log2_evidence(self) -> float:
        return float(np.log2(self.scale).sum())


def evidence(ratios: Ratios, model: EditModel, begin: Floats) -> float:
    """log2 of the e-value of a text, as `align` gives it."""
    return _Forward(ratios, model, begin).log2_evidence


def align(ratios: Ratios, model: EditModel, begin: Floats) -> Alignment:
    """The posterior of the words of a text.

    Args:
        ratios: likelihood ratio of each word at each word of the tape.
        model: how often edits are.
        begin: law of the tape word of the first kept word.
    """
    length, size = ratios.known.shape
    forward = _Forward(ratios, model, begin)
    weights = _Weights(model, size)
    kept, replaced, extra, stray = np.ones((4, size))
    for word in range(length - 1, 0, -1):
        forward.known[word] *= kept
        forward.unknown[word] *= kept
        going = model.replaced * replaced
        straight = _ahead((1 - model.replaced) * ratios.known[word] * kept + going)
        jumped = _ahead((1 - model.replaced) * ratios.unknown[word] * kept + going)
        aside = model.added * extra + model.stray * stray
        kept, replaced, extra, stray = (
            part / forward.scale[word]
            for part in (
                weights.straight * straight + _skipping(jumped, weights.after_kept) + aside,
                _skipping(jumped, weights.after_tape) + aside,
                _skipping(jumped, weights.after_extra) + model.more * extra,
                weights.back * np.cumsum(jumped[::-1])[::-1] + (1 - model.back) * stray,
            )
        )
    forward.known[0] *= kept
    forward.unknown[0] *= kept
    return Alignment(forward.log2_evidence, forward.known, forward.unknown)


def _ahead(values: Floats) -> Floats:
    return np.append(values[1:], 0.0)


def _skipping(values: Floats, weights: Floats) -> Floats:
    """sum_a weights[a] values[w + a]."""
    return np.convolve(values[::-1], weights)[: len(values)][::-1]
