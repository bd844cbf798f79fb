import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.env_util import make_vec_env

from agents.ppo_lagrangian.algorithm import PPOLagrangian
from agents.ppo_lagrangian.callbacks import LawEvaluation
from agents.ppo_lagrangian.marginal_env import MarginalVecEnv
from agents.ppo_lagrangian.marginal_policy import MarginalPolicy
from agents.ppo_lagrangian.shipped import SHIPPED, save_policy
from agents.training import load_policy
from wm_env.criteria.credit import CreditByState
from wm_env.env import CovertWatermarkEnv
from wm_env.information import measure
from wm_env.labels.marginals import MarginalLogits
from wm_env.synthetic import synthetic_tree
from wm_env.tree import save_tree

LONG_ID = "wm_env:CovertWatermarkEnv-v0"


@pytest.fixture
def arguments(small_tree_file):
    return {"tree": str(small_tree_file), "prompts": 2, "candidates": 4, "labels": 8}


def make_model(env, **changes):
    given = {"n_steps": 4, "batch_size": 16, "n_epochs": 2, "seed": 0, "dual_gain": 10.0, **changes}
    return PPOLagrangian(MarginalPolicy, env, **given)


def parameters(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.policy.parameters()])


def seen_of(env):
    observation, _ = env.reset(seed=0)
    return {name: torch.as_tensor(np.asarray(value))[None] for name, value in observation.items()}


class TestPolicy:
    def test_it_starts_at_the_cover(self, arguments):
        env = gym.make(LONG_ID, **arguments)
        law = make_model(MarginalVecEnv(2, **arguments)).joint_law(env)
        assert sum(float(measure(block).cost) for block in law.blocks) < 1e-6

    def test_permuting_states_or_candidates_permutes_the_logits(self, arguments):
        policy = make_model(MarginalVecEnv(4, **arguments), learning_rate=0.01).learn(64).policy
        seen = seen_of(gym.make(LONG_ID, **arguments))
        before = policy.mean_logits(policy.look(seen))
        cover = seen["cover"].view(1, 8, 4)
        states, candidates = torch.randperm(8), torch.tensor([2, 0, 3, 1])
        moved = {**seen, "state_probs": seen["state_probs"][:, states], "cover": cover[:, states].flatten(1)}
        torch.testing.assert_close(policy.mean_logits(policy.look(moved)), before[:, states])
        moved = {**seen, "cover": cover[..., candidates].flatten(1)}
        after = policy.mean_logits(policy.look(moved))
        torch.testing.assert_close(after[:, :2], before[:, :2][..., candidates])

    def test_pairs_of_copies_have_opposite_noise(self, arguments):
        policy = make_model(MarginalVecEnv(4, **arguments)).policy
        one = seen_of(gym.make(LONG_ID, **arguments))
        seen = {name: value.expand(4, *value.shape[1:]) for name, value in one.items()}
        actions, rows = policy.act(seen, torch.Generator().manual_seed(0))
        mean = policy.mean_logits(policy.look(seen)).flatten(1)
        torch.testing.assert_close(actions[:2] - mean[:2], mean[2:] - actions[2:])
        density = torch.distributions.Normal(mean.view(4, 8, 4), policy.std).log_prob(actions.view(4, 8, 4))
        torch.testing.assert_close(rows.log_prob[:, :2], density[:, :2])
        assert not rows.log_prob[:, 2:].any()

    def test_only_for_marginals(self):
        with pytest.raises(TypeError, match="MarginalLogits"):
            MarginalPolicy(gym.spaces.Box(0, 1, (3,)), gym.spaces.Box(-1, 1, (3,)), lambda _: 1e-3)


