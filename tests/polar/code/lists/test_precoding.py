"""Checks against long division of polynomials; the convolution against its definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.code.lists.precoding import CHECKS, PAC_TAPS, Check, check_values, convolve

BITS = st.lists(st.integers(0, 1), min_size=1, max_size=40)


def remainder(message: list[int], check: Check) -> list[int]:
    """The remainder of message(x) x^r by long division, the highest power first."""
    generator = [1, *(int(bit) for bit in format(check.polynomial, f"0{check.bits}b"))] if check.bits else [1]
    dividend = message + [0] * check.bits
    for place in range(len(message)):
        if dividend[place]:
            for offset, bit in enumerate(generator):
                dividend[place + offset] ^= bit
    return dividend[len(message) :]


@given(BITS, st.sampled_from(CHECKS))
def test_a_check_is_the_remainder_of_the_division(message: list[int], check: Check) -> None:
    assert check_values(np.array([message]), check)[0].tolist() == remainder(message, check)


@given(BITS, st.sampled_from(CHECKS[1:]), st.data())
def test_a_check_sees_every_short_burst(message: list[int], check: Check, data: st.DataObject) -> None:
    """A burst no longer than the check changes it: x^i b(x), deg b < r, is no multiple of g, whose last term is 1."""
    start = data.draw(st.integers(0, len(message) - 1))
    burst = data.draw(st.lists(st.integers(0, 1), max_size=min(check.bits, len(message) - start) - 1))
    wrong = list(message)
    for place, bit in enumerate([1, *burst]):
        wrong[start + place] ^= bit
    first, second = check_values(np.array([message, wrong]), check)
    assert (first != second).any()


@given(BITS, st.sampled_from([1, 3, PAC_TAPS]))
def test_the_convolution_is_a_sum_of_delayed_words(word: list[int], taps: int) -> None:
    expected = [sum(taps >> j & word[i - j] for j in range(i + 1)) % 2 for i in range(len(word))]
    assert convolve(np.array(word), taps).tolist() == expected


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="polynomial below"):
        Check(3, 8)
    with pytest.raises(ValueError, match="odd number"):
        convolve(np.zeros(4, dtype=int), 0)
