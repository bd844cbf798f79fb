"""What libraries around Gymnasium ask of an environment: specs, equal infos, problems, named tasks, forks."""

import multiprocessing
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics

import wm_env
from wm_env.criteria.costs import cost_of
from wm_env.criteria.credit import CreditByState
from wm_env.criteria.table import COSTS
from wm_env.env import CovertWatermarkEnv
from wm_env.problem import Problem
from wm_env.tree import subset
from wm_env.wrappers import CostInTuple, LogitsToSimplices, VectorLogitsToSimplices

ID = "wm_env:CovertWatermarkEnv-v0"


@pytest.fixture
def problem(small_tree):
    return Problem(subset(small_tree, range(2)), 0.2, 0.9, 8, cost_of("kl"))


@pytest.mark.parametrize(
    ("wrap", "arguments"),
    [(lambda env: LogitsToSimplices(env, 5.0), {"bound": 5.0}), (CreditByState, {}), (CostInTuple, {})],
    ids=["logits", "credit", "tuple"],
)
def test_wrappers_are_made_again_from_their_spec(wrap, arguments, small_tree_file):
    wrapped = wrap(gym.make(ID, tree=str(small_tree_file), prompts=2, candidates=4, labels=4))
    (spec,) = wrapped.spec.additional_wrappers
    assert spec.kwargs == arguments
    again = gym.make(wrapped.spec)
    assert type(again) is type(wrapped)
    assert again.action_space == wrapped.action_space


@pytest.mark.filterwarnings("ignore")
def test_gymnasiums_checker_takes_the_wrapped_environment(small_tree_file):
    check_env(LogitsToSimplices(gym.make(ID, tree=str(small_tree_file), prompts=2, candidates=4, labels=4)))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_copies_with_wrappers(mode, problem):
    copies = gym.make_vec(ID, num_envs=2, vectorization_mode=mode, wrappers=[LogitsToSimplices], problem=problem)
    copies.reset(seed=0)
    batched = VectorLogitsToSimplices(gym.make_vec(ID, num_envs=2, problem=problem))
    assert batched.spec is not None
    batched.reset(seed=0)
    actions = np.zeros(copies.action_space.shape, dtype=np.float32)
    one, other = copies.step(actions), batched.step(actions)
    np.testing.assert_allclose(one[1], other[1], atol=1e-12)
    assert one[4].keys() == other[4].keys()
    copies.close()


@pytest.mark.parametrize("objective", ["gp", "coded"])
def test_infos_have_the_same_keys_and_types_from_the_start(small_tree_file, objective):
    arguments = {"tree": str(small_tree_file), "prompts": 2, "candidates": 4, "labels": 4, "objective": objective}
    message = {"message_bits": 2} if objective == "coded" else {}
    env = RecordEpisodeStatistics(gym.make(ID, **arguments, **message))
    _, first = env.reset(seed=0)
    _, _, _, _, second = env.step(env.action_space.sample())
    assert first.keys() == second.keys()
    assert {type(value) for info in (first, second) for value in info.values()} == {np.float64}
    assert first["cost"] == first["cost_so_far"] == first["i_ux"] == 0
    assert first["rate_bound"] == second["rate_bound"] > 0
    copies = gym.make_vec(ID, num_envs=2, **arguments, **message)
    _, first = copies.reset(seed=0)
    *_, second = copies.step(copies.action_space.sample())
    assert first.keys() == second.keys()


