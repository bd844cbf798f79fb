import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_laws import noiseless_law, random_law, word_of

from wm_env.coded import (
    balanced_law,
    coded_law,
    empty_words,
    label_bits,
    label_given_word,
    word_channel,
    word_probs,
    word_values,
)
from wm_env.information import measure
from wm_env.law import induced_cover
from wm_env.synthetic import synthetic_tree

LENGTH = 4
SETS = [(), (2,), (1, 3), (3, 0), (0, 1, 2, 3)]


def block_law(seed, sparse=False):
    tree = synthetic_tree(2, 2, 3, LENGTH, 1.2, overlap=0.4, seed=seed)
    return random_law(tree, 16, seed, sparse).blocks[1]


def test_labels_must_be_a_power_of_two():
    assert [label_bits(labels) for labels in (1, 2, 256)] == [0, 1, 8]
    for labels in (0, 3, 20):
        with pytest.raises(ValueError, match="power of two"):
            label_bits(labels)


@pytest.mark.parametrize("positions", SETS)
def test_word_values_read_the_binary_label(positions):
    expected = [word_of(u, LENGTH, positions) for u in range(16)]
    assert word_values(16, LENGTH, positions).tolist() == expected


def test_few_labels_leave_the_first_positions_zero():
    assert word_values(4, LENGTH, (2, 3)).tolist() == [0, 1, 2, 3]
    for positions in [(1,), (2, 2), (4,), (-1,)]:
        with pytest.raises(ValueError, match="distinct positions 2 to 3"):
            word_values(4, LENGTH, positions)
    with pytest.raises(ValueError, match="at most 16 words"):
        word_values(32, LENGTH, (0,))


@settings(max_examples=20)
@given(st.integers(0, 1000), st.booleans(), st.sampled_from(SETS))
def test_channel_equals_sums_over_the_labels(seed, sparse, positions):
    law = block_law(seed, sparse)
    probs = word_probs(law, LENGTH, positions)
    channel = word_channel(law, LENGTH, positions)
    conditional = label_given_word(law, LENGTH, positions)
    empty = 0.0
    for s in range(len(law.cover)):
        for word in range(2 ** len(positions)):
            labels = [u for u in range(16) if word_of(u, LENGTH, positions) == word]
            mass = sum(float(law.p_label[s, u]) for u in labels)
            assert float(probs[s, word]) == pytest.approx(mass, abs=1e-14)
            empty += float(law.state_probs[s]) * (mass == 0) / 2 ** len(positions)
            share = {u: float(law.p_label[s, u]) / mass if mass > 0 else 1 / len(labels) for u in labels}
            for u in labels:
                assert float(conditional[s, u]) == pytest.approx(share[u], abs=1e-13)
            expected = sum(share[u] * law.p_candidate[s, u].numpy() for u in labels)
            assert channel[s, word].tolist() == pytest.approx(expected, abs=1e-13)
    assert float(empty_words(law, LENGTH, positions)) == pytest.approx(empty, abs=1e-14)


def test_fixing_every_position_gives_the_law_of_the_label():
    law = block_law(3)
    assert torch.allclose(word_channel(law, LENGTH, (0, 1, 2, 3)), law.p_candidate)
    assert torch.allclose(word_channel(law, LENGTH, ())[:, 0], induced_cover(law))


def test_coded_law_is_worth_the_information_of_uniform_message_bits():
    law = block_law(4)
    coded = coded_law(law, LENGTH, (1, 3))
    joint = np.zeros((4, int(law.symbol.max()) + 1))
    channel = word_channel(law, LENGTH, (1, 3))
    for s, z in enumerate(law.state_probs.tolist()):
        for word in range(4):
            for x in range(3):
                joint[word, int(law.symbol[s, x])] += z / 4 * float(channel[s, word, x])
    information = sum(
        p * math.log2(p / (row.sum() * joint[:, symbol].sum()))
        for row in joint
        for symbol, p in enumerate(row)
        if p > 0
    )
    found = measure(coded)
    assert float(found.rate) == pytest.approx(information, abs=1e-12)
    assert float(found.i_us) == pytest.approx(0, abs=1e-12)
    variation = sum(
        float(z) * float((channel[s].mean(0) - law.cover[s]).abs().sum()) / 2 for s, z in enumerate(law.state_probs)
    )
    assert float(found.cost) == pytest.approx(variation, abs=1e-13)


def test_uniform_message_bits_carry_all_of_a_noiseless_law():
    law = noiseless_law(3, 16, seed=1)
    assert float(measure(coded_law(law, LENGTH, (0, 2, 3))).rate) == pytest.approx(3)


@pytest.mark.parametrize("sparse", [False, True])
def test_balanced_law_leaves_nothing_to_the_encoder(sparse):
    law = block_law(6, sparse)
    balanced = balanced_law(law, LENGTH, (1, 3))
    assert word_probs(balanced, LENGTH, (1, 3)).reshape(-1).tolist() == pytest.approx([0.25] * 4 * len(law.cover))
    assert torch.allclose(word_channel(balanced, LENGTH, (1, 3)), word_channel(law, LENGTH, (1, 3)), atol=1e-13)
    assert torch.allclose(induced_cover(balanced), induced_cover(coded_law(law, LENGTH, (1, 3))), atol=1e-13)
