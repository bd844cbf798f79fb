"""Sums over blocks against enumeration of all texts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_env.theory.long_texts import longest_message, pinsker_bound, product_variation, text_success, tilt_texts


def random_source(seed):
    rng = np.random.default_rng(seed)
    covers = rng.dirichlet(np.ones(3), 2)
    laws = 0.9 * covers + 0.1 * rng.dirichlet(np.ones(3), 2)
    return laws, covers, rng.dirichlet(np.ones(2))


def all_texts(laws, covers, probs, blocks):
    """(P, Q, p(x^n|s^n)) of every sequence of states and candidates."""
    letters = [
        (z * p, z * q, p)
        for z, row, sent in zip(probs, covers, laws, strict=True)
        for p, q in zip(row, sent, strict=True)
    ]
    for text in itertools.product(letters, repeat=blocks):
        yield tuple(float(np.prod([letter[part] for letter in text])) for part in range(3))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(0, 8))
def test_bounds_hold_the_sum_over_all_texts(seed, blocks, bits):
    laws, covers, probs = random_source(seed)
    texts = list(all_texts(laws, covers, probs, blocks))
    variation = sum(abs(p - q) for p, q, _ in texts) / 2
    success = sum(p * min(1, 0.5**bits / given) for p, _, given in texts)
    found, reached = product_variation(laws, covers, probs, blocks), text_success(covers, probs, blocks, bits)
    assert found.lower <= variation + 1e-12
    assert variation <= found.upper + 1e-12
    assert found.upper - found.lower < 1e-3
    assert reached.lower <= success + 1e-12
    assert success <= reached.upper + 1e-12
    assert reached.upper - reached.lower < 1e-3
    assert variation <= pinsker_bound(laws, covers, probs, blocks) + 1e-12


def test_candidates_that_are_never_sent_give_the_text_away():
    covers, laws = np.array([[0.9, 0.1]]), np.array([[1.0, 0.0]])
    for blocks in (1, 2, 10):
        found = product_variation(laws, covers, np.ones(1), blocks)
        assert found.lower == pytest.approx(1 - 0.9**blocks, abs=1e-3)
        assert found.upper == pytest.approx(1 - 0.9**blocks, abs=1e-3)
    assert pinsker_bound(laws, covers, np.ones(1), 1) == 1.0


def test_the_longest_message_is_the_last_one_within_the_error():
    covers, probs = np.array([[0.5, 0.3, 0.2]]), np.ones(1)
    found = longest_message(covers, probs, 20, 0.05)
    assert found.reached <= found.limit <= found.reached + 1
    assert text_success(covers, probs, 20, found.reached).lower >= 0.95
    assert text_success(covers, probs, 20, found.limit + 1).upper < 0.95
    assert longest_message(covers, probs, 20, 0.05, 0.1).limit >= found.limit


def test_variation_of_a_text_grows_slower_than_the_sum():
    laws, covers, probs = random_source(0)
    one = product_variation(laws, covers, probs, 1).upper
    many = product_variation(laws, covers, probs, 64)
    assert one < many.lower <= many.upper < 64 * one


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("blocks", [1, 4])
def test_tilted_texts_spend_their_budget_and_no_more(seed, blocks):
    _, covers, probs = random_source(seed)
    found = tilt_texts(covers, probs, blocks, 0.05)
    variation = sum(abs(p - q) for p, q, _ in all_texts(found.laws, covers, probs, blocks)) / 2
    assert variation == pytest.approx(0.05, abs=2e-4)
    assert variation <= 0.05 + 1e-12
    ratio = np.log(found.laws) - found.exponent * np.log(covers)
    assert np.ptp(ratio, axis=1) == pytest.approx(0, abs=1e-9)
