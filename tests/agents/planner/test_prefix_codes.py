"""Mixtures of prefix codes against all codes of small states, and messages through them."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from agents.planner.prefix_codes import decode_block, encode_block, plan_prefix_codes, prefix_codes
from wm_env.synthetic import synthetic_tree
from wm_env.theory.error_free import error_free_bits


def best_mixture(law):
    """Most bits of all mixtures: every assignment of lengths that leaves no gap."""
    codes = [
        lengths
        for lengths in itertools.product((None, *range(len(law))), repeat=len(law))
        if sum(0.5**n for n in lengths if n is not None) == 1
    ]
    sent = np.array([[0.0 if n is None else 0.5**n for n in lengths] for lengths in codes])
    gains = np.array([sum(n * 0.5**n for n in lengths if n is not None) for lengths in codes])
    return -linprog(-gains, A_eq=sent.T, b_eq=law).fun


@pytest.mark.parametrize("seed", range(4))
def test_column_generation_finds_the_best_of_all_mixtures(seed):
    law = np.random.default_rng(seed).dirichlet(np.ones(5))
    (code,) = prefix_codes(law[None], gap=1e-3, rounds=60)
    best = best_mixture(law)
    assert code.bits <= best + 1e-9
    assert code.bits >= best - 2e-3
    assert best <= code.bound + 1e-9
    assert best <= -(law * np.log2(law)).sum() + 1e-9


def test_the_law_is_the_wanted_one_and_every_code_is_complete():
    laws = np.random.default_rng(1).dirichlet(np.full(12, 0.6), 6)
    laws[0, 3:] = 0
    laws[0] /= laws[0].sum()
    for law, code in zip(laws, prefix_codes(laws, rounds=3), strict=True):
        np.testing.assert_allclose(code.law, law, atol=1e-9)
        for lengths in code.lengths:
            assert sum(0.5 ** int(n) for n in lengths if n >= 0) == 1
        assert code.bits <= code.bound + 1e-9


def test_lengths_by_candidate_beat_lengths_by_key():
    law = np.array([[0.3] + [0.1] * 7])
    (code,) = prefix_codes(law, gap=1e-3, rounds=30)
    assert code.bits > error_free_bits([law], [np.ones(1)], 0.0) + 0.1


def test_every_message_comes_back_under_every_key():
    (code,) = prefix_codes(np.array([[0.35, 0.3, 0.2, 0.1, 0.05]]), rounds=5)
    rng = np.random.default_rng(0)
    told = 0
    for key in rng.random(300):
        message = "".join(map(str, rng.integers(2, size=8)))
        word = decode_block(code, encode_block(code, message, key), key)
        assert message.startswith(word)
        told += len(word)
    assert told / 300 == pytest.approx(code.bits, abs=0.25)
    with pytest.raises(ValueError, match="too few"):
        encode_block(prefix_codes(np.full((1, 4), 0.25))[0], "1", 0.0)


def test_a_plan_keeps_its_budget_and_its_place_below_the_entropy():
    tree = synthetic_tree(2, 2, 6, 8, 2.0, 0.0, 3)
    for epsilon in (0.0, 0.1):
        plan = plan_prefix_codes(tree, epsilon, rounds=3)
        assert plan.cost <= epsilon + 1e-9
        assert 0.8 * plan.most <= plan.bits <= plan.most + 1e-9
