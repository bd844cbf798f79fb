import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trees import uneven_tree
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import SubprocVecEnv

from agents.ppo_lagrangian.algorithm import PPOLagrangian, combine, per_state, row_surrogate, weighted_moments
from agents.ppo_lagrangian.buffer import tree_advantages
from agents.ppo_lagrangian.callbacks import LawEvaluation
from agents.ppo_lagrangian.policy import LawPolicy
from agents.ppo_lagrangian.vec_env import LogitVecEnv
from wm_env.criteria.credit import CreditByState
from wm_env.information import measure, measure_by_state
from wm_env.law import BlockLaw, load_law, save_law
from wm_env.synthetic import synthetic_tree
from wm_env.tree import save_tree
from wm_env.wrappers import LogitsToSimplices

LONG_ID = "wm_env:CovertWatermarkEnv-v0"


@pytest.fixture
def arguments(small_tree_file):
    return {"tree": str(small_tree_file), "prompts": 2, "candidates": 4, "labels": 4}


@pytest.fixture
def vec_env(arguments):
    return LogitVecEnv(4, **arguments)


@pytest.fixture
def env(arguments):
    return gym.make(LONG_ID, **arguments)


def wrapped(**arguments):
    return CreditByState(LogitsToSimplices(gym.make(LONG_ID, **arguments)))


def make_model(env, **changes):
    return PPOLagrangian(LawPolicy, env, **{"n_steps": 4, "batch_size": 8, "n_epochs": 2, "seed": 0, **changes})


def random_laws(tree, seed):
    """Random laws on the support of the first two blocks, Z random too."""
    rng = np.random.default_rng(seed)
    for block in tree.blocks[:2]:
        states, candidates = block.cover.shape
        p_candidate = rng.exponential(size=(states, 4, candidates)) ** 3 * (block.cover > 0)[:, None]
        arrays = (
            rng.dirichlet(np.ones(states)),
            block.cover,
            block.symbol,
            rng.dirichlet(np.ones(4) / 2, size=states),
            p_candidate / p_candidate.sum(-1, keepdims=True),
        )
        yield BlockLaw(*map(torch.from_numpy, arrays))


class TestCredit:
    @settings(max_examples=30)
    @given(seed=st.integers(0, 2**31))
    def test_parts_are_what_the_loops_say_and_sum_to_the_whole(self, seed):
        for law in random_laws(uneven_tree(seed=seed % 7), seed):
            z, cover, symbol, p_label, p_candidate = (
                getattr(law, name).numpy() for name in ("state_probs", "cover", "symbol", "p_label", "p_candidate")
            )
            p_ux = {}
            for (s, u, q), w in np.ndenumerate(p_candidate):
                p_ux[u, symbol[s, q]] = p_ux.get((u, symbol[s, q]), 0) + z[s] * p_label[s, u] * w
            p_x = {}
            for (_, x), p in p_ux.items():
                p_x[x] = p_x.get(x, 0) + p
            rate, cost = measure_by_state(law)
            for s in range(len(z)):
                part = 0.0
                for u in range(4):
                    for q in range(cover.shape[1]):
                        p = z[s] * p_label[s, u] * p_candidate[s, u, q]
                        if p > 0:
                            x = symbol[s, q]
                            part += p * math.log2(p_ux[u, x] / p_x[x] / p_label[s, u])
                distance = abs(p_label[s] @ p_candidate[s] - cover[s]).sum() / 2
                assert float(rate[s]) == pytest.approx(part, abs=1e-12)
                assert float(cost[s]) == pytest.approx(z[s] * distance, abs=1e-12)
            whole = measure(law)
            assert float(rate.sum()) == pytest.approx(float(whole.rate), abs=1e-12)
            assert float(cost.sum()) == pytest.approx(float(whole.cost), abs=1e-12)

    def test_a_state_is_not_credited_with_what_others_do(self):
        tree = synthetic_tree(3, blocks=2, candidates=3, entropy=1.2, overlap=0.0, seed=1)
        first, second = next(random_laws(tree, 1)), next(random_laws(tree, 2))
        mixed = BlockLaw(
            first.state_probs,
            first.cover,
            first.symbol,
            torch.cat([first.p_label[:1], second.p_label[1:]]),
            torch.cat([first.p_candidate[:1], second.p_candidate[1:]]),
        )
        for before, after in zip(measure_by_state(first), measure_by_state(mixed), strict=True):
            assert float(after[0]) == pytest.approx(float(before[0]), abs=1e-12)
            assert not torch.allclose(after[1:], before[1:])

    def test_wrapper_reports_parts_and_parents(self, arguments):
        env = CreditByState(gym.make(LONG_ID, **arguments))
        env.action_space.seed(0)
        env.reset(seed=0)
        child = env.unwrapped.problem.tree.blocks[0].child
        for number in range(2):
            _, reward, _, _, info = env.step(env.action_space.sample())
            assert info["rate_by_state"].shape == (8,)
            assert info["rate_by_state"].sum() == pytest.approx(reward, abs=1e-12)
            assert info["cost_by_state"].sum() == pytest.approx(info["cost"], abs=1e-12)
            following = {int(s): int(p) for s, p in enumerate(info["parent"]) if p >= 0}
            expected = {int(child[s, q]): s for s in range(2) for q in range(4)} if number == 0 else {}
            assert following == expected
        with pytest.raises(TypeError, match="CartPole"):
            CreditByState(gym.make("CartPole-v1"))


