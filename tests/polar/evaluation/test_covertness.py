import dataclasses
import itertools

import numpy as np
import pytest
import torch
from small_laws import noiseless_law, random_law, word_of
from small_trees import uneven_tree

from polar.code.codec import code_channel
from polar.code.construction import BlockCode
from polar.evaluation.covertness import (
    average_entropy,
    message_laws,
    message_variations,
    retained_mass,
    text_variation,
    untruncated_bound,
)
from wm_env.synthetic import synthetic_tree

LENGTH = 4


@pytest.mark.parametrize("pad_bits", [0, 1, 2, 3])
def test_message_laws_average_over_the_keys(pad_bits):
    rng = np.random.default_rng(pad_bits)
    channel = torch.from_numpy(rng.dirichlet(np.ones(5), size=(2, 8, 4)))
    laws = message_laws(channel, pad_bits)
    for message in range(8):
        keys = [
            channel[:, message ^ (pad << (3 - pad_bits)), surplus] for pad in range(2**pad_bits) for surplus in range(4)
        ]
        expected = torch.stack(keys).mean(0)
        assert torch.allclose(laws[:, message % 2 ** (3 - pad_bits)], expected, atol=1e-14)


@pytest.mark.parametrize("seed", range(6))
def test_variation_of_the_encoder_is_that_of_the_message_bits_from_uniform(seed):
    # The candidates say V, and the cover is what the uncoded law induces: only the law of V_M* is disturbed.
    law = noiseless_law(4, 16, seed)
    message_set = [(0, 1), (1, 2, 3), (3,), (0, 2), (0, 1, 2, 3), ()][seed]
    channel = code_channel(law, BlockCode(LENGTH, message_set))
    variation = message_variations(law, message_laws(channel, len(message_set)))
    expected = 0.0
    for z, row in zip(law.state_probs.tolist(), law.p_label.tolist(), strict=True):
        of_word = [0.0] * 2 ** len(message_set)
        for label, probability in enumerate(row):
            of_word[word_of(label, LENGTH, message_set)] += probability
        expected += z * sum(abs(p - 1 / len(of_word)) for p in of_word) / 2
    assert variation.tolist() == pytest.approx([expected], abs=1e-13)


def text_laws(tree, conditionals):
    """Path of candidates -> probability, for the cover or for one law per block."""
    texts = {}

    def walk(number, state, path, probability):
        if number == len(tree.blocks):
            texts[path] = probability
            return
        for x, p in enumerate(conditionals[number][state]):
            if tree.blocks[number].symbol[state, x] >= 0:
                walk(number + 1, tree.blocks[number].child[state, x], (*path, x), probability * float(p))

    for prompt, probability in enumerate(tree.prior):
        walk(0, prompt, (prompt,), probability)
    return texts


@pytest.mark.parametrize("pad_bits", [0, 1, 2])
@pytest.mark.parametrize("tree", [synthetic_tree(2, 3, 3, LENGTH, 1.2, 0.3, 4), uneven_tree(3, 2, 4, 0.5, 1)])
def test_text_variation_equals_the_sum_over_all_texts(tree, pad_bits):
    length = tree.block_length
    law = random_law(tree, 16, 8)
    code = BlockCode(length, (length - 3, length - 1))
    laws = [message_laws(code_channel(block, code), pad_bits) for block in law.blocks]
    plain = text_laws(tree, [block.cover for block in tree.blocks])
    differences = []
    for messages in itertools.product(range(2 ** (2 - pad_bits)), repeat=len(laws)):
        marked = text_laws(tree, [of_block[:, m] for of_block, m in zip(laws, messages, strict=True)])
        differences.append(sum(abs(marked[path] - plain[path]) for path in plain) / 2)
    assert text_variation(tree, laws) == pytest.approx(np.mean(differences), abs=1e-13)


def test_text_variation_says_when_the_sum_is_too_large():
    tree = synthetic_tree(1, 1, 2, LENGTH, 0.5)
    laws = [torch.full((1, 1, 2), 0.5, dtype=torch.float64).expand(1, 2**32, 2)]
    assert text_variation(tree, laws) is None
    assert untruncated_bound(tree, None) is None


def with_retained(tree, pool):
    rng = np.random.default_rng(0)
    blocks = tuple(
        dataclasses.replace(block, retained=rng.uniform(0.2, 1, size=len(block.cover))) for block in tree.blocks
    )
    return dataclasses.replace(tree, blocks=blocks, meta=dataclasses.replace(tree.meta, pool=pool))


def test_bound_against_the_untruncated_model():
    tree = with_retained(synthetic_tree(2, 2, 3, LENGTH, 1.2), "top")
    inside = sum(
        tree.prior[s]
        * tree.blocks[0].retained[s]
        * tree.blocks[0].cover[s, x]
        * tree.blocks[1].retained[tree.blocks[0].child[s, x]]
        for s in range(2)
        for x in range(3)
    )
    assert retained_mass(tree) == pytest.approx(inside)
    assert untruncated_bound(tree, 0.05) == pytest.approx(0.05 + 1 - inside)
    assert untruncated_bound(tree, 1.0) == 1.0
    assert untruncated_bound(with_retained(tree, "sampled"), 0.05) == 0.05


def test_the_bound_holds_for_the_exact_variation():
    tree = with_retained(synthetic_tree(2, 2, 3, LENGTH, 1.2), "top")
    law = random_law(tree, 16, 1)
    laws = [message_laws(code_channel(block, BlockCode(LENGTH, (0, 1))), 2) for block in law.blocks]
    marked = text_laws(tree, [of_block[:, 0] for of_block in laws])
    kept = text_laws(tree, [block.cover * block.retained[:, None] for block in tree.blocks])
    # The model's other texts have mass 1 - sum of `kept` and are never sent.
    exact = 1 - sum(min(marked[path], kept[path]) for path in kept)
    text = text_variation(tree, laws)
    assert exact <= untruncated_bound(tree, text) + 1e-12


def test_average_entropy_of_a_synthetic_tree_is_what_was_asked_for():
    assert average_entropy(synthetic_tree(3, 2, 6, LENGTH, 1.9)) == pytest.approx(1.9)
