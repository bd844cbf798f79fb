import itertools
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from letters_lm import PROMPTS, letters_settings, write_letters
from small_trees import uneven_tree
from stable_baselines3.common.env_checker import check_env as check_sb3

from wm_env.criteria.credit import CreditByState
from wm_env.lm.build.states import encode_prompts, grow_tree
from wm_env.lm.models.load import load_lm
from wm_env.lm.pools import candidates as pools
from wm_env.optimum import solve
from wm_env.synthetic import synthetic_tree
from wm_env.texts.contexts import Chain, ChainContexts, TreeContexts, random_chain
from wm_env.texts.env import draw_candidates
from wm_env.texts.live_contexts import LiveContexts
from wm_env.tree import save_tree

TEXT_ID, LAW_ID = "wm_env:CovertWatermarkText-v0", "wm_env:CovertWatermarkEnv-v0"


class Forced:
    """A generator whose draws are given."""

    def __init__(self, draws):
        self.draws = list(draws)

    def random(self):
        return self.draws.pop(0)


def information(p_label, p_candidate, symbol=None):
    """I(U;X) in bits by loops."""
    joint = p_label[:, None] * p_candidate
    total = 0.0
    for u, x in itertools.product(*map(range, joint.shape)):
        if joint[u, x] > 0:
            total += joint[u, x] * math.log2(joint[u, x] / (p_label[u] * joint[:, x].sum()))
    return total


def policy_for(tree, labels, seed):
    """An action (M, 1 + Q) for every state of every block, on the support of the cover."""
    rng = np.random.default_rng(seed)
    actions = []
    for block in tree.blocks:
        states, candidates = block.cover.shape
        joint = rng.dirichlet(np.ones(candidates), size=(states, labels)) * (block.cover > 0)[:, None]
        joint /= joint.sum(2, keepdims=True)
        labels_law = rng.dirichlet(np.ones(labels), size=states)
        actions.append(np.concatenate([labels_law[..., None], joint], 2))
    return actions


def mean_over_texts(tree, actions, path, labels, candidates):
    """E sum_b r_b and E sum_b c_b by enumeration of all texts, every one played in the environment."""
    blocks = len(tree.blocks)
    env = gym.make(TEXT_ID, source=path, prompts=len(tree.prior), candidates=candidates, labels=labels, blocks=blocks)
    raw = env.unwrapped
    rate = cost = seen = 0.0
    starts = np.cumsum(tree.prior) - tree.prior / 2
    for prompt in range(len(tree.prior)):
        for text in itertools.product(range(candidates), repeat=blocks):
            row, probability, draws, rows = prompt, tree.prior[prompt], [starts[prompt]], []
            for number, x in enumerate(text):
                action = actions[number][row]
                induced = action[:, 0] @ action[:, 1:]
                if induced[x] == 0:
                    break
                rows.append(row)
                probability *= induced[x]
                draws.append(induced[:x].sum() + induced[x] / 2)
                row = tree.blocks[number].child[row, x]
            else:
                raw.np_random = Forced(draws)
                env.reset()
                for number, (row, x) in enumerate(zip(rows, text, strict=True)):
                    _, reward, ended, _, info = env.step(actions[number][row][None].astype(np.float32))
                    assert info["candidate"] == x
                    rate, cost = rate + probability * reward, cost + probability * info["cost"]
                assert ended
                seen += probability
    assert seen == pytest.approx(1)
    return rate, cost


def mean_field(tree, actions, path, labels, candidates):
    env = gym.make(LAW_ID, tree=path, prompts=len(tree.prior), candidates=candidates, labels=labels)
    env.reset()
    rate = cost = 0.0
    for block in actions:
        padded = np.full(env.action_space.shape, np.nan, dtype=np.float32)
        padded[..., 0], padded[..., 1:] = 1 / labels, 1 / candidates
        padded[: len(block)] = block
        _, reward, _, _, info = env.step(padded)
        rate, cost = rate + reward, cost + info["cost"]
    return rate, cost


