import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.code.transform import label_words, polar_transform


def kronecker(length):
    matrix = np.array([[1]])
    while len(matrix) < length:
        matrix = np.kron(matrix, np.array([[1, 0], [1, 1]]))
    return matrix


@pytest.mark.parametrize("length", [1, 2, 4, 8, 16, 32, 64])
def test_equals_the_kronecker_matrix(length):
    words = np.random.default_rng(length).integers(2, size=(5, 3, length))
    assert np.array_equal(polar_transform(words), words @ kronecker(length) % 2)
    assert np.array_equal(polar_transform(np.eye(length, dtype=int)), kronecker(length))


@given(st.integers(0, 6), st.data())
def test_is_an_involution_and_linear(power, data):
    bits = st.lists(st.integers(0, 1), min_size=2**power, max_size=2**power).map(np.array)
    first, second = data.draw(bits), data.draw(bits)
    assert np.array_equal(polar_transform(polar_transform(first)), first)
    assert np.array_equal(polar_transform(first ^ second), polar_transform(first) ^ polar_transform(second))


def test_natural_order_not_bit_reversed():
    # Message 0111 on positions 3, 5, 6, 7; bit reversal would give 11000011.
    word = np.zeros(8, dtype=int)
    word[[3, 5, 6, 7]] = [0, 1, 1, 1]
    assert "".join(map(str, polar_transform(word))) == "10011001"


def test_first_bit_is_the_parity_and_the_last_stays():
    words = np.random.default_rng(0).integers(2, size=(50, 16))
    transformed = polar_transform(words)
    assert np.array_equal(transformed[:, 0], words.sum(1) % 2)
    assert np.array_equal(transformed[:, -1], words[:, -1])


def test_input_is_not_changed():
    words = np.ones((2, 4), dtype=np.int64)
    polar_transform(words)
    assert words.all()


@pytest.mark.parametrize("length", [0, 3, 6, 12])
def test_refuses_lengths_that_are_no_power_of_two(length):
    with pytest.raises(ValueError, match="power of two"):
        polar_transform(np.zeros((2, length), dtype=int))


@pytest.mark.parametrize("value", [2, -1])
def test_refuses_what_is_not_a_bit(value):
    with pytest.raises(ValueError, match="bits"):
        polar_transform(np.array([0, value]))


def test_label_words_are_binary_most_significant_bit_first():
    assert label_words(np.array([0, 1, 6]), 4).tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 0]]
