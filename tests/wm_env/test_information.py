"""Rates and total variations of hand-made laws, by own sums over dictionaries."""

import math
from collections import defaultdict
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_laws import random_law
from small_trees import uneven_tree

from wm_env.information import (
    Measures,
    discounted_totals,
    entropy,
    measure,
    measure_by_state,
    text_total_variation,
    total_variation,
)
from wm_env.law import BlockLaw
from wm_env.synthetic import synthetic_tree


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def law_of(z, cover, symbol, p_label, p_candidate):
    return BlockLaw(tensor(z), tensor(cover), torch.tensor(symbol), tensor(p_label), tensor(p_candidate))


def joint_of(law):
    """(s, u, symbol, x) -> probability."""
    joint = {}
    for s, z in enumerate(law.state_probs.tolist()):
        for u, pu in enumerate(law.p_label[s].tolist()):
            for x, w in enumerate(law.p_candidate[s, u].tolist()):
                if w > 0:
                    joint[s, u, int(law.symbol[s, x]), x] = z * pu * w
    return joint


def h(joint, *axes):
    """Joint entropy in bits of some coordinates."""
    sums = defaultdict(float)
    for key, p in joint.items():
        sums[tuple(key[axis] for axis in axes)] += p
    return -sum(p * math.log2(p) for p in sums.values() if p > 0)


S, U, SYMBOL = 0, 1, 2


def test_two_states_that_share_a_symbol_by_hand():
    # State 0 sends symbols 0 and 1, state 1 sends 1 and 2; label u picks candidate u.
    identity = [[1.0, 0.0], [0.0, 1.0]]
    law = law_of([0.5, 0.5], [[0.5, 0.5]] * 2, [[0, 1], [1, 2]], [[0.5, 0.5]] * 2, [identity] * 2)
    found = measure(law)
    # Symbols have probabilities 1/4, 1/2, 1/4; only symbol 1 leaves the label open.
    assert float(found.i_ux) == pytest.approx(0.5)
    assert float(found.i_us) == pytest.approx(0, abs=1e-15)
    assert float(found.rate) == pytest.approx(0.5)
    assert float(found.i_ux_given_s) == pytest.approx(1)
    assert float(found.cost) == pytest.approx(0, abs=1e-15)
    assert float(found.cover_entropy) == pytest.approx(1)


def test_labels_that_say_the_symbol_reach_the_entropy():
    # As above, but the label names the symbol: U = X, and the rate is H(X|S).
    first = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]
    second = [[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]
    law = law_of([0.5, 0.5], [[0.5, 0.5]] * 2, [[0, 1], [1, 2]], [[0.5, 0.5, 0], [0, 0.5, 0.5]], [first, second])
    found = measure(law)
    assert float(found.i_ux) == pytest.approx(1.5)
    assert float(found.i_us) == pytest.approx(0.5)
    assert float(found.rate) == pytest.approx(1)


def test_cost_of_a_tilted_law_by_hand():
    law = law_of([0.25, 0.75], [[0.5, 0.5], [0.9, 0.1]], [[0, 1], [0, 1]], [[1.0], [1.0]], [[[0.7, 0.3]], [[0.9, 0.1]]])
    assert float(measure(law).cost) == pytest.approx(0.25 * 0.2)
    assert float(measure(law).rate) == pytest.approx(0, abs=1e-15)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.booleans())
def test_measures_equal_sums_over_the_joint_law(seed, sparse):
    law = random_law(uneven_tree(3, 2, 4, 0.5, seed), 4, seed, sparse).blocks[1]
    joint = joint_of(law)
    found = measure(law)
    assert float(found.i_ux) == pytest.approx(h(joint, U) + h(joint, SYMBOL) - h(joint, U, SYMBOL), abs=1e-12)
    assert float(found.i_us) == pytest.approx(h(joint, U) + h(joint, S) - h(joint, U, S), abs=1e-12)
    given_s = h(joint, U, S) + h(joint, SYMBOL, S) - h(joint, U, SYMBOL, S) - h(joint, S)
    assert float(found.i_ux_given_s) == pytest.approx(given_s, abs=1e-12)
    assert float(found.rate) == pytest.approx(float(found.i_ux - found.i_us), abs=1e-12)
    induced = defaultdict(float)
    for (s, _, _, x), p in joint.items():
        induced[s, x] += p
    variation = 0.0
    for s, z in enumerate(law.state_probs.tolist()):
        for x, p in enumerate(law.cover[s].tolist()):
            variation += abs(induced[s, x] - z * p) / 2
    assert float(found.cost) == pytest.approx(variation, abs=1e-12)


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_rate_is_bounded_by_the_entropy_of_the_induced_law(seed):
    law = random_law(uneven_tree(3, 2, 4, 0.5, seed), 8, seed).blocks[1]
    joint = joint_of(law)
    found = measure(law)
    assert float(found.rate) <= h(joint, SYMBOL, S) - h(joint, S) + 1e-12
    # Gelfand-Pinsker: I(U;X) - I(U;S) = I(U;X|S) - I(U;S|X).
    i_us_given_x = h(joint, U, SYMBOL) + h(joint, S, SYMBOL) - h(joint, U, S, SYMBOL) - h(joint, SYMBOL)
    assert float(found.rate) == pytest.approx(float(found.i_ux_given_s) - i_us_given_x, abs=1e-12)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=3), st.booleans())