class TestExpectation:
    def saved(self, tree, tmp_path):
        save_tree(tree, tmp_path / "tree.safetensors")
        return str(tmp_path / "tree.safetensors")

    def test_disjoint_candidates_give_the_mean_field_numbers(self, tmp_path):
        tree = synthetic_tree(2, blocks=2, candidates=3, entropy=1.3, overlap=0.0, seed=4)
        path, actions = self.saved(tree, tmp_path), policy_for(tree, 4, 0)
        found = mean_over_texts(tree, actions, path, 4, 3)
        assert found == pytest.approx(mean_field(tree, actions, path, 4, 3), abs=1e-6)

    def test_shared_candidates_give_more_by_what_the_state_tells_of_the_label(self, tmp_path):
        tree = uneven_tree(prompts=2, blocks=2, candidates=3, seed=2)
        path, actions = self.saved(tree, tmp_path), policy_for(tree, 4, 0)
        (rate, cost), (expected, expected_cost) = (
            mean(tree, actions, path, 4, 3) for mean in (mean_over_texts, mean_field)
        )
        assert cost == pytest.approx(expected_cost, abs=1e-6)
        # I(U;S|X) of both blocks, by loops.
        z, excess = tree.prior, 0.0
        for block, action in zip(tree.blocks, actions, strict=True):
            joint = z[:, None, None] * action[:, :, :1] * action[:, :, 1:]
            by_symbol = {}
            for s, u, x in np.ndindex(joint.shape):
                table = by_symbol.setdefault(int(block.symbol[s, x]), np.zeros((len(z), 4)))
                table[s, u] += joint[s, u, x]
            for table in by_symbol.values():
                p = table.sum()
                for s, u in np.ndindex(table.shape):
                    if table[s, u] > 0:
                        excess += table[s, u] * math.log2(table[s, u] * p / (table[s].sum() * table[:, u].sum()))
            following = np.zeros(int(block.child.max()) + 1)
            for s, x in zip(*np.nonzero(block.child >= 0), strict=True):
                following[block.child[s, x]] += joint[s, :, x].sum()
            z = following
        assert excess > 1e-3
        assert rate - expected == pytest.approx(excess, abs=1e-6)

    def test_labels_that_are_a_function_of_the_text_give_the_mean_field_numbers(self, tmp_path):
        tree = uneven_tree(prompts=2, blocks=2, candidates=3, seed=2)
        rng = np.random.default_rng(0)
        actions = []
        for block in tree.blocks:
            marginal = rng.exponential(size=block.cover.shape) * (block.cover > 0)
            marginal /= marginal.sum(1, keepdims=True)
            action = np.zeros((*marginal.shape[:1], 4, 4))
            action[..., 1:] = block.cover[:, None]
            for s, x in zip(*np.nonzero(block.cover), strict=True):
                action[s, block.symbol[s, x] % 4, 0] += marginal[s, x]
            for s, u in np.ndindex(action.shape[:2]):
                if action[s, u, 0] > 0:
                    mine = (block.symbol[s] % 4 == u) & (block.cover[s] > 0)
                    action[s, u, 1:] = np.where(mine, marginal[s], 0) / action[s, u, 0]
            actions.append(action)
        path = self.saved(tree, tmp_path)
        found = mean_over_texts(tree, actions, path, 4, 3)
        assert found == pytest.approx(mean_field(tree, actions, path, 4, 3), abs=1e-6)