def test_a_problem_takes_the_place_of_tree_and_sizes(problem):
    env = gym.make(ID, problem=problem)
    raw = env.unwrapped
    assert raw.problem is problem or raw.problem.tree.fingerprint == problem.tree.fingerprint
    assert (raw.prompts, raw.labels, raw.candidates, raw.identity()["cost"]) == (2, 8, 5, "kl")
    _, info = env.reset(seed=0)
    assert info["optimal_rate"] == problem.optimum.rate
    env.reset(options={"prompts": 1})
    assert (raw.problem.gamma, raw.problem.cost) == (0.9, cost_of("kl"))
    with pytest.raises(ValueError, match=r"^epsilon=0\.3: the problem has its own; leave it out$"):
        gym.make(ID, problem=problem, epsilon=0.3)
    with pytest.raises(ValueError, match=r"^problem=str: a wm_env\.problem\.Problem is needed$"):
        CovertWatermarkEnv(problem="news")
    with pytest.raises(ValueError, match=r"^labels=None: an environment needs a number of labels"):
        CovertWatermarkEnv(problem=Problem(problem.tree, 0.1, 1.0))


def test_a_tree_is_taken_as_it_is(small_tree, small_tree_file):
    sizes = {"prompts": 3, "candidates": 4, "labels": 4}
    tree, file = CovertWatermarkEnv(tree=small_tree, **sizes), CovertWatermarkEnv(tree=str(small_tree_file), **sizes)
    assert tree.identity() == file.identity()


def test_the_cost_of_the_info_is_the_one_that_was_chosen(small_tree_file):
    sizes = {"tree": str(small_tree_file), "prompts": 2, "candidates": 4, "labels": 4, "render_mode": "ansi"}
    envs = {name: gym.make(ID, cost=name, **sizes) for name in COSTS}
    envs["tv"].action_space.seed(0)
    action = envs["tv"].action_space.sample()
    for name, env in envs.items():
        env.reset(seed=0)
        *_, info = env.step(action)
        (law,) = env.unwrapped.laws
        induced = np.einsum("nm,nmq->nq", law.p_label, law.p_candidate)
        cover, prior = law.cover.numpy(), law.state_probs.numpy()
        by_hand = {
            "tv": prior @ abs(induced - cover).sum(1) / 2,
            "kl": prior @ (induced * np.log2(induced / cover)).sum(1),
        }[name]
        assert info["cost"] == pytest.approx(by_hand, abs=1e-12)
        assert cost_of(name).told(by_hand) in env.render()


@pytest.mark.parametrize("name", ["CovertWatermarkEnv-Small-v0", "CovertWatermarkEnv-Default-v0"])
def test_named_tasks(name):
    env = gym.make(f"wm_env:{name}")
    observation, _ = env.reset(seed=0)
    sizes = wm_env.TASKS[name]
    assert (env.unwrapped.prompts, env.unwrapped.labels) == (sizes["prompts"], sizes["labels"])
    assert len(observation["cover"]) == len(observation["state_probs"]) * sizes["candidates"]
    env.step(env.action_space.sample())
    *_, terminated, truncated, _ = env.step(env.action_space.sample())
    assert (terminated, truncated) == (True, False)
    assert env.spec.max_episode_steps >= len(env.unwrapped.problem.blocks)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_processes_that_are_forked_after_openmp_has_worked_do_not_hang():
    code = (
        "import gymnasium as gym, torch\n"
        "torch.set_num_threads(2)\n"
        "arguments = {'prompts': 20, 'candidates': 20, 'labels': 64}\n"
        "env = gym.make('wm_env:CovertWatermarkEnv-v0', **arguments)\n"
        "env.reset(); env.step(env.action_space.sample())\n"
        "torch.rand(10**6).exp().sum()\n"
        "copies = gym.make_vec('wm_env:CovertWatermarkEnv-v0', 2, vectorization_mode='async',\n"
        "    vector_kwargs={'context': 'fork'}, **arguments)\n"
        "copies.reset(); copies.step(copies.action_space.sample()); copies.close()\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("backend", ["module://not.there", "nonsense"])
def test_pictures_need_no_backend(backend, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", backend)
    code = (
        "import gymnasium as gym\n"
        "env = gym.make('wm_env:CovertWatermarkEnv-v0', render_mode='rgb_array')\n"
        "env.reset(); env.step(env.action_space.sample())\n"
        "assert env.render().shape == (360, 640, 3)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
