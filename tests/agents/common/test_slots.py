import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trees import uneven_tree

from agents.common.slots import candidate_slots
from wm_env.labels.colouring import colour_candidates
from wm_env.synthetic import synthetic_tree


@settings(max_examples=30)
@given(st.integers(2, 5), st.integers(2, 6), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 50))
def test_every_state_uses_every_slot_once(prompts, candidates, overlap, seed):
    for block in uneven_tree(prompts, 2, candidates, overlap, seed).blocks:
        slots = candidate_slots(block)
        assert (np.sort(slots, axis=1) == np.arange(candidates)).all()


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_a_token_block_has_one_slot(overlap):
    for block in synthetic_tree(5, 2, 10, entropy=3.0, overlap=overlap).blocks:
        slots = candidate_slots(block)
        assert colour_candidates(block).max() < 10
        for symbol in np.unique(block.symbol):
            assert len(set(slots[block.symbol == symbol])) == 1


def test_more_colours_than_candidates_still_give_permutations():
    # Three states, each pair of which shares a candidate: three colours, but two candidates a state.
    block = block_with(symbol=np.array([[0, 1], [1, 2], [0, 2]]))
    assert colour_candidates(block).max() == 2
    assert (np.sort(candidate_slots(block), axis=1) == [0, 1]).all()


def block_with(symbol):
    block = synthetic_tree(len(symbol), 1, symbol.shape[1], entropy=0.9).blocks[0]
    return dataclasses.replace(block, symbol=symbol)
