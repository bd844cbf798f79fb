import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.planner.adaptive import buy_bits, plan_adaptive
from polar.code.adaptive import AdaptiveSettings
from polar.evaluation.adaptive import evaluate_adaptive
from wm_env.information import measure
from wm_env.synthetic import synthetic_tree
from wm_env.theory.limits import best_partition


def random_prices(seed, states=5, most=3):
    rng = np.random.default_rng(seed)
    prices = np.cumsum(rng.gamma(0.5, size=(states, most + 1)), axis=1)
    prices[rng.random(prices.shape) < 0.2] = np.inf
    prices[:, 0] = 0
    return prices, rng.dirichlet(np.ones(states))


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.floats(0, 2))
def test_bought_bits_fit_the_budget_and_miss_the_best_by_less_than_one_step(seed, budget):
    prices, weights = random_prices(seed)
    states = np.arange(len(prices))
    chosen = buy_bits(prices, weights, budget)
    assert weights @ prices[states, chosen] <= budget + 1e-12
    best = max(
        weights @ np.array(lengths)
        for lengths in itertools.product(range(4), repeat=5)
        if np.isfinite(prices[states, lengths]).all() and weights @ prices[states, lengths] <= budget
    )
    assert best - 3 * weights.max() <= weights @ chosen <= best + 1e-12
    # Nothing that the rest of the budget would buy is left out.
    rest = budget - weights @ prices[states, chosen]
    for state, bits in enumerate(chosen):
        for longer in range(bits + 1, 4):
            assert not weights[state] * (prices[state, longer] - prices[state, bits]) < rest - 1e-9


def test_free_bits_are_always_taken():
    prices = np.array([[0, 0, 0, 0.5], [0, np.inf, 0, np.inf], [0, 0.1, 0.2, 0.3]])
    assert buy_bits(prices, np.full(3, 1 / 3), 0.0).tolist() == [2, 2, 0]
    assert buy_bits(np.array([[0, 1e-10]]), np.array([1e-5]), 0.0).tolist() == [0]


def test_where_a_step_does_not_fit_a_shorter_one_is_taken():
    assert buy_bits(np.array([[0, 0.1, 0.2]]), np.ones(1), 0.1).tolist() == [1]
    assert buy_bits(np.array([[0, 0.005, 0.1805, 0.349]]), np.ones(1), 0.2).tolist() == [2]
    # The cheaper step of the other state comes before the shorter one.
    assert buy_bits(np.array([[0, 0.3, 0.4], [0, 0.25, np.inf]]), np.ones(2), 0.35).tolist() == [0, 1]


def test_a_budget_is_spent_to_its_end():
    # 0.3 - 0.1 - 0.1 is less than 0.1 by rounding.
    assert buy_bits(np.array([[0, 0.1]] * 3), np.ones(3), 0.3).tolist() == [1, 1, 1]


def test_the_cheapest_bits_come_first_over_the_convex_hull():
    # Two bits in state 0 cost 0.2 each, less than one bit in either state.
    prices = np.array([[0, 0.3, 0.4], [0, 0.25, np.inf]])
    assert buy_bits(prices, np.ones(2), 0.4).tolist() == [2, 0]
    assert buy_bits(prices, np.ones(2), 0.65).tolist() == [2, 1]


def test_more_budget_never_means_fewer_bits_and_the_price_is_the_partitions_loss():
    tree = synthetic_tree(2, 1, 10, 8, 2.8, seed=3)
    plans = [plan_adaptive(tree, epsilon) for epsilon in (0.0, 0.02, 0.1, 0.5)]
    assert all(first.bits <= second.bits for first, second in itertools.pairwise(plans))
    for plan, epsilon in zip(plans, (0.0, 0.02, 0.1, 0.5), strict=True):
        block = plan.law.blocks[0]
        expected = sum(
            z * (1 - best_partition(row, int(bits), nodes=0)[1])
            for z, row, bits in zip(tree.prior, tree.blocks[0].cover, plan.lengths[0], strict=True)
        )
        assert plan.cost == pytest.approx(expected, abs=1e-9)
        assert float(measure(block).cost) == pytest.approx(plan.cost, abs=1e-9)
        assert plan.cost <= epsilon + 1e-12


def test_one_state_gets_the_longest_length_that_it_can_pay():
    tree = synthetic_tree(1, 1, 8, 8, 2.5, seed=4)
    prices = [0.0, *(1 - best_partition(tree.blocks[0].cover[0], bits, nodes=0)[1] for bits in (1, 2, 3))]
    # After the first bit two more are cheaper by the bit than one more, and too dear.
    assert (prices[3] - prices[1]) / 2 < prices[2] - prices[1]
    assert prices[2] < 0.2 < prices[3]
    assert plan_adaptive(tree, 0.2).lengths[0].tolist() == [2]


