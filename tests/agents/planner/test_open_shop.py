import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.planner.couplings import assign_surplus
from agents.planner.open_shop import scheduled_channel
from agents.planner.word_maps import map_words, word_loads
from wm_env.common.arrays import Floats, Ints
from wm_env.synthetic import gaussian_pmf, synthetic_tree
from wm_env.theory.limits import best_partition

ENTROPIES = st.sampled_from([0.8, 2.0, 3.0, 3.8, 4.2])


def channel_of(law: Floats, words: Ints, message_bits: int, slots: int, seen: Ints | None = None) -> Floats:
    """The channel of equally likely states, by default of a decoder that knows the state."""
    loads = word_loads(words, law, message_bits)
    flows = assign_surplus(loads, np.full_like(loads, 0.5**message_bits))
    seen = np.arange(law.size).reshape(law.shape) if seen is None else seen
    return scheduled_channel(law, words, flows, slots, seen, np.full(len(law), 1 / len(law)))


def best_states(seed: int, entropy: float, message_bits: int, states: int = 3) -> tuple[Floats, Ints]:
    rng = np.random.default_rng(seed)
    law = np.stack([gaussian_pmf(20, entropy, rng) for _ in range(states)])
    return law, np.stack([best_partition(pmf, message_bits, nodes=0)[0] for pmf in law])


def on_grid(law: Floats) -> Floats:
    """Laws in multiples of 2^-30, whose sums are exact: a search ends alike on processors that round otherwise."""
    law = np.round(law * 2**30)
    law[np.arange(len(law)), law.argmax(1)] += 2**30 - law.sum(1)
    return law / 2**30


def right_without_state(channel: Floats, seen: Ints) -> float:
    """Success of a decoder that knows the slot and the symbol, by loops; equally likely states and words."""
    states, count, slots, candidates = channel.shape
    evidence: dict[tuple[int, int], Floats] = {}
    for state in range(states):
        for slot in range(slots):
            for place in range(candidates):
                key = int(seen[state, place]), slot
                evidence[key] = evidence.get(key, np.zeros(count)) + channel[state, :, slot, place]
    return sum(words.max() for words in evidence.values()) / (states * count * slots)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    entropy=ENTROPIES,
    message_bits=st.integers(1, 4),
    slots=st.sampled_from([1, 4, 16]),
)
def test_the_channel_realises_the_law_and_every_word_keeps_its_own(
    seed: int, entropy: float, message_bits: int, slots: int
) -> None:
    law, words = best_states(seed, entropy, message_bits)
    count = 2**message_bits
    channel = channel_of(law, words, message_bits, slots)
    assert channel.shape == (3, count, slots, 20)
    assert (channel >= 0).all()
    assert channel.sum(3) == pytest.approx(np.ones((3, count, slots)), abs=1e-12)
    assert channel.mean((1, 2)) == pytest.approx(law, abs=1e-12)
    for state in range(3):
        for word in range(count):
            members = words[state] == word
            own = channel[state, word][:, members].sum() / (slots * count)
            assert own == pytest.approx(min(law[state, members].sum(), 1 / count), abs=1e-12)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), entropy=ENTROPIES, message_bits=st.integers(1, 4))
def test_sixteen_slots_reach_the_limit_of_shared_keys(seed: int, entropy: float, message_bits: int) -> None:
    """Sum of min(q, 2^-l) for a decoder that knows state and slot, from any best map."""
    law, words = best_states(seed, entropy, message_bits, states=1)
    right = channel_of(law, words, message_bits, 16)[0].max(0).sum() / 16 / 2**message_bits
    limit = sum(min(mass, 0.5**message_bits) for mass in law[0])
    assert limit - 1e-4 < right <= limit + 1e-12
    # Without the slots the same channel is decoded as often as its map allows.
    base = sum(min(law[0, words[0] == word].sum(), 0.5**message_bits) for word in range(2**message_bits))
    assert channel_of(law, words, message_bits, 16)[0].mean(1).max(0).sum() / 2**message_bits >= base - 1e-12


