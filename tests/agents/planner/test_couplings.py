import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.planner.couplings import assign_surplus, break_ties, spend
from agents.planner.word_maps import word_loads
from wm_env.common.arrays import Floats, Ints
from wm_env.synthetic import gaussian_pmf
from wm_env.theory.limits import best_partition


def some_states(seed: int, entropy: float, message_bits: int, states: int = 3) -> tuple[Floats, Ints]:
    rng = np.random.default_rng(seed)
    cover = np.stack([gaussian_pmf(20, entropy, rng) for _ in range(states)])
    return cover, np.stack([best_partition(pmf, message_bits, nodes=0)[0] for pmf in cover])


ENTROPIES = st.sampled_from([0.8, 2.0, 3.0, 4.2])


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), entropy=ENTROPIES, message_bits=st.integers(1, 4), share=st.floats(0, 1))
def test_every_unit_spent_is_a_unit_of_right_mass(seed: int, entropy: float, message_bits: int, share: float) -> None:
    cover, words = some_states(seed, entropy, message_bits)
    cap = 0.5**message_bits
    right = np.minimum(word_loads(words, cover, message_bits), cap).sum(1)
    budget = share * (1 - right)
    law = spend(cover, words, message_bits, budget)
    assert abs(law - cover).sum(1) / 2 == pytest.approx(budget, abs=1e-13)
    assert law.sum(1) == pytest.approx(np.ones(3), abs=1e-13)
    assert (law >= 0).all()
    after = np.minimum(word_loads(words, law, message_bits), cap).sum(1)
    assert after == pytest.approx(right + budget, abs=1e-13)


def test_budget_goes_to_heavy_candidates_before_uneven_words() -> None:
    cover = np.array([[0.3, 0.2, 0.1, 0.2, 0.2]])
    words = np.array([[0, 1, 1, 2, 3]])
    # Word 0 has one candidate above 1/4, word 1 two that exceed it together: 0.05 each.
    assert spend(cover, words, 2, np.array([0.05]))[0] == pytest.approx([0.25, 0.2, 0.1, 0.25, 0.2])
    law = spend(cover, words, 2, np.array([0.1]))[0]
    assert law == pytest.approx([0.25, 0.5 / 3, 0.25 / 3, 0.25, 0.25])


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), entropy=ENTROPIES, message_bits=st.integers(1, 4))
def test_loans_even_out_the_words(seed: int, entropy: float, message_bits: int) -> None:
    cover, words = some_states(seed, entropy, message_bits)
    loads = word_loads(words, cover, message_bits)
    flows = assign_surplus(loads, np.full_like(loads, 0.5**message_bits))
    assert (flows >= 0).all()
    assert loads - flows.sum(2) + flows.sum(1) == pytest.approx(np.full_like(loads, 0.5**message_bits), abs=1e-13)
    # No word both gives and takes.
    assert (np.minimum(flows.sum(2), flows.sum(1)) == 0).all()


def test_loans_follow_the_order_of_bits_that_leaves_the_fewest_wrong() -> None:
    """Words 1 and 2 take the surplus of 0 and 5: with bit 0 first that of 5 would go three bits away, with bit 1 first
    none does."""
    loads = np.array([[2, 0, 0, 1, 1, 2, 1, 1]]) / 8
    flows = assign_surplus(loads, np.full_like(loads, 1 / 8))[0]
    assert (flows[0, 2], flows[5, 1]) == (1 / 8, 1 / 8)
    assert flows.sum() == pytest.approx(2 / 8)


def test_ties_go_to_the_middle() -> None:
    """A candidate sent for 000 and its three neighbours: 000 leaves 3 wrong bits, any neighbour 1 + 2 + 2."""
    channel = np.zeros((1, 8, 1, 5))
    for word, candidate in [(7, 0), (6, 0), (5, 0), (3, 0), (0, 1), (1, 2), (2, 3), (4, 4)]:
        channel[0, word, 0, candidate] = 1
    broken = break_ties(channel, np.array([True]))
    assert broken[0, :, 0, 0].argmax() == 7
    assert broken == pytest.approx(channel, abs=1e-8)
    assert broken.mean(1) == pytest.approx(channel.mean(1), abs=1e-16)
    assert broken.sum(3) == pytest.approx(np.ones((1, 8, 1)), abs=1e-15)
    assert np.array_equal(break_ties(channel, np.array([False])), channel)
