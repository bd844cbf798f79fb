"""Limits of several blocks against linear programmes over occupation measures, and codes against the limits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from small_trees import uneven_tree

from agents.planner.coded import plan_coded
from polar.evaluation.exact import evaluate
from polar.evaluation.settings import EvaluationSettings
from wm_env.synthetic import synthetic_tree
from wm_env.theory.limits import tree_limit
from wm_env.theory.steering import steered_limit, steered_pad_limit
from wm_env.tree import number_paths


def least_error(tree, bits, epsilon, gamma=1.0):
    """The programme as it stands, in occupation measures y, right mass c and excess e of two blocks."""
    first, second = tree.blocks
    sizes = first.cover.size, second.cover.size
    total = sum(sizes)
    cap = 0.5**bits
    rows, bounds, equal, value = [], [], [], []

    def row(entries):
        vector = np.zeros(3 * total)
        for place, number in entries:
            vector[place] += number
        return vector

    q = first.cover.shape[1]
    parents = {int(first.child[s, x]): s * q + x for s, x in zip(*np.nonzero(first.child >= 0), strict=True)}
    for number, block in enumerate(tree.blocks):
        for s, law in enumerate(block.cover):
            places = [number * sizes[0] + s * q + x for x in range(q)]
            inflow = [] if number == 0 else [(parents[s], 1.0)]
            mass = tree.prior[s] if number == 0 else 0.0
            equal.append(row([(place, 1.0) for place in places] + [(place, -z) for place, z in inflow]))
            value.append(mass)
            for place, p in zip(places, law, strict=True):
                rows.append(row([(total + place, 1.0), (place, -1.0)]))
                bounds.append(0.0)
                rows.append(row([(total + place, 1.0)] + [(other, -cap * z) for other, z in inflow]))
                bounds.append(cap * mass)
                rows.append(row([(place, 1.0), (2 * total + place, -1.0)] + [(other, -p * z) for other, z in inflow]))
                bounds.append(p * mass)
                if p == 0:
                    rows.append(row([(place, 1.0)]))
                    bounds.append(0.0)
    weights = np.concatenate([np.full(sizes[0], gamma), np.full(sizes[1], gamma**2)])
    rows.append(np.concatenate([np.zeros(2 * total), weights]))
    bounds.append(epsilon)
    right = np.concatenate([np.zeros(total), np.ones(total), np.zeros(total)]) / 2
    answer = linprog(-right, np.array(rows), bounds, np.array(equal), value)
    return 1 + answer.fun


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 2), st.sampled_from([0.0, 0.03, 0.2, 0.7]), st.sampled_from([1.0, 0.8]))
def test_the_limit_is_the_value_of_the_programme_and_its_laws_reach_it(seed, bits, epsilon, gamma):
    tree = uneven_tree(2, 2, 4, 0.5, seed)
    limit = steered_limit(tree, bits, epsilon, gamma)
    assert limit.block_error == pytest.approx(least_error(tree, bits, epsilon, gamma), abs=1e-8)
    assert limit.cost <= epsilon + 1e-9
    reach, error = tree.prior, 0.0
    for law, block in zip(limit.laws, tree.blocks, strict=True):
        error += reach @ (1 - np.minimum(law, 0.5**bits).sum(1)) / 2
        mass = reach[:, None] * law
        reach = np.array([mass[block.child == child].sum() for child in range(int(block.child.max()) + 1)])
    assert error == pytest.approx(limit.block_error, abs=1e-8)


def with_covers(tree, covers):
    blocks = [
        replace(block, cover=np.array(cover), log2_prob=np.log2(np.array(cover)))
        for block, cover in zip(tree.blocks, covers, strict=True)
    ]
    return replace(tree, blocks=tuple(blocks))


def test_variation_in_one_block_steers_the_next():
    """0.4 in the first block makes it even, and sends the text to the good state half of the time."""
    tree = with_covers(synthetic_tree(1, 2, 2, 4, 0.5, seed=1), [[[0.9, 0.1]], [[1 - 1e-9, 1e-9], [0.5, 0.5]]])
    limit = steered_limit(tree, 1, 0.4)
    assert limit.block_error == pytest.approx((0 + 0.5 * 0.5) / 2, abs=1e-6)
    assert steered_pad_limit(tree, 1, 0.4) == pytest.approx(0.125, abs=1e-6)
    # What the limit at the model's own states says is more, so it is none for codes that steer.
    assert tree_limit(tree, 1).block_error(0.2) > 0.2


def test_at_no_budget_the_limit_is_that_of_the_models_own_states():
    tree = uneven_tree(3, 2, 6, 0.5, 1)
    own = tree_limit(tree, 2)
    assert steered_limit(tree, 2, 0.0).block_error == pytest.approx(own.shared_key_block_error(0.0), abs=1e-9)
    assert steered_pad_limit(tree, 2, 0.0) <= own.block_error(0.0) + 1e-9
    assert steered_pad_limit(tree, 2, 0.0) == pytest.approx(own.block_error(0.0), abs=own.gap + 1e-6)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 2), st.sampled_from([0.0, 0.1, 0.4]))
def test_no_planned_code_beats_the_limits(seed, bits, epsilon):
    tree = synthetic_tree(2, 2, 5, 8, 1.9, 0.4, seed)
    law = plan_coded(tree, bits, epsilon, seen=number_paths(tree)).law
    keys = 1 << bits, 1 << bits + 2
    pad, dither = evaluate(
        tree, law, EvaluationSettings((bits,), keys, ("map",), ("path",), ("dither",), transmissions=0)
    )
    assert pad.bler >= steered_pad_limit(tree, bits, epsilon) - 1e-8
    assert dither.bler >= steered_limit(tree, bits, epsilon).block_error - 1e-8
