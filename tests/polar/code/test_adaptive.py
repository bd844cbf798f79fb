import dataclasses

import numpy as np
import pytest
import torch
from small_laws import random_law
from small_trees import uneven_tree

from agents.planner.adaptive import plan_adaptive
from polar.code.adaptive import AdaptiveSettings, adapt_code, adaptive_errors, decode_states
from polar.code.codec import code_channel
from polar.code.construction import BlockCode, chain_entropies
from polar.code.decoders import observations
from polar.evaluation.adaptive import evaluate_adaptive
from wm_env.information import total_variation
from wm_env.law import BlockLaw, JointLaw, induced_cover
from wm_env.synthetic import synthetic_tree
from wm_env.theory.error_free import error_free_bits_by_state

LENGTH = 4
TREE = synthetic_tree(3, 2, 5, LENGTH, 1.9, overlap=0.4, seed=5)
LAW = random_law(TREE, 16, 5)


def codes_of(law, settings, sets=None):
    chosen = sets if sets is not None else (None,) * len(law.blocks)
    return [
        adapt_code(block, chain_entropies(block, law.block_length), positions, settings)
        for block, positions in zip(law.blocks, chosen, strict=True)
    ]


@pytest.mark.parametrize(("error", "extra"), [(0.6, 0.1), (0.4, 0.3), (1.0, 1.0)])
def test_every_state_gets_the_longest_message_that_it_carries_well_enough(error, extra):
    code = codes_of(LAW, AdaptiveSettings(error, extra), sets=((0, 1, 2, 3), (3, 1, 2)))[1]
    block = LAW.blocks[1]
    share = total_variation(induced_cover(block), block.cover)
    for state in range(len(block.cover)):
        good = []
        for bits in range(4):
            channel = code_channel(block, BlockCode(LENGTH, (3, 1, 2)[:bits]))[state, :, 0]
            success = sum(float(channel[:, x].max()) for x in range(5)) / 2**bits
            variation = sum(abs(float(channel[:, x].mean() - block.cover[state, x])) for x in range(5)) / 2
            if 1 - success <= error + 1e-9 and variation - float(share[state]) <= extra + 1e-9:
                good.append(bits)
        assert code.lengths[state] == max(good)
    assert len(set(code.lengths)) > 1 or error == 1.0


def test_no_error_allowed_means_no_bits_where_candidates_overlap():
    # Every word of this law can send every candidate.
    assert all((code.lengths == 0).all() for code in codes_of(LAW, AdaptiveSettings(0.0, 1.0)))


@pytest.mark.parametrize("dither_bits", [0, 2])
def test_errors_equal_a_loop_over_states_words_dithers_and_candidates(dither_bits):
    codes = codes_of(LAW, AdaptiveSettings(0.6, 0.5, dither_bits))
    for block, code, seen in zip(LAW.blocks, codes, observations(TREE, "path"), strict=True):
        decoded = decode_states(block, code, seen)
        sent = wrong = lost = 0.0
        for d in range(2**dither_bits):
            channels = [code_channel(block, code.codes[code.lengths[s]])[s, :, d] for s in range(len(block.cover))]
            best = {}
            for s, channel in enumerate(channels):
                for x in range(5):
                    weight = float(block.state_probs[s] * channel[:, x].mean())
                    if weight > best.get(int(seen[s, x]), (-1.0,))[0]:
                        best[int(seen[s, x])] = (weight, s, x)
            for s, channel in enumerate(channels):
                bits = int(code.lengths[s])
                for word in range(2**bits):
                    for x in range(5):
                        p = float(block.state_probs[s] * channel[word, x]) / 2 ** (bits + dither_bits)
                        _, found, place = best[int(seen[s, x])]
                        decision = int(channels[found][:, place].argmax())
                        same = code.lengths[found] == bits
                        sent += p * bits
                        wrong += p * (bin(decision ^ word).count("1") if same else bits)
                        lost += p * (not same or decision != word)
        assert adaptive_errors(block, code, decoded) == pytest.approx((sent, wrong, lost), abs=1e-12)


@pytest.mark.parametrize("dither_bits", [0, 3])
def test_exact_rate_agrees_with_transmissions(dither_bits):
    settings = AdaptiveSettings(0.6, 0.5, dither_bits)
    point = evaluate_adaptive(TREE, LAW, settings, 20_000, seed=1)
    assert point.mean_bits > 0.5
    sigma = np.sqrt(point.ber * (1 - point.ber) * point.longest / (2 * 20_000 * point.mean_bits))
    assert abs(point.ber - point.ber_mc) <= 4 * sigma
    assert point.ber_mc_ci95[0] <= point.ber <= point.ber_mc_ci95[1]
    assert sum(point.share_by_length) == pytest.approx(1)
    assert point.mean_bits == pytest.approx(sum(b * share for b, share in enumerate(point.share_by_length)))
    assert point == evaluate_adaptive(TREE, LAW, settings, 20_000, seed=1)