class TestOptimum:
    def test_of_a_tree_is_the_planner_s(self, tmp_path):
        tree = synthetic_tree(2, blocks=2, candidates=4, entropy=1.3, overlap=0.5, seed=4)
        save_tree(tree, tmp_path / "tree.safetensors")
        arguments = {"source": str(tmp_path / "tree.safetensors"), "prompts": 2, "candidates": 4, "blocks": 2}
        info = gym.make(TEXT_ID, labels=4, epsilon=0.2, **arguments).reset()[1]
        assert info["optimal_rate"] == info["rate_bound"] == pytest.approx(solve(tree, 0.2).rate, abs=1e-12)
        few = gym.make(TEXT_ID, labels=2, epsilon=0.2, **arguments).reset()[1]
        assert math.isnan(few["optimal_rate"])
        assert few["rate_bound"] == pytest.approx(min(2.0, solve(tree, 0.2).rate))

    def test_of_a_chain_is_that_of_its_unrolled_tree(self):
        tree = synthetic_tree(1, blocks=3, candidates=2, entropy=0.8, seed=1)
        # A chain whose kinds are the states of the tree, block by block; the last lead back to the first.
        offset = np.cumsum([0, *(len(block.cover) for block in tree.blocks)])
        cover = np.concatenate([block.cover for block in tree.blocks])
        child = np.concatenate(
            [np.where(block.child >= 0, block.child + offset[n + 1], 0) for n, block in enumerate(tree.blocks)]
        )
        chain = ChainContexts(Chain(np.eye(len(cover))[0], cover, child), "unrolled")
        for epsilon, gamma in ((0.05, 1.0), (0.2, 0.7)):
            assert chain.bound(3, 2, epsilon, gamma).rate == pytest.approx(solve(tree, epsilon, gamma).rate, abs=1e-9)

    def test_no_policy_within_the_budget_exceeds_it_on_a_long_text(self):
        env = gym.make(TEXT_ID, blocks=64, epsilon=0.0)
        bound = env.reset()[1]["optimal_rate"]
        raw: Any = env.unwrapped
        chain = raw.task.contexts.chain
        entropy = -(chain.cover * np.log2(chain.cover)).sum(1)
        z, expected = chain.prior, 0.0
        for _ in range(64):
            expected += z @ entropy
            following = np.zeros_like(z)
            np.add.at(following, chain.child, z[:, None] * chain.cover)
            z = following
        assert bound == pytest.approx(expected, abs=1e-9)


class TestEnvironment:
    @pytest.fixture(params=["chain", "tree"])
    def arguments(self, request, small_tree_file):
        if request.param == "chain":
            return {"blocks": 9, "candidates": 4, "labels": 4, "prompts": 5}
        return {"source": str(small_tree_file), "blocks": 2, "candidates": 4, "labels": 4, "prompts": 3, "gamma": 0.9}

    @pytest.mark.filterwarnings("ignore:.*Box action spaces", "ignore:.*action space", "ignore:Your observation")
    def test_checkers(self, arguments):
        env = gym.make(TEXT_ID, **arguments)
        check_env(env.unwrapped)
        check_sb3(env.unwrapped)

    def test_texts_side_by_side_are_single_texts(self, arguments):
        batched = gym.make_vec(TEXT_ID, 3, vectorization_mode="vector_entry_point", **arguments)
        looped = gym.make_vec(
            TEXT_ID, 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": "SameStep"}, **arguments
        )
        batched.action_space.seed(0)
        found, expected = batched.reset(seed=5), looped.reset(seed=5)
        for _ in range(20):
            for one, other in zip(found[:1] + found[1:-1], expected[:1] + expected[1:-1], strict=True):
                pairs = [(one[name], other[name]) for name in other] if isinstance(other, dict) else [(one, other)]
                for mine, theirs in pairs:
                    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)
            mine, theirs = found[-1], expected[-1]
            assert set(mine) == set(theirs)
            for name in ("cost", "cost_so_far", "candidate", "rate_bound"):
                np.testing.assert_allclose(mine[name], theirs[name], rtol=0, atol=1e-12)
            if "final_info" in theirs:
                for name in ("cost", "cost_so_far", "candidate"):
                    np.testing.assert_allclose(mine["final_info"][name], theirs["final_info"][name], atol=1e-12)
                for one, other in zip(mine["final_obs"], theirs["final_obs"], strict=True):
                    assert all(np.array_equal(one[name], other[name]) for name in other)
            action = batched.action_space.sample()
            found, expected = batched.step(action), looped.step(action)

    def test_one_block_by_loops(self, arguments):
        env = gym.make(TEXT_ID, **arguments)
        env.action_space.seed(1)
        observation, _ = env.reset(seed=1)
        cover, action = observation["cover"].astype(float), env.action_space.sample()
        p_label, p_candidate = action[0, :, 0].astype(float), action[0, :, 1:].astype(float) * (cover > 0)
        p_candidate /= p_candidate.sum(1, keepdims=True)
        _, reward, _, _, info = env.step(action)
        assert reward == pytest.approx(information(p_label / p_label.sum(), p_candidate), abs=1e-5)
        assert info["cost"] == pytest.approx(abs(p_label @ p_candidate - cover).sum() / 2, abs=1e-5)

    def test_draws_follow_the_law_and_never_hit_nothing(self):
        law = np.array([[0.0, 0.25, 0.0, 0.75, 0.0]])
        points = [0.0, 0.1, 0.2499, 0.2501, 0.9, np.nextafter(1, 0)]
        assert [int(draw_candidates(law, np.array([point]))[0]) for point in points] == [1, 1, 1, 3, 3, 3]

    def test_what_is_refused(self, small_tree_file):
        for wrong, message in (
            ({"blocks": 0}, "blocks=0"),
            ({"source": str(small_tree_file), "prompts": 2, "candidates": 4, "blocks": 3}, "1 to 2"),
            ({"labels": 3}, "labels"),
            ({"epsilon": -1.0}, "epsilon"),
            ({"candidates": 0}, "at least 1"),
            ({"render_mode": "ansi"}, "render"),
        ):
            with pytest.raises(ValueError, match=message):
                gym.make(TEXT_ID, **wrong).reset()
        env = gym.make(TEXT_ID)
        with pytest.raises(ValueError, match="options"):
            env.reset(options={"prompts": 1})
        env.reset()
        with pytest.raises(ValueError, match="shape"):
            env.unwrapped.step(np.zeros((2, 2)))
        with pytest.raises(ValueError, match="is not a law"):
            env.step(np.zeros(env.action_space.shape, dtype=np.float32))
        with pytest.raises(TypeError, match="CreditByState"):
            CreditByState(env)
        with pytest.raises(ValueError, match="SameStep"):
            gym.make_vec(TEXT_ID, 2, vectorization_mode="vector_entry_point", autoreset_mode="NextStep")
        with pytest.raises(ValueError, match="entropy"):
            random_chain(3, 4, (1.0, 3.0))


