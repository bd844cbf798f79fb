import gymnasium as gym
import numpy as np
import pytest
import torch
from small_trees import uneven_tree

from wm_env.criteria.credit import CreditByState
from wm_env.labels.marginals import MarginalLogits
from wm_env.tensor_env import MarginalTensorEnv, TensorEnv
from wm_env.tree import save_tree

LONG_ID = "wm_env:CovertWatermarkEnv-v0"


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    path = tmp_path_factory.mktemp("trees") / "uneven.safetensors"
    save_tree(uneven_tree(prompts=4, blocks=3, candidates=3, seed=2), path)
    return {"tree": str(path), "prompts": 4, "candidates": 3, "labels": 4, "gamma": 0.9}


def assert_equal(found, copy, expected):
    """One copy of tensors against NumPy arrays."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].device.type == "cpu"
        np.testing.assert_allclose(found[name][copy].numpy(), value, rtol=0, atol=1e-5, err_msg=name)


def play_both(tensors, singles, draw, episodes=2):
    """Whole episodes in the tensor environment and in single environments."""
    observation, infos = tensors.reset(seed=0)
    for copy, single in enumerate(singles):
        seen, info = single.reset()
        assert_equal(observation, copy, seen)
        assert_equal(infos, copy, {name: info[name] for name in infos})
    for _ in range(episodes * 3):
        actions = draw()
        observation, rewards, terminated, truncated, infos = tensors.step(actions)
        credit = tensors.credit()
        assert not truncated.any()
        for copy, single in enumerate(singles):
            seen, reward, done, _, info = single.step(actions[copy].numpy())
            assert float(rewards[copy]) == pytest.approx(reward, abs=1e-5)
            assert bool(terminated[copy]) is done
            assert_equal(credit, copy, {name: info[name] for name in credit})
            now = infos["final_info"] if done else infos
            assert_equal(now, copy, {name: info[name] for name in now})
            if done:
                assert_equal(infos["final_obs"], copy, seen)
                seen, _ = single.reset()
            assert_equal(observation, copy, seen)


@pytest.mark.parametrize("more", [{}, {"objective": "coded", "message_bits": 1}, {"cost": "kl"}])
def test_laws_are_worth_what_single_environments_say(arguments, more):
    tensors = gym.make_vec(LONG_ID, 3, vectorization_mode="vector_entry_point", device="cpu", **arguments, **more)
    assert isinstance(tensors, TensorEnv)
    singles = [CreditByState(gym.make(LONG_ID, **arguments, **more)) for _ in range(3)]
    tensors.action_space.seed(0)
    play_both(tensors, singles, lambda: torch.from_numpy(tensors.action_space.sample()))


@pytest.mark.parametrize("more", [{}, {"labels": 2}, {"cost": "kl"}])
def test_marginals_are_worth_what_their_laws_are(arguments, more):
    arguments = {**arguments, **more}
    tensors = MarginalTensorEnv(3, **arguments)
    singles = [CreditByState(MarginalLogits(gym.make(LONG_ID, **arguments))) for _ in range(3)]
    generator = torch.Generator().manual_seed(0)
    play_both(tensors, singles, lambda: torch.randn(3, tensors.single_action_space.shape[0], generator=generator))


def test_what_is_no_law_makes_its_copy_s_numbers_nan(arguments):
    tensors = TensorEnv(3, **arguments)
    tensors.action_space.seed(0)
    tensors.reset()
    actions = torch.from_numpy(tensors.action_space.sample())
    actions[1, 0, 0, 0] = -0.5
    _, rewards, _, _, infos = tensors.step(actions)
    assert rewards.isnan().tolist() == infos["cost"].isnan().tolist() == [False, True, False]
    actions[1] = actions[0]
    _, rewards, _, _, infos = tensors.step(actions)
    assert infos["cost_so_far"].isnan().tolist() == [False, True, False]


def test_what_is_refused(arguments):
    tensors = TensorEnv(2, **arguments)
    with pytest.raises(gym.error.ResetNeeded):
        tensors.step(torch.zeros(tensors.action_space.shape))
    with pytest.raises(gym.error.ResetNeeded):
        tensors.credit()
    tensors.reset()
    with pytest.raises(ValueError, match="actions of shape"):
        tensors.step(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="options"):
        tensors.reset(options={"prompts": 1})
    for wrong, message in (
        ({"num_envs": 0}, "num_envs=0"),
        ({"autoreset_mode": "NextStep"}, "SameStep"),
        ({"render_mode": "ansi"}, "render"),
        ({"device": "nope"}, "^device='nope': cpu, cuda or cuda:N is needed$"),
        ({"device": "meta"}, "^device='meta' holds no numbers: cpu, cuda or cuda:N is needed$"),
    ):
        with pytest.raises(ValueError, match=message):
            TensorEnv(**{"num_envs": 1, **arguments, **wrong})
    with pytest.raises(ValueError, match="objective='gp'"):
        MarginalTensorEnv(1, **arguments, objective="coded", message_bits=1)
    with pytest.raises(ValueError, match="bound"):
        MarginalTensorEnv(1, bound=0.0, **arguments)
    with pytest.raises(ValueError, match=r"^device='nope': cpu, cuda or cuda:N is needed$"):
        gym.make_vec(LONG_ID, 1, vectorization_mode="vector_entry_point", device="nope")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", [TensorEnv, MarginalTensorEnv])
def test_recorded_kernels_give_the_numbers_of_the_cpu(arguments, kind):
    envs = [kind(3, device=device, **arguments) for device in ("cpu", "cuda")]
    envs[0].action_space.seed(0)
    for env in envs:
        env.reset()
    for _ in range(7):
        action = torch.from_numpy(envs[0].action_space.sample())
        here, there = (env.step(action.to(env.device)) for env in envs)
        torch.testing.assert_close(there[1].cpu(), here[1], atol=1e-9, rtol=0)
        torch.testing.assert_close(there[0]["state_probs"].cpu(), here[0]["state_probs"])
