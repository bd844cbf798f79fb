"""The searches on the tape, compiled, word by word: `polar.text.schemes.robust.reading.finding` says what they compute.

`tables` are rows of likelihood ratios, one for each table of likelihoods, by the cell of a pilot's leading 16 bits.
"""

import numpy as np
from numpy.typing import NDArray

from polar.compiling import compiled
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
    """One word further: `weight`, shape (rows, nonces, shifts), is changed; the sums that it was divided by.

    A row is a guess at the edits with one of the tables, all tables with the first guess in front.

    An added word is compared with no place, so a path of weights uses each place at most once: else a word that is
    said twice would count twice, and the evidence would be no e-value.

    Args:
        weight: of each nonce and shift, summing to 1 for each row.
        ratio: of the word, shape (tables, nonces, shifts).
        edits: probabilities that a word is replaced, added, deleted, shape (rows, 3).
    """
    width = weight.shape[2]
    totals = np.zeros(weight.shape[0])
    seen = np.empty(width)
    for row in range(weight.shape[0]):
        table = row % ratio.shape[0]
        replaced, added, deleted = edits[row]
        for nonce in range(weight.shape[1]):
            for shift in range(width):
                kept = (1 - replaced) * ratio[table, nonce, shift] + replaced
                seen[shift] = (1 - added) * kept * weight[row, nonce, shift]
            for shift in range(width):
                moved = (1 - deleted) * seen[shift]
                if shift:
                    moved += deleted * seen[shift - 1]
                if shift + 1 < width:
                    moved += added * weight[row, nonce, shift + 1]
                # In ascending order: of the old weights only those of greater shifts are still needed.
                weight[row, nonce, shift] = moved
                totals[row] += moved
        weight[row] /= totals[row]
    return totals


@compiled
def multiply_scan(ratio: Singles, places: Ints, back: int, cells: Cells, table: Singles) -> None:
    """Multiply `ratio` with the ratios of one token along the whole tape.

    Args:
        ratio: shape (size,), changed.
        places: the words where a token of this slot is at level 0, ascending, shape (m,).
        back: 1 for a token that opens a word: its place is one of the word before.
        cells: the cells of its leads there, shape (m,).
        table: shape (cells,).
    """
    count = len(places)
    if count and places[-1] + back >= len(ratio):
        count -= 1
    for number in range(count):
        ratio[places[number] + back] *= table[cells[number]]


@compiled
def advance_scan(weight: Singles, then: Singles, ratio: Singles, coming: float, edits: Floats) -> None:
    """The weights one word further along the whole tape, `then`, not yet divided by their sum.

    Args:
        weight, then: of each word of the tape, shape (size,).
        ratio: of the word of the text there, shape (size,).
        coming: weight with which the mark begins at each word.
        edits: probabilities that a word is replaced, added, deleted, and that the mark ends.
    """
    one = np.float32(1)
    replaced, added, deleted = np.float32(edits[0]), np.float32(edits[1]), np.float32(edits[2])
    going, start = np.float32(1 - edits[1] - edits[2] - edits[3]), np.float32(coming)
    kept = one - replaced
    then[0] = start * (kept * ratio[0] + replaced) + added * weight[0]
    then[1] = (start + going * weight[0]) * (kept * ratio[1] + replaced) + added * weight[1]
    for place in range(2, len(weight)):
        moved = start + going * weight[place - 1] + deleted * weight[place - 2]
        then[place] = moved * (kept * ratio[place] + replaced) + added * weight[place]
