"""Successive cancellation against full enumeration of small words."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from word_laws import prefix_prob, random_llrs, word_law

from polar.code.successive import CERTAIN, boxplus, conditional_llrs


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4, 8]))
def test_conditional_llrs_match_enumeration(seed: int, n: int) -> None:
    llr = random_llrs(seed, 2, n)
    sent = np.random.default_rng(seed + 1).integers(0, 2, (2, n))
    leaves = conditional_llrs(llr, sent)
    for frame in range(2):
        law = word_law(llr[frame])
        for i in range(n):
            prefix = tuple(int(bit) for bit in sent[frame, :i])
            expected = math.log(prefix_prob(law, (*prefix, 0)) / prefix_prob(law, (*prefix, 1)))
            assert leaves[frame, i] == pytest.approx(expected, abs=1e-8)


@settings(max_examples=100)
@given(st.floats(-CERTAIN, CERTAIN), st.floats(-CERTAIN, CERTAIN))
def test_boxplus_is_the_llr_of_the_sum(first: float, second: float) -> None:
    value = float(boxplus(torch.tensor([first], dtype=torch.float64), torch.tensor([second], dtype=torch.float64)))
    expected = np.logaddexp(0.0, first + second) - np.logaddexp(first, second)
    assert value == pytest.approx(float(expected), abs=1e-9)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="power of two"):
        conditional_llrs(np.zeros((1, 3)), np.zeros((1, 3), dtype=np.uint8))
