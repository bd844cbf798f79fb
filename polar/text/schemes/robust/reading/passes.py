"""The two passes of the alignment, compiled: `polar.text.schemes.robust.reading.alignment` says what they compute.

Rows of weights hold the states after a word of the text: kept, replaced, extra and stray at each word of the tape.
"""

import numpy as np

from polar.compiling import compiled
from wm_env.common.arrays import Floats

KEPT, REPLACED, EXTRA, STRAY = range(4)

AFTER_KEPT, AFTER_TAPE, AFTER_EXTRA = range(3)
"""Rows of weights of going on after so many skipped words of the tape."""


@compiled
def forward_pass(
    known_ratio: Floats,
    unknown_ratio: Floats,
    begin: Floats,
    enter: Floats,
    skips: Floats,
    straight: float,
    model: Floats,
    known: Floats,
    unknown: Floats,
    scale: Floats,
) -> None:
    """Fill `known` and `unknown`, shape (words, size), and `scale`, shape (words,).

    Args:
        known_ratio, unknown_ratio: likelihood ratios, shape (words, size).
        begin: where the marked text begins, shape (size,).
        enter: probability that it begins with each word of the text, shape (words,).
        skips: shape (3, skipped words).
        straight: weight of going on from a kept word to the next one.
        model: replaced, added, more, stray, back, and back / size.
        known, unknown, scale: the results.
    """
    replaced, added, more, stray, back, return_weight = model
    length, size = known_ratio.shape
    now, then = np.zeros((4, size)), np.zeros((4, size))
    outside = 1.0
    for word in range(length):
        coming = outside * enter[word]
        strays, total = 0.0, outside - coming
        for place in range(size):
            next_one, jumped = 0.0, coming * begin[place]
            if word and place:
                next_one = straight * now[KEPT, place - 1]
                strays += now[STRAY, place - 1]
                jumped += return_weight * strays
                for skipped in range(min(place, skips.shape[1])):
                    before = place - 1 - skipped
                    jumped += (
                        skips[AFTER_KEPT, skipped] * now[KEPT, before]
                        + skips[AFTER_TAPE, skipped] * now[REPLACED, before]
                        + skips[AFTER_EXTRA, skipped] * now[EXTRA, before]
                    )
            on_tape = now[KEPT, place] + now[REPLACED, place]
            then[EXTRA, place] = more * now[EXTRA, place] + added * on_tape
            then[STRAY, place] = (1 - back) * now[STRAY, place] + stray * on_tape
            known[word, place] = (1 - replaced) * next_one * known_ratio[word, place]
            unknown[word, place] = (1 - replaced) * jumped * unknown_ratio[word, place]
            then[KEPT, place] = known[word, place] + unknown[word, place]
            then[REPLACED, place] = replaced * (next_one + jumped)
            total += then[KEPT, place] + then[REPLACED, place] + then[EXTRA, place] + then[STRAY, place]
        outside = (outside - coming) / total
        scale[word] = total
        for place in range(size):
            known[word, place] /= total
            unknown[word, place] /= total
            for state in range(4):
                now[state, place] = then[state, place] / total


@compiled
def backward_pass(
    known_ratio: Floats,
    unknown_ratio: Floats,
    skips: Floats,
    straight: float,
    model: Floats,
    scale: Floats,
    known: Floats,
    unknown: Floats,
) -> None:
    """Turn `known` and `unknown` of the forward pass into posterior probabilities; arguments as there."""
    replaced, added, more, stray, back, return_weight = model
    length, size = known_ratio.shape
    now, then = np.ones((4, size)), np.ones((4, size))
    ahead = np.zeros((2, size + 1))
    for word in range(length - 1, -1, -1):
        for place in range(size):
            known[word, place] *= now[KEPT, place]
            unknown[word, place] *= now[KEPT, place]
        if not word:
            return
        for place in range(1, size):
            going = replaced * now[REPLACED, place]
            ahead[0, place - 1] = (1 - replaced) * known_ratio[word, place] * now[KEPT, place] + going
            ahead[1, place - 1] = (1 - replaced) * unknown_ratio[word, place] * now[KEPT, place] + going
        strays = 0.0
        for place in range(size - 1, -1, -1):
            strays += ahead[1, place]
            after_kept, after_tape, after_extra = 0.0, 0.0, 0.0
            for skipped in range(min(size - place, skips.shape[1])):
                later = ahead[1, place + skipped]
                after_kept += skips[AFTER_KEPT, skipped] * later
                after_tape += skips[AFTER_TAPE, skipped] * later
                after_extra += skips[AFTER_EXTRA, skipped] * later
            aside = added * now[EXTRA, place] + stray * now[STRAY, place]
            then[KEPT, place] = (straight * ahead[0, place] + after_kept + aside) / scale[word]
            then[REPLACED, place] = (after_tape + aside) / scale[word]
            then[EXTRA, place] = (after_extra + more * now[EXTRA, place]) / scale[word]
            then[STRAY, place] = (return_weight * strays + (1 - back) * now[STRAY, place]) / scale[word]
        now, then = then, now