class TestLive:
    def test_contexts_are_the_states_of_the_tree_that_would_be_built(self, tmp_path, monkeypatch):
        lm, settings = load_lm(write_letters(tmp_path)), letters_settings()
        tree = grow_tree(lm, PROMPTS[:2], settings, blocks=2, batch_size=4).tree
        live = LiveContexts(lm, encode_prompts(lm, PROMPTS[:2], 4), settings)
        listed = TreeContexts(tree)
        for uniform, x in itertools.product((0.2, 0.8), (0, 3)):
            mine, theirs = live.start(uniform), listed.start(uniform)
            np.testing.assert_allclose(live.covers([mine]), listed.covers([theirs]), atol=1e-9)
            mine, theirs = live.follow(mine, x), listed.follow(theirs, x)
            np.testing.assert_allclose(live.covers([mine]), listed.covers([theirs]), atol=1e-9)
        assert live.depth is not None
        assert live.bound(3, 16, 0.1, 1.0).rate == pytest.approx(3 * 2.0)
        assert not live.bound(3, 16, 0.1, 1.0).exact

    def test_a_context_is_computed_once_while_it_is_kept(self, tmp_path, monkeypatch):
        lm = load_lm(write_letters(tmp_path))
        live = LiveContexts(lm, encode_prompts(lm, PROMPTS[:2], 4), letters_settings(), kept=2)
        asked = []

        def counted(lm, vocabulary, contexts, settings):
            asked.append(len(contexts))
            return pools.make_pools(lm, vocabulary, contexts, settings)

        monkeypatch.setattr("wm_env.texts.live_contexts.make_pools", counted)
        start = live.start(0.0)
        first = live.covers([start, start])
        np.testing.assert_array_equal(live.covers([start]), first[:1])
        assert asked == [1]
        live.covers([live.follow(start, x) for x in (0, 1)])
        assert asked == [1, 2]
        live.covers([start])
        assert asked == [1, 2, 1]