class TestAdvantages:
    def test_by_hand(self):
        # Two states, of which state 0 leads to both next states and state 1 to none of them.
        rewards = np.array([[[[1.0], [2.0]]], [[[3.0], [5.0]]]], dtype=np.float32)
        values = np.array([[[[0.5], [0.25]]], [[[1.0], [2.0]]]], dtype=np.float32)
        parent = np.array([[[0, 0]], [[-1, -1]]])
        found = tree_advantages(rewards, values, parent, gamma=0.5, lam=0.5)
        last = [3 - 1, 5 - 2]
        first = [1 + 0.5 * (1 + 2) - 0.5 + 0.25 * (last[0] + last[1]), 2 - 0.25]
        np.testing.assert_allclose(found[1, 0, :, 0], last)
        np.testing.assert_allclose(found[0, 0, :, 0], first)

    @settings(max_examples=30)
    @given(seed=st.integers(0, 2**31), gamma=st.floats(0, 1), lam=st.floats(0, 1))
    def test_sums_over_states_are_stable_baselines_advantages(self, seed, gamma, lam):
        rng = np.random.default_rng(seed)
        steps, copies, states, length = 6, 3, 5, 2
        rewards = rng.normal(size=(steps, copies, states, 2)).astype(np.float32)
        values = rng.normal(size=(steps, copies, states, 2)).astype(np.float32)
        parent = rng.integers(0, states, size=(steps, copies, states))
        parent[length - 1 :: length] = -1
        found = tree_advantages(rewards, values, parent, gamma, lam)
        for channel in range(2):
            box = gym.spaces.Box(-1, 1, (1,))
            reference = RolloutBuffer(steps, box, box, gamma=gamma, gae_lambda=lam, n_envs=copies)
            for step in range(steps):
                reference.add(
                    np.zeros((copies, 1)),
                    np.zeros((copies, 1)),
                    rewards[step, :, :, channel].sum(-1),
                    np.full(copies, step % length == 0),
                    torch.from_numpy(values[step, :, :, channel].sum(-1)),
                    torch.zeros(copies),
                )
            reference.compute_returns_and_advantage(torch.zeros(copies), np.ones(copies))
            np.testing.assert_allclose(found[..., channel].sum(-1), reference.advantages, atol=1e-4)

    def test_combination_in_physical_units(self):
        assert float(combine(torch.tensor([3.0, 0.5]), 4.0)) == pytest.approx((3 - 4 * 0.5) / 5)
        assert float(combine(torch.tensor([3.0, 0.5]), 0.0)) == 3.0

    def test_states_without_probability_have_no_advantage(self):
        z = torch.tensor([0.75, 0.25, 0.0])
        totals = torch.tensor([1.5, 0.25, 0.0])
        assert per_state(totals, z).tolist() == [2.0, 1.0, 0.0]
        mean, deviation = weighted_moments(totals, z)
        assert float(mean) == pytest.approx(1.75)
        assert float(deviation) == pytest.approx(math.sqrt(0.75 * 0.25**2 + 0.25 * 0.75**2), abs=1e-6)

    def test_surrogate_by_hand(self):
        old = torch.zeros(1, 2, 2)
        new = torch.log(torch.tensor([[[1.5, 0.5], [1.1, 0.7]]]))
        gain, z = torch.tensor([[2.0, -1.0]]), torch.tensor([[0.75, 0.25]])
        found = row_surrogate(new, old, gain, z, clip=0.2)
        # Positive gain: min(1.5, 1.2) and 0.5; negative gain: the larger loss, 1.1 and max(0.7, 0.8).
        expected = 0.75 * 2.0 * (1.2 + 0.5) + 0.25 * -1.0 * (1.1 + 0.8)
        assert float(found.objective) == pytest.approx(expected)
        kl = [[0.5 - math.log(1.5), -0.5 - math.log(0.5)], [0.1 - math.log(1.1), -0.3 - math.log(0.7)]]
        assert found.kl_total == pytest.approx(sum(map(sum, kl)), abs=1e-6)
        assert found.kl_per_row == pytest.approx((0.75 * sum(kl[0]) + 0.25 * sum(kl[1])) / 2, abs=1e-6)
        assert found.clip_fraction == pytest.approx(0.75 + 0.25 / 2)

    def test_extreme_ratios_stay_finite(self):
        new = torch.tensor([[[1e4, -1e4]]], requires_grad=True)
        found = row_surrogate(new, torch.zeros(1, 1, 2), torch.tensor([[-1.0]]), torch.ones(1, 1), 0.2)
        found.objective.backward()
        assert torch.isfinite(new.grad).all()


