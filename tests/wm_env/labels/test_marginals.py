import itertools
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trees import uneven_tree

from wm_env.labels.labelling import is_injective, label_candidates, label_entropy, label_law
from wm_env.labels.marginals import MarginalLogits

LONG_ID = "wm_env:CovertWatermarkEnv-v0"


def random_marginal(cover, seed):
    rng = np.random.default_rng(seed)
    drawn = rng.exponential(size=cover.shape) * (cover > 0)
    return drawn / drawn.sum(1, keepdims=True)


class TestLabelling:
    @settings(max_examples=30)
    @given(seed=st.integers(0, 2**31), bits=st.integers(1, 3))
    def test_laws_have_the_marginal_and_one_label_for_every_candidate(self, seed, bits):
        block = uneven_tree(seed=seed % 7).blocks[1]
        labels = 1 << bits
        label = label_candidates(block, labels)
        marginal = random_marginal(block.cover, seed)
        p_label, p_candidate = label_law(torch.from_numpy(marginal), label, torch.from_numpy(block.cover), labels)
        by_symbol: dict[int, set[int]] = {}
        for s, x in itertools.product(*map(range, marginal.shape)):
            if block.cover[s, x] == 0:
                assert label[s, x] == -1
                continue
            u = int(label[s, x])
            by_symbol.setdefault(int(block.symbol[s, x]), set()).add(u)
            joint = p_label[s] * p_candidate[s, :, x]
            assert float(joint[u]) == pytest.approx(marginal[s, x], abs=1e-12)
            assert float(joint.sum()) == pytest.approx(marginal[s, x], abs=1e-12)
        assert all(len(found) == 1 for found in by_symbol.values())
        assert float((p_label.sum(1) - 1).abs().max()) < 1e-12
        assert float((p_candidate.sum(2) - 1).abs().max()) < 1e-12

    def test_labels_of_a_state_differ_if_there_are_enough(self):
        block = uneven_tree(seed=1).blocks[1]
        assert is_injective(label_candidates(block, 256))
        assert not is_injective(label_candidates(block, 2))
        assert not is_injective(torch.tensor([[1, -1, -1, 1]]))

    def test_entropy_of_shared_labels(self):
        marginal = torch.tensor([[0.5, 0.25, 0.125, 0.125], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
        label = torch.tensor([[0, 1, 0, 1], [0, -1, -1, -1]])
        found = label_entropy(marginal, label, 2)
        assert float(found[0]) == pytest.approx(-0.625 * math.log2(0.625) - 0.375 * math.log2(0.375))
        assert float(found[1]) == 0


class TestMarginalLogits:
    @pytest.mark.parametrize("labels", [4, 16])
    def test_the_rate_is_the_entropy_of_the_label(self, small_tree_file, labels):
        env = MarginalLogits(gym.make(LONG_ID, tree=str(small_tree_file), prompts=3, candidates=4, labels=labels))
        env.action_space.seed(0)
        env.reset(seed=0)
        raw: Any = env.unwrapped
        for _ in range(2):
            logits = env.action_space.sample() / 8
            _, reward, *_, info = env.step(logits)
            law, block = raw.laws[-1], raw.problem.tree.blocks[len(raw.laws) - 1]
            label = label_candidates(block, labels)
            rate = cost = 0.0
            for s, z in enumerate(law.state_probs.tolist()):
                row = np.where(block.cover[s] > 0, np.exp(logits.reshape(-1, 4)[s].astype(float)), 0.0)
                row /= row.sum()
                by_label = [row[label[s].numpy() == u].sum() for u in range(labels)]
                rate -= z * sum(p * math.log2(p) for p in by_label if p > 0)
                cost += z * abs(row - block.cover[s]).sum() / 2
            assert reward == pytest.approx(rate, abs=1e-6)
            assert info["cost"] == pytest.approx(cost, abs=1e-6)

    def test_gymnasium_s_checker(self, small_tree_file):
        env = gym.make(LONG_ID, tree=str(small_tree_file), prompts=2, candidates=4, labels=4)
        check_env(MarginalLogits(env), skip_render_check=True)

    def test_what_it_refuses(self, small_tree_file):
        arguments = {"tree": str(small_tree_file), "prompts": 2, "candidates": 4, "labels": 4}
        env = MarginalLogits(gym.make(LONG_ID, **arguments))
        env.reset()
        with pytest.raises(ValueError, match="logits of shape"):
            env.step(np.zeros(3, dtype=np.float32))
        with pytest.raises(ValueError, match="diverged"):
            env.step(np.full(env.action_space.shape, np.nan, dtype=np.float32))
        with pytest.raises(ValueError, match="bound=0"):
            MarginalLogits(gym.make(LONG_ID, **arguments), bound=0)
        with pytest.raises(ValueError, match="objective='gp'"):
            MarginalLogits(gym.make(LONG_ID, **arguments, objective="coded", message_bits=1))
        with pytest.raises(TypeError, match="CartPole"):
            MarginalLogits(gym.make("CartPole-v1"))
