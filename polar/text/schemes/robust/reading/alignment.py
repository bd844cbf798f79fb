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

from polar.text.schemes.robust.reading.passes import backward_pass, forward_pass
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
    """An edit model as the passes take it."""

    def __init__(self, model: EditModel, length: int, size: int) -> None:
        lengths = model.more ** np.arange(MOST_SKIPPED)
        skips = np.concatenate([[1 - model.deleted], model.deleted * lengths / lengths.sum()])
        after_tape = (1 - model.added - model.stray) * skips
        self.straight = float(after_tape[0])
        # To go on from a kept word to the next one is known, and counted apart.
        after_kept = np.append(0.0, after_tape[1:])
        self.skips = np.stack([after_kept, after_tape, (1 - model.more) * skips])
        self.model = np.array(
            [model.replaced, model.added, model.more, model.stray, model.back, model.back / size], dtype=np.float64
        )
        self.enter = np.full(length, model.enter)
        self.enter[:1] = model.start


def evidence(ratios: Ratios, model: EditModel, begin: Floats) -> float:
    """log2 of the e-value of a text, as `align` gives it."""
    *_, scale = _forward(ratios, _Weights(model, *ratios.known.shape), begin)
    return float(np.log2(scale).sum())


def align(ratios: Ratios, model: EditModel, begin: Floats) -> Alignment:
    """The posterior of the words of a text.

    Args:
        ratios: likelihood ratio of each word at each word of the tape.
        model: how often edits are.
        begin: law of the tape word of the first kept word.
    """
    weights = _Weights(model, *ratios.known.shape)
    known, unknown, scale = _forward(ratios, weights, begin)
    backward_pass(ratios.known, ratios.unknown, weights.skips, weights.straight, weights.model, scale, known, unknown)
    return Alignment(float(np.log2(scale).sum()), known, unknown)


def _forward(ratios: Ratios, weights: _Weights, begin: Floats) -> tuple[Floats, Floats, Floats]:
    """Weights of known and unknown words, and what each row was divided by so that all its weights sum to 1."""
    length, size = ratios.known.shape
    known, unknown, scale = np.empty((length, size)), np.empty((length, size)), np.empty(length)
    forward_pass(
        ratios.known,
        ratios.unknown,
        begin,
        weights.enter,
        weights.skips,
        weights.straight,
        weights.model,
        known,
        unknown,
        scale,
    )
    return known, unknown, scale