class TestPolicy:
    def observation(self, env):
        observation, _ = env.reset(seed=0)
        return {name: torch.as_tensor(np.asarray(value))[None] for name, value in observation.items()}

    def trained(self, vec_env):
        return make_model(vec_env, learning_rate=1e-2).learn(64).policy

    def test_permuting_states_permutes_the_rows(self, vec_env, env):
        policy, seen = self.trained(vec_env), self.observation(env)
        order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
        cover = seen["cover"].view(1, 8, 4)
        moved = {**seen, "state_probs": seen["state_probs"][:, order], "cover": cover[:, order].flatten(1)}
        before, after = (policy.mean_logits(policy.look(given)) for given in (seen, moved))
        torch.testing.assert_close(after, before[:, order])

    def test_permuting_candidates_permutes_their_logits(self, vec_env, env):
        policy, seen = self.trained(vec_env), self.observation(env)
        order = torch.tensor([2, 0, 3, 1])
        moved = {**seen, "cover": seen["cover"].view(1, 8, 4)[..., order].flatten(1)}
        before, after = (policy.mean_logits(policy.look(given))[0, :2] for given in (seen, moved))
        torch.testing.assert_close(after[..., 1:], before[..., 1:][..., order])
        torch.testing.assert_close(after[..., 0], before[..., 0])

    def test_size_does_not_depend_on_the_number_of_states(self, arguments, vec_env):
        sizes = {
            sum(parameter.numel() for parameter in make_model(made).policy.parameters())
            for made in (vec_env, LogitVecEnv(1, **{**arguments, "prompts": 6}))
        }
        assert len(sizes) == 1

    def test_rows_add_up_to_the_joint_density(self, vec_env, env):
        policy, seen = self.trained(vec_env), self.observation(env)
        actions, rows = policy.act(seen, torch.Generator().manual_seed(1))
        mean = policy.mean_logits(policy.look(seen))[0].detach().numpy()
        label, candidate = policy.std.tolist()
        taken = actions.view(8, 4, 5).detach().numpy()
        for s in range(2):
            for u in range(4):
                by_hand = 0.0
                for column, std in enumerate([label] + [candidate] * 4):
                    z = (taken[s, u, column] - mean[s, u, column]) / std
                    by_hand += -z * z / 2 - math.log(std * math.sqrt(2 * math.pi))
                assert float(rows.log_prob[0, s, u]) == pytest.approx(by_hand, abs=1e-3)
        # Of eight rows the first block has two states; the others are padding.
        assert not rows.log_prob[0, 2:].any()
        _, joint, entropy = policy.evaluate_actions(seen, actions)
        assert entropy.shape == joint.shape == (1,)

    def test_stored_actions_have_ratio_one(self, vec_env):
        model = make_model(vec_env, learning_rate=0.0).learn(16)
        for samples in model.rollout_buffer.minibatches(5, np.random.default_rng(0)):
            rows = model.policy.evaluate_rows(samples.observations, samples.actions)
            torch.testing.assert_close(rows.log_prob, samples.log_prob, atol=1e-4, rtol=1e-5)

    def test_only_for_this_environment(self):
        with pytest.raises(TypeError, match="LogitsToSimplices"):
            LawPolicy(gym.spaces.Box(0, 1, (3,)), gym.spaces.Box(-1, 1, (3,)), lambda _: 1e-3)