def test_many_laws_at_once_are_measured_as_one_by_one(seeds, one_tree):
    trees = [uneven_tree(3, 2, 4, 0.5, seeds[0] if one_tree else seed) for seed in seeds]
    laws = [random_law(tree, 4, seed).blocks[0] for tree, seed in zip(trees, seeds, strict=True)]
    batch = BlockLaw(
        *(
            torch.stack([getattr(law, field.name) for law in laws], -1)
            for field in fields(BlockLaw)
            if field.name != "shared"
        )
    )
    if one_tree:
        batch = replace(batch, cover=batch.cover[..., :1], symbol=batch.symbol[..., :1])
    found, parts = measure(batch), measure_by_state(batch)
    for number, law in enumerate(laws):
        for field in fields(Measures):
            expected = float(getattr(measure(law), field.name))
            values = getattr(found, field.name)
            assert float(values[number]) == pytest.approx(expected, abs=1e-13)
        for values, expected in zip(parts, measure_by_state(law), strict=True):
            torch.testing.assert_close(values[:, number], expected, rtol=0, atol=1e-13)


def test_parts_of_the_states_sum_to_the_measures():
    law = random_law(uneven_tree(3, 2, 4, 0.5, 3), 8, 3).blocks[1]
    rates, costs = measure_by_state(law)
    found = measure(law)
    assert float(rates.sum()) == pytest.approx(float(found.rate), abs=1e-12)
    assert float(costs.sum()) == pytest.approx(float(found.cost), abs=1e-12)


@settings(max_examples=25)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1000))
def test_costs_of_the_blocks_bound_the_variation_of_the_text(prompts, blocks, seed):
    tree = uneven_tree(prompts, blocks, 4, 0.5, seed)
    law = random_law(tree, 4, seed)
    texts = {}

    def walk(number, state, path, marked, plain):
        if number == blocks:
            texts[path] = (marked, plain)
            return
        block = law.blocks[number]
        for x in range(4):
            if block.symbol[state, x] >= 0:
                sent = sum(float(block.p_label[state, u] * block.p_candidate[state, u, x]) for u in range(4))
                child = int(tree.blocks[number].child[state, x])
                walk(number + 1, child, (*path, x), marked * sent, plain * float(block.cover[state, x]))

    for prompt, probability in enumerate(tree.prior):
        walk(0, prompt, (prompt,), probability, probability)
    expected = sum(abs(marked - plain) for marked, plain in texts.values()) / 2
    children = tuple(torch.from_numpy(block.child) for block in tree.blocks[:-1])
    found = float(text_total_variation(law.blocks, children))
    assert found == pytest.approx(expected, abs=1e-12)
    assert found <= sum(float(measure(block).cost) for block in law.blocks) + 1e-12


def test_entropy_and_variation_of_small_laws():
    assert float(entropy(tensor([0.5, 0.25, 0.25, 0.0]))) == pytest.approx(1.5)
    assert float(entropy(tensor([1.0, 0.0]))) == 0
    assert float(total_variation(tensor([1.0, 0.0]), tensor([0.0, 1.0]))) == 1
    assert float(total_variation(tensor([0.5, 0.5]), tensor([0.75, 0.25]))) == pytest.approx(0.25)


def test_gradients_are_finite_where_probabilities_are_zero():
    tree = synthetic_tree(2, 1, 3, 4, 1.0, seed=0)
    law = random_law(tree, 4, 0, sparse=True).blocks[0]
    p_label = law.p_label.clone().requires_grad_()
    found = measure(BlockLaw(law.state_probs, law.cover, law.symbol, p_label, law.p_candidate))
    (found.rate - found.cost).backward()
    assert torch.isfinite(p_label.grad).all()


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0, 1)), max_size=5), st.floats(0.01, 1))
def test_totals_weigh_the_first_block_by_gamma(pairs, gamma):
    nothing = torch.tensor(0.0)
    measures = [Measures(tensor(rate), tensor(cost), *[nothing] * 4) for rate, cost in pairs]
    totals = discounted_totals(measures, gamma)
    for found, column in ((totals.rate, 0), (totals.cost, 1)):
        value = 0.0
        for pair in reversed(pairs):
            value = gamma * (pair[column] + value)
        assert found == pytest.approx(value, abs=1e-12)