class TestTraining:
    def test_a_small_problem_is_solved(self, tmp_path):
        tree = synthetic_tree(3, blocks=2, candidates=4, block_length=4, entropy=1.4, overlap=0.0, seed=0)
        save_tree(tree, tmp_path / "tree.safetensors")
        arguments = {"tree": str(tmp_path / "tree.safetensors"), "prompts": 3, "candidates": 4, "labels": 4}
        env = gym.make(LONG_ID, **arguments)
        evaluation = LawEvaluation(env, every=5)
        settings = {"n_steps": 2, "batch_size": 1024, "n_epochs": 4, "learning_rate": 0.01, "dual_step": 1.0}
        model = make_model(MarginalVecEnv(16, **arguments), **settings).learn(16 * 2 * 100, callback=evaluation)
        evaluation.restore_best()
        law = model.joint_law(env)
        cover = 2 * 1.4
        optimum = CovertWatermarkEnv(**arguments).problem.optimum.rate
        assert sum(float(measure(block).cost) for block in law.blocks) <= 0.1
        # The cover alone has most of the rate; what counts is the rest.
        assert evaluation.best.rate - cover >= 0.85 * (optimum - cover)

    def test_ordinary_environments_train_like_batched_ones(self, arguments):
        def wrapped():
            return CreditByState(MarginalLogits(gym.make(LONG_ID, **arguments)))

        made = make_vec_env(wrapped, n_envs=2), MarginalVecEnv(2, **arguments)
        runs = [parameters(make_model(env).learn(24)) for env in made]
        torch.testing.assert_close(*runs, atol=1e-4, rtol=1e-3)

    def test_interruption_changes_nothing(self, arguments, tmp_path):
        whole = make_model(MarginalVecEnv(2, **arguments), initial_multiplier=2.0).learn(48)
        half = make_model(MarginalVecEnv(2, **arguments), initial_multiplier=2.0)
        half.learn(48, callback=lambda names, _: names["begin"] < 24).save(tmp_path / "model")
        again = PPOLagrangian.load(tmp_path / "model", env=MarginalVecEnv(2, **arguments))
        again.learn(24, reset_num_timesteps=False)
        assert (again.multiplier, again.integral) == (whole.multiplier, whole.integral)
        assert torch.equal(parameters(again), parameters(whole))

    def test_the_multiplier_has_a_term_that_forgets(self, arguments):
        constants = {"dual_step": 0.5, "dual_gain": 4.0, "learning_rate": 0.0}
        model = make_model(MarginalVecEnv(2, **arguments), epsilon=0.01, **constants)
        seen, expected = [], 0.0
        model.learn(24, callback=lambda names, _: seen.append([info["cost_so_far"] for info in names["infos"]]) or True)
        for rollout in range(3):
            excess = np.mean(seen[4 * rollout + 1] + seen[4 * rollout + 3]) - 0.01
            expected = max(0.0, expected + 0.5 * excess)
        assert model.integral == pytest.approx(expected)
        assert model.multiplier == pytest.approx(max(0.0, expected + 4.0 * excess))


class TestShipped:
    @pytest.mark.parametrize("name", SHIPPED)
    def test_they_act_on_problems_of_other_sizes(self, name):
        env = CovertWatermarkEnv(prompts=10, labels=32, candidates=12, split="test")
        observation, info = env.reset()
        act, rate = load_policy(name), 0.0
        for _ in range(2):
            observation, reward, _, _, step = env.step(act(observation, env))
            rate += reward
        assert rate >= 0.97 * info["optimal_rate"]
        assert step["cost_so_far"] <= 0.11

    def test_a_policy_acts_as_before_when_it_is_loaded(self, arguments, tmp_path):
        model = make_model(MarginalVecEnv(2, **arguments)).learn(16)
        save_policy(model.policy, tmp_path / "policy.safetensors")
        env = CovertWatermarkEnv(**arguments)
        observation, _ = env.reset()
        seen = {name: torch.as_tensor(value)[None] for name, value in observation.items()}
        with torch.no_grad():
            expected = model.policy.play(seen, env)
        np.testing.assert_array_equal(load_policy(tmp_path / "policy.safetensors")(observation, env), expected)

    def test_bad_files(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            load_policy("unknown")