def parameters(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.policy.parameters()])


class TestTraining:
    def test_a_small_problem_is_solved(self, tmp_path):
        tree = synthetic_tree(3, blocks=1, candidates=4, block_length=4, entropy=1.4, overlap=0.0, seed=0)
        save_tree(tree, tmp_path / "tree.safetensors")
        arguments = {"tree": str(tmp_path / "tree.safetensors"), "prompts": 3, "candidates": 4, "labels": 4}
        env = gym.make(LONG_ID, **arguments)
        evaluation = LawEvaluation(env, every=5)
        model = make_model(LogitVecEnv(16, **arguments), n_steps=2, batch_size=96, n_epochs=5, learning_rate=0.02)
        model.learn(16 * 2 * 150, callback=evaluation)
        evaluation.restore_best()
        law = model.joint_law(env)
        assert evaluation.best.rate >= 0.85 * env.unwrapped.problem.optimum.rate
        assert sum(float(measure(block).rate) for block in law.blocks) == pytest.approx(evaluation.best.rate, abs=1e-9)
        assert sum(float(measure(block).cost) for block in law.blocks) <= 0.1

    def test_seeds(self, arguments):
        runs = [parameters(make_model(LogitVecEnv(2, **arguments), seed=seed).learn(24)) for seed in (1, 1, 2)]
        assert torch.equal(runs[0], runs[1])
        assert not torch.equal(runs[0], runs[2])

    @pytest.mark.parametrize("device", ["nope", "meta", "cuda:99"])
    def test_a_device_that_cannot_be_used_is_refused(self, arguments, device):
        with pytest.raises(ValueError, match=f"^device='{device}'.*: cpu, cuda or cuda:N is needed$"):
            make_model(LogitVecEnv(2, **arguments), device=device)

    def test_ordinary_environments_train_like_batched_ones(self, arguments):
        looped = make_vec_env(lambda: wrapped(**arguments), n_envs=3)
        batched = LogitVecEnv(3, **arguments)
        runs = [parameters(make_model(made).learn(24)) for made in (looped, batched, wrapped(**arguments))]
        torch.testing.assert_close(runs[0], runs[1], atol=1e-4, rtol=1e-3)
        assert not torch.allclose(runs[0], runs[2], atol=1e-4)

    def test_worker_processes(self, arguments):
        workers = make_vec_env(lambda: wrapped(**arguments), n_envs=2, vec_env_cls=SubprocVecEnv)
        try:
            assert make_model(workers).learn(8).num_timesteps == 8
        finally:
            workers.close()

    def test_reset_options_hold_for_every_reset(self, arguments):
        env = LogitVecEnv(3, reset_options={"prompts": 1}, **arguments)
        drawn = []
        env.reset()
        for _ in range(6):
            drawn.append({problem.tree.prompts for problem in env.copies.problems})
            dones = env.step(np.zeros((3, *env.action_space.shape)))[2]
        assert dones.all()
        assert {len(prompts) for drawn_now in drawn for prompts in drawn_now} == {1}
        assert len(set.union(*drawn)) > 1

    def test_interruption_changes_nothing(self, arguments, tmp_path):
        env = LogitVecEnv(2, reset_options={"prompts": 1}, **arguments)
        whole = make_model(env, initial_multiplier=2.0).learn(48)
        half = make_model(env, initial_multiplier=2.0).learn(48, callback=lambda names, _: names["begin"] < 24)
        assert half.num_timesteps == 24
        half.save(tmp_path / "model")
        again = PPOLagrangian.load(tmp_path / "model", env=LogitVecEnv(2, reset_options={"prompts": 1}, **arguments))
        assert again.multiplier == half.multiplier > 0
        torch.manual_seed(123)
        np.random.seed(123)  # noqa: NPY002  (what Stable-Baselines3 would draw from)
        again.learn(24, reset_num_timesteps=False)
        assert again.num_timesteps == 48
        assert again.multiplier == whole.multiplier
        assert torch.equal(parameters(again), parameters(whole))

    def test_saved_models_predict_without_an_environment(self, vec_env, env, tmp_path):
        model = make_model(vec_env).learn(16)
        model.save(tmp_path / "model")
        again = PPOLagrangian.load(tmp_path / "model")
        observation = vec_env.reset()
        np.testing.assert_array_equal(
            again.predict(observation, deterministic=True)[0], model.predict(observation, deterministic=True)[0]
        )
        critics = [
            made.policy.state_values(made.policy.look(made.policy.obs_to_tensor(observation)[0]))
            for made in (model, again)
        ]
        assert torch.equal(*critics)

    def test_critics_learn_rate_and_cost_apart(self, vec_env):
        model = make_model(vec_env, learning_rate=5e-3, n_steps=8, n_epochs=10).learn(4 * 8 * 12)
        buffer = model.rollout_buffer
        returns = (buffer.state_advantages + buffer.state_values).sum(2)
        values = buffer.state_values.sum(2)
        error = np.abs(values - returns).mean((0, 1))
        assert (error < 0.25 * np.abs(returns[..., ::-1] - returns).mean()).all()
        assert np.abs(returns[::2]).mean() > np.abs(returns[1::2]).mean()

    def test_multiplier_follows_this_rollouts_cost(self, vec_env):
        model = make_model(vec_env, epsilon=0.02, dual_step=0.5, learning_rate=0.0)
        seen = []
        model.learn(3 * 16, callback=lambda names, _: seen.append((names["self"].multiplier, names["infos"])) or True)
        costs = [[info["cost_so_far"] for info in infos] for _, infos in seen]
        # Rollouts of four steps hold two episodes of each copy; the multiplier moves after the fourth.
        expected = 0.0
        for rollout in range(3):
            assert all(multiplier == pytest.approx(expected) for multiplier, _ in seen[4 * rollout : 4 * rollout + 4])
            episodes = costs[4 * rollout + 1] + costs[4 * rollout + 3]
            expected = max(0.0, expected + 0.5 * (np.mean(episodes) - 0.02))
        assert model.multiplier == pytest.approx(expected)

    def test_a_limit_of_zero_gives_numbers(self, arguments):
        model = make_model(LogitVecEnv(2, **{**arguments, "epsilon": 0.0}), dual_step=1e6).learn(32)
        assert model.multiplier > 0
        assert torch.isfinite(parameters(model)).all()

    def test_a_slack_limit_leaves_the_multiplier_at_zero(self, vec_env):
        assert make_model(vec_env, epsilon=2.0).learn(48).multiplier == 0.0

    def test_logger_and_callbacks(self, vec_env, env, tmp_path):
        model = make_model(vec_env)
        model.set_logger(configure(str(tmp_path), ["csv"]))
        evaluation = LawEvaluation(env, every=1)
        model.learn(32, callback=evaluation, progress_bar=True)
        columns = set((tmp_path / "progress.csv").read_text().splitlines()[0].split(","))
        assert columns >= {
            "rollout/ep_rew_mean",
            "rollout/ep_cost_mean",
            "rollout/cost_violation",
            "rollout/rate_bits_per_token",
            "train/lagrange_multiplier",
            "train/cost_value_loss",
            "train/kl_total",
            "train/kl_per_row",
            "eval/rate",
            "eval/cost",
            "eval/feasible",
            "law/i_ux",
            "law/percent_of_optimum",
            "time/fps",
        }
        assert evaluation.latest.rate == pytest.approx(
            sum(float(measure(block).rate) for block in model.joint_law(env).blocks), abs=1e-9
        )

    def test_stopping_callback(self, vec_env):
        assert make_model(vec_env).learn(64, callback=lambda *_: False).num_timesteps == 0