def two_state_law(shared):
    """State 0 carries one bit on two symbols, state 1 nothing on one; with `shared` that symbol is one of state 0's."""
    p_label = torch.full((2, 2), 0.5, dtype=torch.float64)
    p_candidate = torch.tensor([[[1, 0], [0, 1]], [[1, 0], [1, 0]]], dtype=torch.float64)
    cover = torch.tensor([[0.5, 0.5], [1, 0]], dtype=torch.float64)
    symbol = torch.tensor([[0, 1], [1 if shared else 2, -1]])
    return BlockLaw(torch.tensor([0.75, 0.25], dtype=torch.float64), cover, symbol, p_label, p_candidate)


@pytest.mark.parametrize("shared", [False, True])
def test_a_wrong_state_means_a_wrong_length(shared):
    block = two_state_law(shared)
    law = JointLaw((block,), 1, "", ((0,),))
    code = codes_of(law, AdaptiveSettings(), law.message_sets)[0]
    assert code.lengths.tolist() == [1, 0]
    decoded = decode_states(block, code, block.symbol)
    # 3/4 of a bit is sent; state 1's symbol looks like state 0's word 1, which is more likely.
    assert adaptive_errors(block, code, decoded) == pytest.approx((0.75, 0, 0.25 if shared else 0))


@pytest.mark.parametrize("epsilon", [0.01, 0.1])
def test_planned_lengths_are_found_again_and_free_of_errors(epsilon):
    tree = synthetic_tree(2, 2, 12, 8, 3.0, seed=7)
    plan = plan_adaptive(tree, epsilon)
    codes = codes_of(plan.law, AdaptiveSettings(), plan.law.message_sets)
    for code, planned in zip(codes, plan.lengths, strict=True):
        assert (code.lengths >= planned).all()
    point = evaluate_adaptive(tree, plan.law, AdaptiveSettings(), 200)
    assert point.ber == pytest.approx(0, abs=1e-9)
    assert point.ber_mc == 0
    assert 2 * point.mean_bits >= plan.bits - 1e-9
    assert point.tv_text <= plan.cost + 1e-9 <= epsilon + 2e-9


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_with_dither_the_planned_bits_arrive_and_the_limit_of_lengths_by_state_is_near(epsilon):
    tree = synthetic_tree(2, 2, 12, 8, 3.0, seed=7)
    plan = plan_adaptive(tree, epsilon, dither_bits=4)
    point = evaluate_adaptive(tree, plan.law, AdaptiveSettings(dither_bits=4), 500)
    assert (point.bler, point.ber_mc) == (pytest.approx(0, abs=1e-9), 0)
    assert 2 * point.mean_bits == pytest.approx(plan.bits)
    assert point.tv_text <= epsilon + 1e-9
    # All states but one can have all that the budget buys with lengths that follow the state alone.
    covers, probs = zip(*((block.cover.numpy(), block.state_probs.numpy()) for block in plan.law.blocks), strict=True)
    by_state = error_free_bits_by_state(covers, probs, point.tv_mean)
    assert by_state - 0.5 <= point.mean_bits <= by_state + 1e-9
    assert by_state <= point.limit + 1e-9
    # The key that the planner counted on is needed.
    assert evaluate_adaptive(tree, plan.law, AdaptiveSettings()).mean_bits < point.mean_bits


def test_dither_has_bounds():
    for bits in (-1, 9):
        with pytest.raises(ValueError, match=f"dither_bits={bits}: 0 to 8"):
            AdaptiveSettings(dither_bits=bits)


def test_uneven_states_and_padding():
    tree = uneven_tree(3, 2, 6, 0.0, 2)
    plan = plan_adaptive(tree, 0.2)
    point = evaluate_adaptive(tree, plan.law, AdaptiveSettings(), 100)
    assert point.ber == pytest.approx(0, abs=1e-9)
    alone = [s for s, row in enumerate(tree.blocks[0].cover) if (row > 0).sum() == 1]
    assert alone
    assert all(plan.lengths[0][s] == 0 for s in alone)


def test_a_law_without_bits_has_no_estimate():
    point = evaluate_adaptive(TREE, dataclasses.replace(LAW), AdaptiveSettings())
    assert (point.mean_bits, point.longest, point.ber, point.ber_mc) == (0, 0, 0, None)