def evenness(cover):
    """Total variation that one bit without error costs a state, by all partitions into two words."""
    loads = [sum(np.array(cover)[list(part)]) for size in range(7) for part in itertools.combinations(range(6), size)]
    return min(abs(load - 0.5) for load in loads)


def one_bit_tree(first, second):
    """A tree of six candidates a state, no two states alike, with these covers of the blocks, shape (N, 6)."""
    tree = synthetic_tree(len(first), 2, 6, 8, 2.0)
    covers = [first, np.resize(second, (6 * len(first), 6))]
    blocks = [
        replace(block, cover=cover, log2_prob=np.log2(cover)) for block, cover in zip(tree.blocks, covers, strict=True)
    ]
    return replace(tree, blocks=tuple(blocks))


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.booleans())
def test_states_that_divide_evenly_carry_a_bit_for_nothing_whatever_was_spent_before(seed, spend):
    rng = np.random.default_rng(seed)
    even = rng.permuted(rng.dirichlet(np.ones(3), (4, 2)).reshape(4, 6) / 2, axis=1)
    uneven = rng.dirichlet(np.full(6, 30.0), 3)
    price = np.mean([evenness(cover) for cover in uneven])
    assert price > 1e-6
    plan = plan_adaptive(one_bit_tree(uneven, even), price if spend else 0.0, labels=2)
    assert plan.lengths[0].tolist() == [int(spend)] * 3
    assert plan.lengths[1].tolist() == [1] * 18
    assert plan.cost == pytest.approx(price if spend else 0, abs=1e-12)
    law = plan.law.blocks[1]
    assert law.p_candidate.mean(1) == pytest.approx(law.cover, abs=1e-12)
    assert (law.p_candidate.amin(1).sum(-1) < 1e-12).all()


def test_with_dither_every_state_carries_its_min_entropy_at_no_total_variation():
    """Whole bits, for states that nothing confuses."""
    tree = synthetic_tree(4, 2, 12, 8, 3.0, seed=1)
    plan = plan_adaptive(tree, 0.0, dither_bits=5)
    for block, law, lengths in zip(tree.blocks, plan.law.blocks, plan.lengths, strict=True):
        assert lengths.tolist() == [int(np.floor(-np.log2(max(row)))) for row in block.cover.tolist()]
        assert law.p_candidate.mean(1) == pytest.approx(law.cover, abs=1e-12)
    assert len(set(plan.lengths[1].tolist())) > 1
    assert plan.cost == 0
    assert plan_adaptive(tree, 0.0).bits == 0


@pytest.mark.parametrize("dither_bits", [0, 2, 4])
def test_a_decoder_that_knows_symbol_and_dither_is_never_in_doubt(dither_bits):
    """A loop over everything that is ever sent, in states that share candidates: one length and one word each time."""
    tree = synthetic_tree(6, 1, 8, 8, 2.5, overlap=0.6, seed=3)
    plan = plan_adaptive(tree, 0.3, labels=64, dither_bits=dither_bits)
    law, slots = plan.law.blocks[0], 1 << dither_bits
    meanings = {}
    for state, bits in enumerate(plan.lengths[0].tolist()):
        # Of six label bits the first are the message, and the next the leading digits of the encoder's draw.
        for label in range(64):
            word, slot = label >> 6 - bits, (label << bits & 63) * slots >> 6
            for x in range(8):
                if law.p_candidate[state, label, x] > 1e-12:
                    key = int(law.symbol[state, x]), slot
                    meanings.setdefault(key, set()).add((bits, word))
    assert all(len(found) == 1 for found in meanings.values())
    assert plan.bits > 0.5


def test_no_budget_at_all_is_refused():
    with pytest.raises(ValueError, match="epsilon"):
        plan_adaptive(synthetic_tree(1, 1, 4, 4, 1.5), -0.1)


def test_states_that_look_alike_have_one_length_and_make_no_errors():
    tree = synthetic_tree(6, 2, 8, 4, 2.5, overlap=0.6, seed=3)
    plan = plan_adaptive(tree, 0.6)
    symbols = [set(row[cover > 0]) for row, cover in zip(tree.blocks[0].symbol, tree.blocks[0].cover, strict=True)]
    shared = 0
    for first in range(6):
        for second in range(first):
            if symbols[first] & symbols[second]:
                shared += 1
                assert plan.lengths[0][first] == plan.lengths[0][second]
    assert shared > 0
    point = evaluate_adaptive(tree, plan.law, AdaptiveSettings())
    assert point.mean_bits == pytest.approx(plan.bits / 2)
    assert plan.bits > 0
    assert point.bler == pytest.approx(0, abs=1e-9)