def test_own_and_lent_use_of_a_candidate_never_meet_in_a_slot() -> None:
    """Ten equal candidates for four words: half of one candidate is surplus in two of them."""
    law = np.full((1, 10), 0.1)
    words = np.array([[0, 0, 0, 1, 1, 1, 2, 2, 3, 3]])
    channel = channel_of(law, words, 2, 16)[0]
    sent_for = channel > 1e-12
    assert (sent_for.any(1).sum(0) == 2).sum() == 2
    assert (sent_for.sum(0) <= 1).all()
    # So a decoder that knows the slot is always right.
    assert channel.max(0).sum(1).mean() / 4 == pytest.approx(1.0)


def test_small_candidates_are_lent_first_and_heavy_and_shared_ones_last() -> None:
    """Word 0 of the first state has a surplus of 0.1, and the candidates of the second state have one word each."""
    law = np.array([[0.2, 0.15, 0.25, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25, 0.0]])
    words = np.array([[0, 0, 1, 2, 3], [0, 1, 2, 3, -1]])
    alone = np.array([[0, 1, 2, 3, 4], [10, 11, 12, 13, -1]])
    shared = np.array([[0, 1, 2, 3, 4], [1, 11, 12, 13, -1]])
    for seen, masses, giving in ((alone, [0.2, 0.15], 1), (shared, [0.2, 0.15], 0), (alone, [0.05, 0.3], 0)):
        law[0, :2] = masses
        elsewhere = channel_of(law, words, 2, 10, seen)[0, 1:, :, :2].sum((0, 1))
        assert elsewhere[giving] > 0.1
        if masses == [0.2, 0.15]:
            assert np.count_nonzero(elsewhere) == 1


def test_states_that_share_what_they_lend_have_one_schedule() -> None:
    """Both states have 0.14 twice on word 0 and share both; word 1 takes surplus of one, word 2 of the other."""
    law = np.array([[0.14, 0.14, 0.22, 0.25, 0.25], [0.14, 0.14, 0.25, 0.22, 0.25]])
    words = np.array([[0, 0, 1, 2, 3], [0, 0, 1, 2, 3]])
    seen = np.array([[0, 1, 2, 3, 4], [0, 1, 5, 6, 7]])
    channel = channel_of(law, words, 2, 16, seen)
    assert right_without_state(channel, seen) == pytest.approx(1.0, abs=1e-12)
    # Apart from the slots one word has to be wrong: 0.03 in each state.
    assert right_without_state(channel.mean(2, keepdims=True), seen) == pytest.approx(0.97, abs=1e-12)


def shortfalls(overlap: float, seed: int) -> tuple[float, float]:
    """What a plan for states that share candidates lacks of the limit, and what it lacks without dither."""
    block = synthetic_tree(6, 1, 20, entropy=3.8, overlap=overlap, seed=seed).blocks[0]
    law = on_grid(block.cover)
    words = map_words(law, block.symbol, np.full(6, 1 / 6), 3)
    channel = channel_of(law, words, 3, 16, block.symbol)
    limit = np.minimum(law, 1 / 8).sum(1).mean()
    without = right_without_state(channel.mean(2, keepdims=True), block.symbol)
    return limit - right_without_state(channel, block.symbol), limit - without


def test_shared_candidates_cost_little_of_what_dither_brings() -> None:
    lacking, without = shortfalls(0.5, 4)
    assert lacking < without / 7


@pytest.mark.parametrize("overlap", [0.5, 0.75])
def test_dither_brings_most_of_what_is_lacking_on_several_trees(overlap: float) -> None:
    """One search alone can end three times as far from the limit as another one."""
    lacking, without = np.sum([shortfalls(overlap, seed) for seed in range(8)], axis=0)
    assert lacking < without / 2


def test_likelihood_of_a_label_points_to_the_own_word() -> None:
    law = np.array([[0.3, 0.15, 0.15, 0.2, 0.2]])
    words = np.array([[0, 1, 1, 2, 3]])
    channel = channel_of(law, words, 2, 8)[0]
    for candidate, word in enumerate(words[0]):
        assert channel[:, :, candidate].max(1).argmax() == word
