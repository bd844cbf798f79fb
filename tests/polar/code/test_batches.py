"""Compiled successive cancellation of many frames against enumeration of small words, and against exact LLRs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from word_laws import prefix_prob, random_llrs, word_law

from polar.code.batches import decide
from polar.code.successive import CERTAIN, conditional_llrs
from polar.code.transform import polar_transform


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4, 8]), st.integers(1, 20))
def test_decide_takes_the_likelier_bit_given_the_bits_before(seed: int, n: int, frames: int) -> None:
    rng = np.random.default_rng(seed)
    llr = random_llrs(seed, frames, n)
    forced = rng.random(n) < 0.4
    values = rng.integers(0, 2, (frames, int(forced.sum())))
    decided = decide(llr, forced, values)
    for frame in range(0, frames, 7):
        law, known, found = word_law(llr[frame]), iter(values[frame]), iter(decided[frame])
        prefix: tuple[int, ...] = ()
        for i in range(n):
            likelier = int(prefix_prob(law, (*prefix, 1)) > prefix_prob(law, (*prefix, 0)))
            assert forced[i] or next(found) == likelier
            prefix = (*prefix, int(next(known)) if forced[i] else likelier)


@pytest.mark.parametrize(("kind", "least"), [(np.float32, 1e-2), (np.float64, 1e-6)])
@pytest.mark.parametrize("noise", [0.3, 0.6, 0.9])
def test_as_long_as_it_is_right_decide_follows_exact_llrs(
    kind: type[np.floating[Any]], least: float, noise: float
) -> None:
    """Long words behind noise of every strength: up to a frame's first error decisions are those of exact LLRs."""
    rng = np.random.default_rng(1)
    n, frames = 512, 200
    forced = np.isin(np.arange(n), np.argsort([i.bit_count() for i in range(n)])[: n // 2])
    sent = rng.integers(0, 2, (frames, n), dtype=np.uint8)
    received = 1 - 2 * polar_transform(sent) + noise * rng.standard_normal((frames, n))
    llr = (2 * received / noise**2).astype(kind)
    exact = conditional_llrs(llr.astype(np.float64), sent)[:, ~forced]
    decided = decide(llr, forced, sent[:, forced])
    wrong = decided != sent[:, ~forced]
    right_so_far = np.cumsum(wrong, axis=1) - wrong == 0
    clear = right_so_far & (np.abs(exact) > least)
    assert clear.sum() > 100
    assert ((exact < 0) == decided)[clear].all()


def test_forced_bits_are_0_by_default() -> None:
    llr = random_llrs(3, 40, 16)
    forced = np.arange(16) < 7
    assert (decide(llr, forced) == decide(llr, forced, np.zeros((40, 7), dtype=np.uint8))).all()


def test_ties_go_to_bit_0() -> None:
    free = np.zeros(8, dtype=bool)
    assert (decide(np.zeros((1, 8)), free) == 0).all()
    assert (decide(np.full((1, 8), -0.0), free) == 0).all()


def test_certain_bits_are_believed_and_contradictions_are_ties() -> None:
    assert decide(np.array([[CERTAIN, -CERTAIN]]), np.zeros(2, dtype=bool)).tolist() == [[1, 1]]
    # Known: both bits of U are equal. Received: they differ. Nothing is left, and the tie goes to 0.
    assert decide(np.array([[CERTAIN, -CERTAIN]]), np.array([True, False])).tolist() == [[0]]


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="power of two"):
        decide(np.zeros((1, 3)), np.zeros(3, dtype=bool))
    with pytest.raises(ValueError, match="2 forced positions need values of shape"):
        decide(np.zeros((3, 4)), np.array([True, True, False, False]), np.zeros((3, 1), dtype=np.uint8))
    with pytest.raises(ValueError, match="4 positions need LLRs of shape"):
        decide(np.zeros((3, 8)), np.zeros(4, dtype=bool))