class TestLaw:
    def test_other_prompts_and_files(self, vec_env, arguments, tmp_path):
        model = make_model(vec_env).learn(16)
        more = gym.make(LONG_ID, **{**arguments, "prompts": 5})
        law = model.joint_law(more)
        save_law(law, tmp_path / "law.safetensors")
        again = load_law(tmp_path / "law.safetensors", more.unwrapped.problem.tree)
        for one, other in zip(law.blocks, again.blocks, strict=True):
            torch.testing.assert_close(one.p_label, other.p_label)
        drawn = model.joint_law(more, options={"prompts": 1})
        assert len(drawn.blocks[0].p_label) == 1

    def test_the_law_is_what_the_deterministic_policy_plays(self, vec_env, env, arguments):
        model = make_model(vec_env).learn(16)
        law = model.joint_law(env)
        played = wrapped(**arguments)
        observation, _ = played.reset()
        for block in law.blocks:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, _, _, info = played.step(action)
            assert reward == pytest.approx(float(measure(block).rate), abs=1e-6)
            assert info["cost"] == pytest.approx(float(measure(block).cost), abs=1e-6)

    def test_bad_input(self, vec_env, env, arguments, small_tree, tmp_path):
        model = make_model(vec_env)
        model.save(tmp_path / "model")
        labels = gym.make(LONG_ID, **{**arguments, "labels": 8})
        with pytest.raises(ValueError, match=r"trained with labels=4, the environment has labels=8"):
            model.joint_law(labels)
        with pytest.raises(ValueError, match="CartPole"):
            model.joint_law(gym.make("CartPole-v1"))
        for other, message in (
            ({"labels": 8}, "labels=4, the environment has labels=8"),
            ({"prompts": 3}, "states=8, the environment has states=12"),
            ({"split": "train"}, f"tree={env.unwrapped.identity()['tree']}, the environment has tree="),
            ({"objective": "coded", "message_bits": 1}, "objective=gp, the environment has objective=coded"),
            ({"epsilon": 0.5}, "epsilon=0.1, the environment has epsilon=0.5"),
            ({"gamma": 0.5}, "gamma=1.0, the environment has gamma=0.5"),
        ):
            changed = LogitVecEnv(4, **{**arguments, **other})
            with pytest.raises(ValueError, match=message):
                PPOLagrangian.load(tmp_path / "model", env=changed)
            with pytest.raises(ValueError, match=message):
                model.set_env(changed)
        model.set_env(LogitVecEnv(4, **arguments))
        PPOLagrangian.load(tmp_path / "model", env=LogitVecEnv(4, **arguments))
        one_bit, two_bits = (
            LogitVecEnv(4, **{**arguments, "objective": "coded", "message_bits": bits}) for bits in (1, 2)
        )
        with pytest.raises(ValueError, match="message_bits=1, the environment has message_bits=2"):
            make_model(one_bit).set_env(two_bits)
        PPO("MultiInputPolicy", vec_env, n_steps=4, batch_size=8).save(tmp_path / "plain")
        with pytest.raises(ValueError, match="does not say its tree: train it again"):
            PPOLagrangian.load(tmp_path / "plain", env=vec_env)
        with pytest.raises(ValueError, match="a multiple of the 2 blocks"):
            make_model(vec_env, n_steps=3)
        with pytest.raises(ValueError, match="epsilon=-1"):
            make_model(vec_env, epsilon=-1.0)
        with pytest.raises(KeyError, match="CreditByState"):
            make_model(LogitsToSimplices(env)).learn(8)
