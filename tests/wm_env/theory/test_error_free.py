"""Bits without error against linear programmes over all codes of small blocks."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from wm_env.optimum import solve
from wm_env.synthetic import synthetic_tree
from wm_env.theory.error_free import error_free_bits, error_free_bits_by_state


def best_codes(pmf, budget):
    """Most bits of all mixtures of codes with whole lengths: every map of candidates to all words of a length.

    A code is error-free, so each of its 2^l words has 2^-l of the code's mass.
    """
    codes = [
        (bits, words)
        for bits in range(3)
        for words in itertools.product(range(2**bits), repeat=len(pmf))
        if len(set(words)) == 2**bits
    ]
    size = len(pmf)
    columns = len(codes) * size
    equal, gain = [], np.zeros(columns)
    for number, (bits, words) in enumerate(codes):
        mass = slice(number * size, (number + 1) * size)
        gain[mass] = bits
        for word in range(2**bits):
            row = np.zeros(columns + size)
            row[mass] = np.equal(words, word) - 0.5**bits
            equal.append(row)
    total = np.concatenate([np.ones(columns), np.zeros(size)])
    below = np.hstack([np.tile(np.eye(size), len(codes)), -np.eye(size)])
    spent = np.concatenate([np.zeros(columns), np.ones(size)])
    answer = linprog(
        -np.append(gain, np.zeros(size)),
        np.vstack([below, spent]),
        np.append(pmf, budget),
        np.vstack([*equal, total]),
        np.append(np.zeros(len(equal)), 1.0),
    )
    return -answer.fun


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("budget", [0.0, 0.1])
def test_bits_equal_the_best_mixture_of_all_codes(seed, budget):
    pmf = np.random.default_rng(seed).dirichlet(np.full(5, 0.8))
    assert error_free_bits([pmf[None]], [np.ones(1)], budget) == pytest.approx(best_codes(pmf, budget), abs=1e-7)


def test_a_key_that_chooses_the_length_carries_more_than_the_min_entropy():
    """With probability 4/5 three bits, word m on candidate m; with 1/5 candidate 0 and no bits."""
    pmf = np.array([[0.3] + [0.1] * 7])
    assert error_free_bits([pmf], [np.ones(1)], 0.0) == pytest.approx(2.4)
    assert error_free_bits_by_state([pmf], [np.ones(1)], 0.0) == pytest.approx(1.0)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 100_000), st.floats(0, 0.3))
def test_no_random_mixture_of_lengths_beats_the_limit(seed, budget):
    """Random laws below 2^-l for random lengths, mixed: their mean law is the cover, moved by the budget."""
    rng = np.random.default_rng(seed)
    covers, probs, bits, spent = [], rng.dirichlet(np.ones(3)), 0.0, 0.0
    for z in probs:
        lengths, shares = rng.integers(0, 3, size=3), rng.dirichlet(np.ones(3))
        law = np.zeros(6)
        for length, share in zip(lengths, shares, strict=True):
            part = rng.dirichlet(np.ones(6))
            # Moving towards the uniform law until no candidate has more than 2^-l.
            weight = max(0.0, (part.max() - 0.5**length) / (part.max() - 1 / 6))
            law += share * ((1 - weight) * part + weight / 6)
        moved = law + budget * (rng.dirichlet(np.ones(6)) - law)
        covers.append(moved)
        bits += z * float(lengths @ shares)
        spent += z * float(abs(moved - law).sum() / 2)
    assert bits <= error_free_bits([np.array(covers)], [probs], spent) + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 0.3))
def test_freer_lengths_carry_more_and_never_more_than_the_entropy(seed, budget):
    tree = synthetic_tree(2, 1, 9, 8, 2.6, seed=seed)
    covers, probs = [tree.blocks[0].cover], [tree.prior]
    by_state = error_free_bits_by_state(covers, probs, budget)
    by_key = error_free_bits(covers, probs, budget)
    assert by_state <= by_key + 1e-9
    assert by_key <= solve(tree, budget).rate + 1e-9


def test_padding_and_states_of_no_probability_change_nothing():
    pmf = np.array([0.4, 0.3, 0.2, 0.1])
    alone = error_free_bits([pmf[None]], [np.ones(1)], 0.05)
    padded = np.array([[0.1, 0, 0.4, 0, 0.2, 0.3], [1.0, 0, 0, 0, 0, 0]])
    assert error_free_bits([padded], [np.array([1.0, 0.0])], 0.05) == pytest.approx(alone, abs=1e-9)
    assert error_free_bits([pmf[None], np.array([[1.0]])], [np.ones(1), np.ones(1)], 0.025) == pytest.approx(alone / 2)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 0.4))
def test_bits_of_lengths_by_state_equal_a_linear_programme_over_lengths(seed, budget):
    """Lengths drawn at random in every state: the best mixture by linear programming, in trees of two blocks."""
    rng = np.random.default_rng(seed)
    covers = [rng.dirichlet(np.full(6, 0.5), 3), rng.dirichlet(np.full(6, 1.5), 4)]
    covers[1][0] = [0.5, 0.5, 0, 0, 0, 0]
    probs = [rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(4))]
    rows = [(z / 2, pmf) for cover, law in zip(covers, probs, strict=True) for pmf, z in zip(cover, law, strict=True)]
    options = [
        (number, weight * bits, weight * sum(max(p - 2.0**-bits, 0) for p in pmf))
        for number, (weight, pmf) in enumerate(rows)
        for bits in range(3)
        if 2**bits <= sum(p > 0 for p in pmf)
    ]
    chosen = np.array([[number == row for number, _, _ in options] for row in range(len(rows))], dtype=float)
    gain, cost = np.array([[bits, price] for _, bits, price in options]).T
    answer = linprog(-gain, cost[None], [budget], chosen, np.ones(len(rows)))
    assert error_free_bits_by_state(covers, probs, budget) == pytest.approx(-answer.fun, abs=1e-9)


def test_bits_of_lengths_by_state_at_no_total_variation_are_whole_min_entropies():
    covers = [np.array([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]]), np.array([[0.6, 0.4, 0, 0], [1.0, 0, 0, 0]])]
    probs = [np.array([0.75, 0.25]), np.array([0.5, 0.5])]
    assert error_free_bits_by_state(covers, probs, 0.0) == pytest.approx((0.75 * 2 + 0.25) / 2)
    # a tenth in half of the second block's states buys them their bit
    assert error_free_bits_by_state(covers, probs, 0.1 / 4) == pytest.approx((0.75 * 2 + 0.25 + 0.5) / 2)
    assert error_free_bits_by_state(covers, probs, 1.0) == pytest.approx((0.75 * 2 + 0.25 + 0.5) / 2)
    assert error_free_bits_by_state([np.array([[1.0, 0.0]])], [np.ones(1)], 1.0) == 0
