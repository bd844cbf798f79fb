import numpy as np
import pytest
import torch
from small_trees import uneven_tree

from agents.common.policies import SoftmaxPolicy, softmax_policy
from agents.common.settings import PolicySettings
from agents.common.slots import candidate_slots
from wm_env.synthetic import synthetic_tree


def policy_of(tree, labels=16, seed=0, **settings):
    generator = torch.Generator().manual_seed(seed)
    return softmax_policy(tree, labels, PolicySettings(**settings), generator).double()


@pytest.mark.parametrize("number", [0, 1])
def test_laws_are_softmaxes_on_the_support(number):
    tree = uneven_tree()
    policy = policy_of(tree, embedding=5)
    with torch.no_grad():
        p_label, p_candidate = policy(number)
    first = sum(len(block.cover) for block in tree.blocks[:number])
    embedding, label_head, candidate_head = (value.detach().numpy() for value in policy.parameters())
    slots = candidate_slots(tree.blocks[number])
    for state, cover in enumerate(tree.blocks[number].cover):
        vector = embedding[first + state]
        weights = np.exp(vector @ label_head)
        np.testing.assert_allclose(p_label[state], weights / weights.sum(), rtol=1e-12)
        for label in range(16):
            weights = np.array(
                [
                    np.exp(vector @ candidate_head[:, slots[state, x], label]) if cover[x] > 0 else 0.0
                    for x in range(len(cover))
                ]
            )
            np.testing.assert_allclose(p_candidate[state, label], weights / weights.sum(), rtol=1e-12)
    assert (p_candidate[torch.from_numpy(tree.blocks[number].cover == 0)[:, None].expand_as(p_candidate)] == 0).all()


@pytest.mark.parametrize("number", [0, 1])
def test_laws_of_a_table_are_softmaxes_of_its_rows(number):
    tree = uneven_tree()
    policy = policy_of(tree, embedding=None, leading_spread=1.0)
    with torch.no_grad():
        p_label, p_candidate = policy(number)
    first = sum(len(block.cover) for block in tree.blocks[:number])
    label_table, candidate_table = (value.detach().numpy() for value in policy.parameters())
    slots = candidate_slots(tree.blocks[number])
    for state, cover in enumerate(tree.blocks[number].cover):
        weights = np.exp(label_table[first + state])
        np.testing.assert_allclose(p_label[state], weights / weights.sum(), rtol=1e-12)
        for label in range(16):
            logits = candidate_table[first + state, slots[state], label]
            weights = np.where(cover > 0, np.exp(logits), 0.0)
            np.testing.assert_allclose(p_candidate[state, label], weights / weights.sum(), rtol=1e-12)


def test_tables_start_alike_to_the_share_that_is_set():
    tree = synthetic_tree(40, 1, 20, entropy=3.0)
    for share in (0.0, 0.9, 1.0):
        policy = policy_of(tree, labels=8, embedding=None, common=share, leading_spread=2.0, label_spread=0.7)
        logits = policy.candidate_table.detach().flatten(1)
        # 20 candidates: all 3 bits of 8 labels are leading, each with variance 4, and states have the share in common.
        own = logits - logits.mean(0)
        assert float(own.square().sum(0).mean()) / 39 == pytest.approx((1 - share) * 3 * 4, rel=0.2, abs=1e-6)
        between = torch.corrcoef(logits)[~torch.eye(40, dtype=torch.bool)]
        assert float(between.mean()) == pytest.approx(share, abs=0.1)
        spread_over_states = policy.label_table.detach().std(0)
        assert float(spread_over_states.mean()) == pytest.approx(0.7 * (1 - share) ** 0.5, rel=0.2, abs=1e-6)


def test_labels_with_the_same_leading_bits_start_alike(small_tree):
    policy = policy_of(small_tree, labels=16, trailing_spread=0.0)
    _, p_candidate = policy(1)
    # 5 candidates: 3 leading bits of V decide, so labels 2n and 2n + 1 are the same; labels of other words are not.
    torch.testing.assert_close(p_candidate[:, 0::2], p_candidate[:, 1::2])
    between = (p_candidate[:, None, 0::2] - p_candidate[:, 0::2, None]).abs().sum(-1)
    assert (between[:, ~torch.eye(8, dtype=torch.bool)] > 1e-3).all()


def test_logits_have_the_variance_of_their_steps():
    tree = synthetic_tree(2, 1, 20, entropy=3.0)
    policy = policy_of(tree, labels=256, embedding=200, leading_spread=2.0, trailing_spread=0.5)
    # 20 candidates: 5 leading bits of variance 4 and 3 trailing bits of variance 1/4.
    assert policy.candidate_head.var().item() == pytest.approx(5 * 4 + 3 * 0.25, rel=0.1)
    siblings = policy.candidate_head[:, :, 0::2] - policy.candidate_head[:, :, 1::2]
    assert siblings.var().item() == pytest.approx(2 * 0.25, rel=0.05)


def test_states_start_alike_to_the_share_that_is_set(small_tree):
    for share in (0.0, 0.9, 1.0):
        embedding = policy_of(small_tree, embedding=400, common=share).embedding
        cosine = torch.nn.functional.cosine_similarity(embedding[0], embedding[1:], dim=1)
        torch.testing.assert_close(cosine, torch.full_like(cosine, share), atol=0.2, rtol=0.0)


def test_same_seed_same_policy_other_seed_another(small_tree):
    first, again, other = (policy_of(small_tree, seed=seed) for seed in (1, 1, 2))
    for left, right in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(left, right)
    assert not torch.equal(first.embedding, other.embedding)


def test_two_labels_are_the_least(small_tree):
    p_label, _ = policy_of(small_tree, labels=2)(0)
    assert p_label.shape == (6, 2)


def test_a_policy_without_logits_is_none(small_tree):
    with pytest.raises(TypeError, match="label_logits"):
        SoftmaxPolicy(small_tree)  # type: ignore[abstract]
