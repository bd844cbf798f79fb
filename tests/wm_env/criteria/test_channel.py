"""Channels of blocks against enumeration of edits, token by token."""

import itertools

import numpy as np
import pytest
import torch
from small_laws import random_law
from small_trees import uneven_tree

from wm_env.criteria.channel import erasure_channel, received_law, substitution_channel, tree_channels
from wm_env.information import measure
from wm_env.synthetic import synthetic_tree


def seen_by_hand(block, noise):
    """P(y|x,s) with the block as it arrives: tokens, or None where one was erased."""
    received = []
    for state in range(len(block.cover)):
        for x in np.flatnonzero(block.cover[state] > 0):
            for edits in itertools.product((False, True), repeat=block.tokens.shape[2]):
                chance = float(np.prod([noise if edit else 1 - noise for edit in edits]))
                y = tuple(None if edit else int(t) for edit, t in zip(edits, block.tokens[state, x], strict=True))
                received.append((state, int(x), y, chance))
    return received


@pytest.mark.parametrize("noise", [0.05, 0.4])
def test_rate_behind_erasures_equals_that_of_all_patterns(noise):
    tree = uneven_tree(2, 1, 5, 0.6, 3)
    law = random_law(tree, 4, 0).blocks[0]
    received = seen_by_hand(tree.blocks[0], noise)
    names = {y: number for number, y in enumerate(dict.fromkeys(y for _, _, y, _ in received))}
    joint = np.zeros((len(names), 4))
    for state, x, y, chance in received:
        given = (law.p_label[state] * law.p_candidate[state, :, x]).numpy()
        joint[names[y]] += float(law.state_probs[state]) * chance * given
    h_u_given_y = -(joint * np.log2(np.where(joint > 0, joint / joint.sum(1, keepdims=True), 1))).sum()
    p = law.p_label.numpy()
    h_u_given_s = -(law.state_probs.numpy()[:, None] * p * np.log2(np.where(p > 0, p, 1))).sum()
    found = measure(received_law(law, erasure_channel(tree.blocks[0], noise))).rate
    assert float(found) == pytest.approx(h_u_given_s - h_u_given_y, abs=1e-10)


@pytest.mark.parametrize("name", ["erasure", "substitution"])
def test_without_noise_the_rate_is_that_of_the_block(name):
    tree = uneven_tree(2, 2, 6, 0.5, 1)
    law = random_law(tree, 8, 1)
    for block, channel in zip(law.blocks, tree_channels(tree, name, 0.0), strict=True):
        assert float(measure(received_law(block, channel)).rate) == pytest.approx(float(measure(block).rate), abs=1e-12)


@pytest.mark.parametrize("make", [erasure_channel, substitution_channel])
def test_kernels_are_laws_on_outputs_of_the_state(make):
    block = uneven_tree(3, 1, 6, 0.5, 2).blocks[0]
    channel = make(block, 0.2)
    present = torch.from_numpy(block.cover > 0)
    assert torch.allclose(channel.kernel.sum(2), present.double(), atol=1e-12)
    assert not (channel.kernel * (channel.output < 0)[:, None]).any()


def test_a_wrong_candidate_is_one_of_the_others():
    block = synthetic_tree(1, 1, 4, 4, 1.5).blocks[0]
    kernel = substitution_channel(block, 0.1).kernel[0]
    intact = 0.9**4
    expected = torch.full((4, 4), (1 - intact) / 3, dtype=torch.float64).fill_diagonal_(intact)
    assert torch.allclose(kernel, expected)


def test_a_block_often_survives_an_edit():
    """What is lost behind erasures is less than the share of blocks with an edit."""
    tree = synthetic_tree(2, 1, 8, 8, 2.5, 0.0, 1)
    law = random_law(tree, 8, 0).blocks[0]
    clean = float(measure(law).i_ux)
    edited = float(measure(received_law(law, erasure_channel(tree.blocks[0], 0.1))).i_ux)
    assert clean * 0.9**8 < edited < clean


def test_bad_arguments_are_named():
    tree = synthetic_tree(1, 1, 4, 4, 1.5)
    with pytest.raises(ValueError, match="channel='deletion'"):
        tree_channels(tree, "deletion", 0.1)
    with pytest.raises(ValueError, match=r"noise=1\.5"):
        tree_channels(tree, "erasure", 1.5)
