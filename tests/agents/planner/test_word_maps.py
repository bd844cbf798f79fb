import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trees import uneven_tree

from agents.planner.word_maps import confusable_states, map_words, pack_words, word_loads
from wm_env.common.arrays import Floats, Ints
from wm_env.synthetic import gaussian_pmf, synthetic_tree
from wm_env.theory.limits import best_partition


def right_mass(pmf: Floats, words: Ints, message_bits: int) -> float:
    """sum_w min(p(B_w), 2^-l), by a loop over words."""
    return sum(min(pmf[words == word].sum(), 0.5**message_bits) for word in range(2**message_bits))


def test_groups_are_chains_of_states_that_share():
    cover = np.full((4, 2), 0.5)
    seen = np.array([[0, 1], [1, 2], [3, 4], [2, 5]])
    assert confusable_states(cover, seen).tolist() == [0, 0, 1, 0]
    cover[1] = [0.0, 1.0]
    assert confusable_states(cover, seen).tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize("message_bits", [1, 2, 3])
def test_disjoint_candidate_sets_get_their_best_partitions(message_bits: int) -> None:
    block = synthetic_tree(4, 1, 12, entropy=3.0, seed=message_bits).blocks[0]
    words = map_words(block.cover, block.symbol, np.full(4, 0.25), message_bits)
    for pmf, of_state in zip(block.cover, words, strict=True):
        best = best_partition(pmf, message_bits, nodes=0)[1]
        assert right_mass(pmf, of_state, message_bits) == pytest.approx(best, abs=1e-12)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), overlap=st.sampled_from([0.0, 0.2, 0.5, 1.0]), message_bits=st.integers(1, 3))
def test_a_symbol_has_one_word_in_all_states(seed: int, overlap: float, message_bits: int) -> None:
    tree = uneven_tree(3, 2, 6, overlap, seed)
    for block in tree.blocks:
        words = map_words(block.cover, block.symbol, np.full(len(block.cover), 1 / len(block.cover)), message_bits)
        present = block.cover > 0
        assert ((words >= 0) == present).all()
        assert words.max() < 2**message_bits
        for symbol in np.unique(block.symbol[present]):
            assert len(np.unique(words[present & (block.symbol == symbol)])) == 1


def test_few_shared_symbols_cost_little() -> None:
    block = synthetic_tree(6, 1, 12, entropy=3.0, overlap=2 / 12, seed=2).blocks[0]
    words = map_words(block.cover, block.symbol, np.full(6, 1 / 6), 2)
    lost = [
        best_partition(pmf, 2, nodes=0)[1] - right_mass(pmf, of_state, 2)
        for pmf, of_state in zip(block.cover, words, strict=True)
    ]
    assert np.mean(lost) < 5e-3


def test_symbols_that_all_states_share_are_spread_over_the_words() -> None:
    block = synthetic_tree(6, 1, 8, entropy=2.99, overlap=1.0, seed=2).blocks[0]
    words = map_words(block.cover, block.symbol, np.full(6, 1 / 6), 2)
    assert sorted(np.bincount(words[0])) == [2, 2, 2, 2]


def test_what_the_decoder_can_tell_apart_is_not_shared() -> None:
    """The same candidates in all states, numbered anew in every state: each gets its best partition."""
    block = synthetic_tree(4, 1, 12, entropy=3.0, overlap=1.0, seed=3).blocks[0]
    words = map_words(block.cover, np.arange(48).reshape(4, 12), np.full(4, 0.25), 2)
    for pmf, of_state in zip(block.cover, words, strict=True):
        assert right_mass(pmf, of_state, 2) == pytest.approx(best_partition(pmf, 2, nodes=0)[1], abs=1e-12)


@pytest.mark.parametrize("entropy", [0.8, 2.0, 3.0])
@pytest.mark.parametrize("message_bits", [2, 3, 4])
def test_packing_loses_nothing_and_leaves_room(entropy: float, message_bits: int) -> None:
    """From two bits on: with one, a heavy candidate has one word and the others have the other in any case."""
    cap, times_packed = 0.5**message_bits, 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        pmf = gaussian_pmf(20, entropy, rng)
        words, value = best_partition(pmf, message_bits, nodes=0)
        added = rng.uniform() * np.maximum(pmf - cap, 0).sum()
        packed = pack_words(pmf, words, message_bits, added)
        assert right_mass(pmf, packed, message_bits) >= value - 1e-12
        if np.array_equal(packed, words):
            continue
        times_packed += 1
        loads = word_loads(packed[None], pmf[None], message_bits)[0]
        assert np.maximum(cap - loads[loads > 0], 0).sum() >= added - 1e-12
        assert (loads == 0).sum() >= (word_loads(words[None], pmf[None], message_bits) == 0).sum()
    assert times_packed >= 8


def test_packing_frees_whole_words_for_a_heavy_candidate() -> None:
    pmf = np.array([0.5, 0.1, 0.1, 0.05, 0.0, 0.125, 0.025, 0.1])
    packed = pack_words(pmf, best_partition(pmf, 3, nodes=0)[0], 3, 0.0)
    loads = word_loads(packed[None], pmf[None], 3)[0]
    # The heavy one, then 0.125, 0.1 + 0.025, 0.1, 0.1 and 0.05; the best partition uses one word more.
    assert np.count_nonzero(loads) == 6
    assert packed[4] == -1


def test_loads_by_hand() -> None:
    words, pmf = np.array([[1, -1, 1, 0]]), np.array([[0.5, 0.0, 0.2, 0.3]])
    assert word_loads(words, pmf, 2).tolist() == [[0.3, 0.7, 0.0, 0.0]]
