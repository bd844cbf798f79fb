from itertools import product

import numpy as np
import pytest
from scipy.stats import chisquare

from polar.text.schemes.parallel.labels import read_bits, token_label, vocabulary_labels
from polar.text.schemes.parallel.step import draw_labels, draw_tokens, label_masses, place_points

LAWS = np.array([[0.5, 0.2, 0.2, 0.1], [0.05, 0.05, 0.3, 0.6]])
LABELS = np.array([0, 1, 1, 2])


def transform(word):
    """U of V for n = 2: (V0 + V1, V1)."""
    return ((word[0] + word[1]) % 2, word[1])


def thresholds(masses, planes):
    """P(next bit of V = 0 | the bits before), two positions, two levels, by summing over all labels."""
    found = []
    order = [(level, place) for level in range(2) for place in range(2)]
    for number, (level, place) in enumerate(order):
        mass = [0.0, 0.0]
        for labels in product(range(4), repeat=2):
            bits = [transform(tuple(label >> (1 - k) & 1 for label in labels)) for k in range(2)]
            past = order[:number]
            if all(bits[k][i] == planes[k][i] for k, i in past):
                mass[bits[level][place]] += masses[0][labels[0]] * masses[1][labels[1]]
        found.append(mass[0] / sum(mass))
    return np.array(found).reshape(2, 2)


def test_labels_change_exactly_where_their_law_says():
    masses = np.array([[0.4, 0.1, 0.2, 0.3], [0.05, 0.15, 0.7, 0.1]])
    for planes in product(product((0, 1), repeat=2), repeat=2):
        marks = thresholds(masses, planes)
        points = np.where(np.array(planes) == 1, marks + 1e-9, marks - 1e-9)
        words = [transform(plane) for plane in planes]
        assert draw_labels(masses, points).tolist() == [2 * a + b for a, b in zip(*words, strict=True)]


def sample(accept, count, message):
    """How often each pair of tokens was drawn, and in how many steps a draw was refused."""
    rng = np.random.default_rng(0)
    masses = label_masses(LAWS, LABELS, 2)
    counts = np.zeros((4, 4))
    refused = []

    def watched(number):
        def after(added):
            def accepts(token):
                if not accept(added)(token):
                    refused.append(number)
                    return False
                return True

            return accepts

        return after

    for number in range(count):
        points = place_points(rng.integers(0, 2, int(message.sum())), message, rng.random)
        counts[draw_tokens(LAWS, LABELS, draw_labels(masses, points), watched(number), rng.random)] += 1
    return counts, len(set(refused))


def test_tokens_have_the_product_law_for_uniform_bits():
    message = np.array([[True, True], [False, True]])
    counts, redrawn = sample(lambda added: lambda token: True, 2000, message)
    assert redrawn == 0
    assert chisquare(counts.reshape(-1), 2000 * np.outer(*LAWS).reshape(-1)).pvalue > 1e-3


def test_redrawn_tokens_keep_their_label_and_the_total_variation_is_the_chance_of_a_redraw():
    def accept(added):
        return lambda token: not (added == (1,) and token in (1, 3))

    expected = np.outer(*LAWS)
    expected[1] = LAWS[0, 1] * np.array([0.05, 0.0, 0.35, 0.0])  # token 2 shares label 1 with token 1; label 2 strays
    expected[1, :3] += LAWS[0, 1] * 0.6 * np.array([0.05, 0.0, 0.3]) / 0.35
    counts, redrawn = sample(accept, 2000, np.ones((2, 2), dtype=bool))
    kept = expected.reshape(-1) > 0
    assert counts.reshape(-1)[~kept].sum() == 0
    assert chisquare(counts.reshape(-1)[kept], 2000 * expected.reshape(-1)[kept]).pvalue > 1e-3
    variation = np.abs(expected - np.outer(*LAWS)).sum() / 2
    assert variation == pytest.approx(0.2 * (0.05 + 0.6))
    assert abs(redrawn / 2000 - variation) < 4 * np.sqrt(variation / 2000)


def test_a_label_without_an_acceptable_token_strays():
    tokens = draw_tokens(LAWS, LABELS, np.array([2, 2]), lambda added: lambda token: token != 3, lambda: 0.5)
    assert len(tokens) == 2
    assert 2 not in LABELS[list(tokens)]
    with pytest.raises(ValueError, match="no token of the vocabulary"):
        draw_tokens(LAWS, LABELS, np.array([0, 0]), lambda added: lambda token: False, lambda: 0.5)


@pytest.mark.parametrize("positions", [2, 4, 8, 16])
def test_even_labels_lose_no_bit(positions):
    rng = np.random.default_rng(positions)
    message = rng.random((3, positions)) < 0.6
    bits = rng.integers(0, 2, int(message.sum()))
    word = draw_labels(np.full((positions, 8), 1 / 8), place_points(bits, message, rng.random))
    assert read_bits(word[None], message)[0].tolist() == bits.tolist()


def test_lost_bits_are_as_many_as_the_distance_from_a_fair_bit():
    rng = np.random.default_rng(1)
    message = np.array([[True]])
    lost = [
        read_bits(
            draw_labels(np.array([[0.8, 0.2]]), place_points(np.array([bit]), message, rng.random))[None], message
        )
        != bit
        for bit in rng.integers(0, 2, 5000)
    ]
    assert np.mean(lost) == pytest.approx(0.3, abs=0.03)


def test_labels_depend_on_key_and_bytes():
    strings = {0: b"a", 1: b"b", 5: b" the"}
    labels = vocabulary_labels(strings, 8, b"k" * 32, 8)
    assert labels[5] == token_label(b" the", b"k" * 32, 8)
    assert labels[[2, 3, 4, 6, 7]].tolist() == [0] * 5
    assert labels.tolist() != vocabulary_labels(strings, 8, b"j" * 32, 8).tolist()
    spread = np.bincount([token_label(bytes([a, b]), b"", 2) for a in range(64) for b in range(64)])
    assert chisquare(spread).pvalue > 1e-4
