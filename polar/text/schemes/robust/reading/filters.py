"""The searches on the tape, compiled, word by word: `polar.text.schemes.robust.reading.finding` says what they compute.

`tables` are rows of likelihood ratios, one for each table of likelihoods, by the cell of a pilot's leading 16 bits.
"""

import numpy as np
from numpy.typing import NDArray

from polar.code.compiled import compiled
from wm_env.common.arrays import Floats, Ints

Bools = NDArray[np.bool_]
Singles = NDArray[np.float32]
Leads = NDArray[np.uint16]
Cells = NDArray[np.int32]


@compiled
def multiply_starts(ratio: Floats, leads: Leads, pilot: Bools, first: int, cell: Cells, tables: Singles) -> None:
    """Multiply `ratio` with the ratios of one token at the places `first`, `first` + 1, ...

    Args:
        ratio: shape (tables, nonces, shifts), changed.
        leads: the token's numbers at the first places of each nonce, shape (nonces, places).
        pilot: whether a place is of level 0, shape (places,).
        first: place of the first shift; places outside are passed over.
        cell: the cell of each lead, shape (2^16,).
        tables: shape (tables, cells).
    """
    for shift in range(max(0, -first), min(ratio.shape[2], len(pilot) - first)):
        if pilot[first + shift]:
            for nonce in range(ratio.shape[1]):
                at = cell[leads[nonce, first + shift]]
                for table in range(ratio.shape[0]):
                    ratio[table, nonce, shift] *= tables[table, at]


@compiled
def advance_starts(weight: Floats, ratio: Floats, edits: Floats) -> Floats:
    """One word further: `weight`, shape (tables, nonces, shifts), is changed; the sums that it was divided by.

    Args:
        weight: of each nonce and shift, summing to 1 for each table.
        ratio: of the word, shape (tables, nonces, shifts).
        edits: probabilities that a word is replaced, added, deleted.
    """
    replaced, added, deleted = edits
    width = weight.shape[2]
    totals = np.zeros(weight.shape[0])
    seen = np.empty(width)
    for table in range(weight.shape[0]):
        for nonce in range(weight.shape[1]):
            for shift in range(width):
                seen[shift] = weight[table, nonce, shift] * ((1 - replaced) * ratio[table, nonce, shift] + replaced)
            for shift in range(width):
                moved = (1 - added - deleted) * seen[shift]
                if shift:
                    moved += deleted * seen[shift - 1]
                if shift + 1 < width:
                    moved += added * seen[shift + 1]
                weight[table, nonce, shift] = moved
                totals[table] += moved
        weight[table] /= totals[table]
    return totals


@compiled
def advance_scan(
    weight: Singles,
    then: Singles,
    outside: float,
    leads: Leads,
    pilot: Bools,
    back: Ints,
    cell: Cells,
    tables: Singles,
    edits: Floats,
) -> tuple[float, float, int]:
    """One word further along the whole tape, for one table.

    Args:
        weight: of each word of the tape, shape (size,).
        then: the weights one word further, not yet divided by their sum.
        outside: weight of no mark so far.
        leads: numbers of the tokens of the word along the tape, shape (tokens, size).
        pilot: whether the tokens' places are of level 0, shape (tokens, places), the same for all nonces.
        back: 1 for a token that opens the word, whose place is one of the word before, shape (tokens,).
        cell: the cell of each lead, shape (2^16,).
        tables: ratios of each token, shape (tokens, cells).
        edits: probabilities that a word is replaced, added, deleted, that the mark ends, and that it begins.

    Returns:
        The sum, the part of it that is outside, and the word of the tape of the largest weight.
    """
    replaced, added, deleted, left, enter = edits
    size, segment = len(weight), pilot.shape[1]
    coming, going = np.float32(outside * enter / size), np.float32(1 - added - deleted - left)
    skipping, adding = np.float32(deleted), np.float32(added)
    kept, other = np.float32(1 - replaced), np.float32(replaced)
    inside, before, best = 0.0, 0.0, 0
    for place in range(size):
        moved = coming
        if place:
            moved += going * weight[place - 1]
        if place > 1:
            moved += skipping * weight[place - 2]
        ratio = np.float32(1)
        for token in range(len(back)):
            at = place - back[token]
            if at >= 0 and pilot[token, at % segment]:
                ratio *= tables[token, cell[leads[token, at]]]
        moved = moved * (kept * ratio + other) + adding * weight[place]
        then[place] = moved
        inside += moved
        before += weight[place]
        if moved > then[best]:
            best = place
    still = outside * (1 - enter) + left * before
    return still + inside, still, best
