import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trees import uneven_tree

from wm_env.labels.colouring import colour_candidates, fewest_colours
from wm_env.synthetic import synthetic_tree
from wm_env.tree import TreeBlock


def block_of(rows: list[list[int]]) -> TreeBlock:
    """A block whose states have these symbols, equally likely; shorter rows are padded."""
    width = max(map(len, rows))
    symbol = np.array([row + [-1] * (width - len(row)) for row in rows])
    cover = (symbol >= 0) / (symbol >= 0).sum(1, keepdims=True)
    block = synthetic_tree(1, 1, 2, entropy=1.0).blocks[0]
    return dataclasses.replace(block, cover=cover, symbol=symbol)


def is_proper(block: TreeBlock) -> bool:
    colour = colour_candidates(block)
    of_symbol: dict[int, int] = {}
    for symbols, colours, probs in zip(block.symbol, colour, block.cover, strict=True):
        used = [int(number) for number, p in zip(colours, probs, strict=True) if p > 0]
        if len(set(used)) != len(used) or min(used) < 0:
            return False
        for symbol, number, p in zip(symbols, colours, probs, strict=True):
            if p > 0 and of_symbol.setdefault(int(symbol), int(number)) != number:
                return False
            if p == 0 and number != -1:
                return False
    return True


@settings(max_examples=100)
@given(st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=5, unique=True), min_size=1, max_size=12))
def test_is_proper_whatever_the_overlap(rows: list[list[int]]) -> None:
    names = sorted({symbol for row in rows for symbol in row})
    assert is_proper(block_of([[names.index(symbol) for symbol in row] for row in rows]))


@pytest.mark.parametrize("overlap", [0.0, 0.4, 1.0])
def test_common_and_own_candidates_need_no_more_than_q_colours(overlap: float) -> None:
    for block in synthetic_tree(7, 2, 10, entropy=3.0, overlap=overlap, seed=1).blocks:
        assert is_proper(block)
        assert colour_candidates(block).max() + 1 == 10


def test_padded_candidates_have_no_colour() -> None:
    for block in uneven_tree(blocks=2, candidates=6).blocks:
        assert is_proper(block)


@pytest.mark.parametrize(
    ("rows", "colours"),
    [
        ([[0, 1], [1, 2], [2, 3], [3, 0]], 2),  # an even cycle
        ([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0]], 3),  # an odd cycle: more than any state needs
        ([[0, 3], [0, 5], [2, 1], [2, 5], [4, 1], [4, 3]], 2),  # bipartite, where taking symbols in order needs 3
        ([[0, 1, 2], [2, 3, 4], [4, 5, 0]], 3),
    ],
)
def test_known_chromatic_numbers(rows: list[list[int]], colours: int) -> None:
    block = block_of(rows)
    assert is_proper(block)
    assert colour_candidates(block).max() + 1 == colours
    assert fewest_colours(block) == max(map(len, rows))
