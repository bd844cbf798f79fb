import dataclasses
import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_laws import bits_of, random_law

from polar.code.construction import (
    ChainEntropies,
    chain_entropies,
    conditional_chain,
    design_code,
    frozen_order,
    length_set,
    message_room,
    threshold_set,
)
from polar.code.key_schedule import KeySchedule
from wm_env.synthetic import synthetic_tree


def entropy_by_prefix(joint, length):
    """H(V_i | V^{i-1}, side) from dictionaries of prefix probabilities."""
    chain = []
    for i in range(length):
        longer, shorter = defaultdict(float), defaultdict(float)
        for side, row in enumerate(joint):
            for label, probability in enumerate(row):
                word = bits_of(label, length)
                longer[side, tuple(word[: i + 1])] += probability
                shorter[side, tuple(word[:i])] += probability
        chain.append(-sum(p * math.log2(p / shorter[side, word[:-1]]) for (side, word), p in longer.items() if p > 0))
    return chain


@settings(max_examples=25)
@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4), st.integers(0, 10_000))
def test_chain_entropies_equal_brute_force(power, fewer, sides, seed):
    length = 2**power
    bits = max(length - fewer, 0)
    joint = np.random.default_rng(seed).gamma(0.3, size=(sides, 2**bits))
    joint /= joint.sum()
    chain = conditional_chain(torch.from_numpy(joint), length)
    assert chain == pytest.approx(entropy_by_prefix(joint, length), abs=1e-12)
    assert chain[: length - bits] == (0.0,) * (length - bits)


def test_chain_sums_to_the_conditional_entropy_of_the_label():
    tree = synthetic_tree(3, candidates=6, block_length=8, entropy=2, overlap=0.5, seed=1)
    law = random_law(tree, 32, seed=2).blocks[1]
    chains = chain_entropies(law, 8)
    h_u_given_s = sum(
        -float(z) * sum(p * math.log2(p) for p in row.tolist() if p > 0)
        for z, row in zip(law.state_probs, law.p_label, strict=True)
    )
    assert sum(chains.given_state) == pytest.approx(h_u_given_s, abs=1e-12)
    by_symbol = defaultdict(float)
    for s in range(len(law.state_probs)):
        for u in range(32):
            for x in range(6):
                joint = float(law.state_probs[s] * law.p_label[s, u] * law.p_candidate[s, u, x])
                by_symbol[int(law.symbol[s, x]), u] += joint
    of_symbol = defaultdict(float)
    for (symbol, _), p in by_symbol.items():
        of_symbol[symbol] += p
    h_u_given_x = -sum(p * math.log2(p / of_symbol[symbol]) for (symbol, _), p in by_symbol.items() if p > 0)
    assert sum(chains.given_output) == pytest.approx(h_u_given_x, abs=1e-12)


CHAINS = ChainEntropies(given_state=(0.0, 0.9, 0.8, 1.0), given_output=(0.0, 0.5, 0.05, 0.6), free=1)


def test_threshold_set_is_high_given_the_state_and_low_given_the_output():
    assert threshold_set(CHAINS, t_epsilon=0.3, t_delta=0.1) == (2,)
    assert threshold_set(CHAINS, t_epsilon=0.3, t_delta=0.55) == (1, 2)
    assert threshold_set(CHAINS, t_epsilon=math.inf, t_delta=math.inf) == (1, 2, 3)
    assert threshold_set(CHAINS, t_epsilon=0.05, t_delta=0.1) == ()


def test_length_set_takes_the_largest_differences_in_ascending_order():
    assert length_set(CHAINS, 0) == ()
    assert length_set(CHAINS, 1) == (2,)
    assert length_set(CHAINS, 2) == (1, 2)  # 0.4 each on 1 and 3: the earlier one
    assert length_set(CHAINS, 3) == (1, 2, 3)
    with pytest.raises(ValueError, match="carries 0 to 3"):
        length_set(CHAINS, 4)


def test_rounding_noise_does_not_choose_positions():
    chains = ChainEntropies((1.0, 1.0 - 2e-15, 1.0, 1.0), (1e-15, 0.0, 2e-15, 0.0), free=0)
    assert length_set(chains, 2) == (0, 1)
    assert frozen_order(chains, (0, 1)) == (2, 3)


def test_frozen_positions_follow_the_entropy_given_the_state():
    assert frozen_order(CHAINS, (2,)) == (3, 1)


def test_code_spends_the_surplus_of_the_key_as_asked():
    assert design_code(CHAINS, KeySchedule(1, 1)).frozen_set == ()
    code = design_code(CHAINS, KeySchedule(1, 3, "frozen"))
    assert (code.message_set, code.frozen_set, code.dither_bits) == ((2,), (3, 1), 0)
    assert (code.words, code.surplus_words) == (2, 4)
    code = design_code(CHAINS, KeySchedule(1, 9, "dither"))
    assert (code.message_set, code.frozen_set, code.dither_bits) == ((2,), (), 8)
    with pytest.raises(ValueError, match="only 2 positions are left"):
        design_code(CHAINS, KeySchedule(1, 4, "frozen"))


def test_code_keeps_the_message_set_of_the_law():
    assert design_code(CHAINS, KeySchedule(2, 3), chosen=(3, 1, 2)).message_set == (3, 1)
    with pytest.raises(ValueError, match="made for at most 1"):
        design_code(CHAINS, KeySchedule(2, 2), chosen=(3,))


def test_a_law_carries_what_its_smallest_block_and_message_set_leave():
    tree = synthetic_tree(2, 2, 4, 4, 1.5, seed=1)
    few, many = random_law(tree, 4, 0), random_law(tree, 16, 0)
    assert (message_room(few), message_room(many)) == (2, 4)
    mixed = dataclasses.replace(many, blocks=(many.blocks[0], few.blocks[1]))
    assert message_room(mixed) == 2
    assert message_room(dataclasses.replace(many, message_sets=((0, 1, 2), (3,)))) == 1
    assert message_room(dataclasses.replace(few, message_sets=((3, 2, 1), (3, 1, 2)))) == 2
