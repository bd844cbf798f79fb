import json
import math
import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from matplotlib.colors import to_rgb
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.env_util import make_vec_env

import wm_env
from agents.planner.coded import plan_coded
from wm_env.optimum import solve
from wm_env.spaces import ProductOfSimplices

LONG_ID = "wm_env:CovertWatermarkEnv-v0"


@pytest.fixture
def env(small_tree_file):
    return gym.make(LONG_ID, tree=str(small_tree_file), prompts=3, candidates=4, labels=4)


def by_hand(z, cover, symbol, p_label, p_candidate):
    """I(U;X) - I(U;S) and total variation of one block by plain loops over s, u, x."""
    states, labels, candidates = len(z), p_label.shape[1], cover.shape[1]
    p_us, p_ux, p_u, p_x = {}, {}, {}, {}
    cost = 0.0
    for s in range(states):
        for q in range(candidates):
            seen = 0.0
            for u in range(labels):
                p = z[s] * p_label[s, u] * p_candidate[s, u, q]
                seen += p_label[s, u] * p_candidate[s, u, q]
                p_us[s, u] = p_us.get((s, u), 0) + p
                p_ux[symbol[s, q], u] = p_ux.get((symbol[s, q], u), 0) + p
                p_u[u] = p_u.get(u, 0) + p
                p_x[symbol[s, q]] = p_x.get(symbol[s, q], 0) + p
            cost += z[s] * abs(seen - cover[s, q]) / 2
    i_ux = sum(p * math.log2(p / (p_x[x] * p_u[u])) for (x, u), p in p_ux.items() if p > 0)
    i_us = sum(p * math.log2(p / (z[s] * p_u[u])) for (s, u), p in p_us.items() if p > 0)
    return i_ux, i_us, cost


def normalised(action):
    wide = action.astype(np.float64)
    return wide[..., 0] / wide[..., 0].sum(-1, keepdims=True), wide[..., 1:] / wide[..., 1:].sum(-1, keepdims=True)


def test_checkers_have_nothing_to_say(env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
        warnings.filterwarnings("ignore", message=r".*symmetric and normalized Box action space.*")
        sb3_check_env(env.unwrapped)


def test_both_ids_make_the_environment(small_tree_file):
    for name in (wm_env.ENV_ID, LONG_ID):
        made = gym.make(name, tree=str(small_tree_file), prompts=2, candidates=4, labels=4)
        assert made.unwrapped.labels == 4
        json.loads(made.spec.to_json())


def test_an_episode_is_measured_exactly(env):
    env.action_space.seed(1)
    observation, info = env.reset(seed=0)
    problem = env.unwrapped.problem
    z = problem.tree.prior
    spent = 0.0
    for number, block in enumerate(problem.tree.blocks):
        assert observation["block"] == number
        states = len(block.cover)
        assert np.allclose(observation["state_probs"][:states], z, atol=1e-7)
        assert not observation["state_probs"][states:].any()
        assert np.allclose(observation["cover"].reshape(-1, 4)[:states], block.cover, atol=1e-7)
        action = env.action_space.sample()
        p_label, p_candidate = normalised(action[:states])
        i_ux, i_us, cost = by_hand(z, block.cover, block.symbol, p_label, p_candidate)
        spent += cost
        observation, reward, terminated, truncated, info = env.step(action)
        assert type(reward) is float
        assert type(info["cost"]) is np.float64
        assert reward == pytest.approx(i_ux - i_us, abs=1e-12)
        assert info["i_ux"] == pytest.approx(i_ux, abs=1e-12)
        assert info["i_us"] == pytest.approx(i_us, abs=1e-12)
        assert info["cost"] == pytest.approx(cost, abs=1e-12)
        assert info["cost_so_far"] == pytest.approx(spent, abs=1e-12)
        assert info["rate_per_token"] == pytest.approx(reward / 4, abs=1e-12)
        assert (terminated, truncated) == (number == 1, False)
        if not terminated:
            following = np.zeros(len(problem.tree.blocks[1].cover))
            for s in range(states):
                for q in range(block.cover.shape[1]):
                    following[block.child[s, q]] += z[s] * (p_label[s] @ p_candidate[s, :, q])
            z = following


def test_discounted_cost_and_optimum(small_tree_file):
    made = gym.make(LONG_ID, tree=str(small_tree_file), prompts=2, candidates=4, labels=4, gamma=0.5, epsilon=0.0)
    _, info = made.reset(seed=0)
    # With no budget the optimum is the entropy of the cover itself, block b weighing gamma^b.
    tree = made.unwrapped.problem.tree
    z, optimum = tree.prior, 0.0
    for number, block in enumerate(tree.blocks, start=1):
        entropy = [-sum(p * math.log2(p) for p in row if p > 0) for row in block.cover]
        optimum += 0.5**number * sum(weight * value for weight, value in zip(z, entropy, strict=True))
        if number == 1:
            mass = np.zeros(len(tree.blocks[1].cover))
            for s, row in enumerate(block.child):
                mass[row] += z[s] * block.cover[s]
            z = mass
    assert info["optimal_rate"] == info["rate_bound"] == pytest.approx(optimum, abs=1e-12)
    made.action_space.seed(0)
    first = made.step(made.action_space.sample())[4]
    second = made.step(made.action_space.sample())[4]
    assert second["cost_so_far"] == pytest.approx(0.5 * first["cost"] + 0.25 * second["cost"], abs=1e-12)


def test_copying_the_cover_costs_nothing_and_hides_nothing(env):
    env.reset(seed=0)
    for block in env.unwrapped.problem.tree.blocks:
        action = np.full(env.action_space.shape, 1 / 4)
        action[: len(block.cover), :, 1:] = block.cover[:, None, :]
        _, reward, _, _, info = env.step(action)
        assert reward == pytest.approx(0, abs=1e-12)
        assert info["cost"] == pytest.approx(0, abs=1e-12)
        assert info["i_us"] == pytest.approx(0, abs=1e-12)


def test_coded_objective_is_the_information_of_uniform_message_bits(small_tree_file):
    made = gym.make(
        LONG_ID, tree=str(small_tree_file), prompts=2, candidates=4, labels=4, objective="coded", message_bits=1
    )
    made.action_space.seed(5)
    _, info = made.reset(seed=0)
    assert np.isnan(info["optimal_rate"])
    # One bit in either block, with the weights 1 of both; the coded planner's law is a policy, so it has no more.
    tree = made.unwrapped.problem.tree
    assert plan_coded(tree, 1, 0.1).rate - 1e-12 <= info["rate_bound"] <= 2.0
    assert info["rate_bound"] == min(2.0, solve(tree, 0.1).rate)
    block = made.unwrapped.problem.tree.blocks[0]
    action = made.action_space.sample()
    p_label, p_candidate = normalised(action[:2])
    # Labels 0, 1 carry message 0 and labels 2, 3 carry message 1: the first free bit of V.
    message = np.full((2, 2), 0.5)
    channel = np.stack(
        [
            np.einsum("su,suq->sq", p_label[:, half], p_candidate[:, half]) / p_label[:, half].sum(1, keepdims=True)
            for half in (slice(0, 2), slice(2, 4))
        ],
        axis=1,
    )
    i_mx, i_ms, cost = by_hand(made.unwrapped.problem.tree.prior, block.cover, block.symbol, message, channel)
    _, reward, _, _, info = made.step(action)
    assert i_ms == pytest.approx(0, abs=1e-12)
    assert reward == pytest.approx(i_mx, abs=1e-12)
    assert info["cost"] == pytest.approx(cost, abs=1e-12)


def test_joint_law_is_what_was_played(env):
    env.action_space.seed(2)
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="0 of 2 blocks"):
        env.unwrapped.joint_law()
    rewards = [env.step(env.action_space.sample())[1] for _ in range(2)]
    law = env.unwrapped.joint_law()
    assert law.tree == env.unwrapped.problem.tree.fingerprint
    for block, reward in zip(law.blocks, rewards, strict=True):
        arrays = (block.state_probs, block.cover, block.symbol, block.p_label, block.p_candidate)
        i_ux, i_us, _ = by_hand(*(array.numpy() for array in arrays))
        assert i_ux - i_us == pytest.approx(reward, abs=1e-12)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda a: a[:, :, :-1], "wants"),
        (lambda a: np.where(np.arange(a.shape[2]) == 2, np.nan, a), r"W\(x\|u,s\) of state 0, label 0 is not a law"),
        (lambda a: a - 1e-3 * (np.arange(len(a)) == 1)[:, None, None], "state 1"),
        (
            lambda a: a * (np.arange(len(a)) != 2)[:, None, None],
            r"P\(u\|s\) of state 2 is not a law.*LogitsToSimplices",
        ),
        (lambda a: np.full_like(a, np.inf), "not a law"),
    ],
)
def test_bad_actions_name_the_state(env, spoil, message):
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.unwrapped.step(spoil(env.action_space.sample()))


def test_rounding_is_repaired_and_padded_states_are_ignored(env):
    env.action_space.seed(0)
    action = env.action_space.sample()
    env.reset(seed=0)
    _, reward, *_ = env.step(action)
    env.reset(seed=0)
    rough = action * np.float32(1 + 5e-5)
    rough[3:] = np.nan
    _, repaired, *_ = env.step(rough)
    assert repaired == pytest.approx(reward, abs=1e-6)


def test_order_of_calls(env):
    raw = env.unwrapped
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        raw.step(env.action_space.sample())
    env.reset(seed=0)
    raw.step(env.action_space.sample())
    raw.step(env.action_space.sample())
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        raw.step(env.action_space.sample())


def test_a_call_that_raises_changes_nothing(env):
    env.reset(seed=3, options={"prompts": 2})
    action = env.action_space.sample()
    env.step(action)
    inner = env.unwrapped
    before = inner.problem, inner.laws, inner._cost_so_far, str(inner.np_random.bit_generator.state)
    spoiled = action.copy()
    spoiled[0, 0, 1] = np.nan
    for call in (
        lambda: env.reset(seed=4, options={"prompts": 99}),
        lambda: env.reset(seed=-1, options={"prompts": 1}),
        lambda: env.step(spoiled),
    ):
        with pytest.raises((ValueError, gym.error.Error)):
            call()
        after = inner.problem, inner.laws, inner._cost_so_far, str(inner.np_random.bit_generator.state)
        assert after == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": -1}, "^seed=-1: an integer >= 0"),
        ({"seed": 1.5}, "^seed=1.5: an integer"),
        ({"seed": [1]}, "^seed=.*: an integer"),
        ({"seed": True}, "^seed=True: an integer"),
        ({"options": 5}, "^options=5: a dictionary"),
        ({"options": 0}, "^options=0: a dictionary"),
        ({"options": {1: 2, "a": 3}}, "^options=.*: a dictionary with strings"),
        ({"options": {"prompts": "2"}}, "'2': an integer from 1 to"),
    ],
)
def test_resets_that_are_refused(env, wrong, message):
    with pytest.raises(ValueError, match=message):
        env.unwrapped.reset(**wrong)


def test_seeds_of_numpy(env):
    raw = env.unwrapped
    raw.reset(seed=3)
    state = str(raw.np_random.bit_generator.state)
    raw.reset(seed=np.int64(3))
    assert str(raw.np_random.bit_generator.state) == state


def test_actions_are_arrays_of_real_numbers(env):
    raw = env.unwrapped
    raw.action_space.seed(0)
    action = raw.action_space.sample()
    graded = torch.from_numpy(action.copy()).requires_grad_()
    for wrong in (action.astype(complex), action.astype(object), action.astype(str), None, graded, [[1.0], [1.0, 2.0]]):
        raw.reset(seed=0)
        with pytest.raises(ValueError, match=r"^action: an array of real numbers is needed"):
            raw.step(wrong)
    raw.reset(seed=0)
    expected = raw.step(action)[1]
    others = (action.astype(np.longdouble), action.astype(">f4"), action[::-1].copy()[::-1], action.tolist())
    for same in (*others, torch.from_numpy(action)):
        raw.reset(seed=0)
        assert raw.step(same)[1] == pytest.approx(expected, abs=1e-7)


def test_drawn_prompts_and_splits(small_tree_file):
    made = gym.make(LONG_ID, tree=str(small_tree_file), prompts=3, candidates=4, labels=4, split="train").unwrapped
    made.reset(seed=0)
    assert made.problem.tree.prompts == ("prompt 0", "prompt 1", "prompt 2")
    seen = set()
    for seed in range(20):
        made.reset(seed=seed, options={"prompts": 2})
        assert len(set(made.problem.tree.prompts)) == 2
        seen |= set(made.problem.tree.prompts)
    assert seen == {f"prompt {row}" for row in (0, 1, 2, 3, 5)}
    held_out = gym.make(LONG_ID, tree=str(small_tree_file), prompts=1, candidates=4, labels=4, split="test").unwrapped
    held_out.reset(seed=0)
    assert held_out.problem.tree.prompts == ("prompt 4",)
    for options, message in (({"prompts": 4}, "from 1 to 3"), ({"prompt": 1}, "unknown reset options")):
        with pytest.raises(ValueError, match=message):
            made.reset(options=options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": 7}, "has 1 to 6"),
        ({"prompts": 0}, "has 1 to 6"),
        ({"candidates": 6}, "1 to 5"),
        ({"labels": 3}, "power of two"),
        ({"labels": 32}, "at most 16 words"),
        ({"blocks": 3}, "1 to 2"),
        ({"objective": "both"}, "choose one of gp, coded"),
        ({"objective": "coded", "message_bits": 3}, "carry 1 to 2 message bits"),
        ({"objective": "coded"}, "message_bits=3: 4 labels carry 1 to 2 message bits"),
        ({"message_bits": 2}, "message_bits=2: the gp objective has none; leave them out, or choose objective='coded'"),
        ({"split": "validation"}, "train"),
        ({"epsilon": -0.1}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"gamma": 0.0}, "gamma"),
        ({"render_mode": "video"}, "ansi"),
        *(
            ({"objective": "coded", name: value}, f"^{name}=.*: an integer is needed")
            for name in ("prompts", "candidates", "labels", "blocks", "message_bits")
            for value in ("2", 2.0, True, float("nan"), [2])
        ),
        *(({name: None}, f"^{name}=None: an integer") for name in ("prompts", "candidates", "labels")),
        *(
            ({name: value}, f"^{name}=.*: a finite number is needed")
            for name in ("epsilon", "gamma")
            for value in ("0.1", None, True, float("inf"), float("nan"), [0.1])
        ),
        *(({"tree": value}, "^tree=.*: a name or a path is needed") for value in (None, 3, ["news"])),
        *(({name: value}, f"^{name}=.*choose") for name in ("split", "objective") for value in (None, 3, ["all"])),
    ],
)
def test_bad_arguments(small_tree_file, arguments, message):
    from wm_env.env import CovertWatermarkEnv

    with pytest.raises(ValueError, match=message):
        CovertWatermarkEnv(**{"tree": str(small_tree_file), "prompts": 2, "candidates": 4, "labels": 4, **arguments})


def test_missing_tree():
    with pytest.raises(FileNotFoundError, match="no such"):
        gym.make(LONG_ID, tree="nowhere.safetensors")


def test_few_labels_have_a_bound_and_no_optimum(small_tree_file):
    made = gym.make(
        LONG_ID, tree=str(small_tree_file), prompts=2, candidates=4, labels=2, gamma=0.5, render_mode="ansi"
    )
    _, info = made.reset(seed=0)
    assert np.isnan(info["optimal_rate"])
    # log2 2 bits in each of two blocks, which weigh 1/2 and 1/4.
    assert info["rate_bound"] == pytest.approx(0.75, abs=1e-12)
    assert "rate 0.0000 of at most 0.7500 bits" in made.render()


def test_one_label_is_refused(small_tree_file):
    with pytest.raises(ValueError, match="labels=1: a label needs at least two values"):
        gym.make(LONG_ID, tree=str(small_tree_file), prompts=2, candidates=4, labels=1)


def test_render(small_tree_file):
    made = gym.make(LONG_ID, tree=str(small_tree_file), prompts=1, candidates=4, labels=4, render_mode="ansi")
    made.reset(seed=0)
    optimum = made.unwrapped.problem.optimum.rate
    assert (
        made.render() == f"so far: rate 0.0000 of at most {optimum:.4f} bits, total variation 0.0000 of at most 0.1000"
    )
    rates, costs = zip(*(made.step(made.action_space.sample())[1::3] for _ in range(2)), strict=True)
    rate, cost = sum(rates), sum(info["cost"] for info in costs)
    assert made.render().splitlines() == [
        *(
            f"block {number + 1}: rate {rates[number]:.4f} bits, total variation {costs[number]['cost']:.4f}"
            for number in (0, 1)
        ),
        f"so far: rate {rate:.4f} of at most {optimum:.4f} bits, total variation {cost:.4f} of at most 0.1000",
    ]


def test_people_see_every_step(small_tree_file, capsys):
    arguments = {"tree": str(small_tree_file), "prompts": 1, "candidates": 4, "labels": 4}
    made, written = (gym.make(LONG_ID, render_mode=mode, **arguments) for mode in ("human", "ansi"))
    for env in (made, written):
        env.reset(seed=0)
    made.action_space.seed(0)
    for block in range(2):
        action = made.action_space.sample()
        made.step(action)
        written.step(action)
        assert capsys.readouterr().out.splitlines() == written.render().splitlines()[block:]
    assert made.render() is None


def test_the_coded_objective_is_shown_with_its_bound(small_tree_file):
    arguments = {"tree": str(small_tree_file), "prompts": 1, "candidates": 4, "labels": 4, "message_bits": 2}
    made = gym.make(LONG_ID, objective="coded", render_mode="ansi", **arguments)
    _, info = made.reset(seed=0)
    bound = f"{info['rate_bound']:.4f}"
    assert made.render() == f"so far: rate 0.0000 of at most {bound} bits, total variation 0.0000 of at most 0.1000"
    picture = gym.make(LONG_ID, objective="coded", render_mode="rgb_array", **arguments)
    picture.reset(seed=0)
    assert picture.render().shape == (360, 640, 3)


def test_integers_of_numpy_are_integers(small_tree_file):
    counts = {"prompts": np.int64(2), "candidates": np.int32(4), "labels": np.int64(4), "blocks": np.int64(1)}
    made = gym.make(LONG_ID, tree=str(small_tree_file), epsilon=np.float32(0.5), **counts)
    made.reset(seed=0)
    assert made.step(made.action_space.sample())[2]


def coloured(frame, colour):
    """Pixels of one of Matplotlib's colours."""
    wanted = np.array([round(255 * part) for part in to_rgb(colour)])
    return int((abs(frame.astype(int) - wanted).max(axis=2) <= 2).sum())


def test_picture_shows_what_is_spent_and_marks_what_is_too_much(small_tree_file):
    arguments = {"tree": str(small_tree_file), "prompts": 1, "candidates": 4, "labels": 4, "render_mode": "rgb_array"}
    for epsilon, warns in ((1e-4, True), (10.0, False)):
        made = gym.make(LONG_ID, epsilon=epsilon, **arguments)
        made.action_space.seed(0)
        made.reset(seed=0)
        empty = made.render()
        made.step(made.action_space.sample())
        frame = made.render()
        assert empty.shape == frame.shape == (360, 640, 3)
        assert frame.dtype == np.uint8
        assert coloured(empty, "C0") == 0
        assert coloured(frame, "C0") > 1000
        assert (coloured(frame, "C3") > 1000) == warns


@pytest.mark.parametrize("env_id", ["CovertWatermarkEnv-v0", LONG_ID])
def test_stable_baselines_makes_it_from_its_id_alone(env_id, small_tree_file):
    arguments = {"tree": str(small_tree_file), "prompts": 1, "candidates": 4, "labels": 4}
    copies = make_vec_env(env_id, n_envs=2, env_kwargs=arguments)
    copies.reset()
    copies.step(np.stack([copies.action_space.sample() for _ in range(2)]))
    assert copies.render("rgb_array").shape[2] == 3


def test_registration_needs_neither_torch_nor_files():
    code = (
        "import sys, wm_env; import gymnasium; gymnasium.spec('CovertWatermarkEnv-v0'); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'safetensors', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_default_environment_in_a_fresh_process():
    code = (
        "import gymnasium, wm_env, sys; e = gymnasium.make('CovertWatermarkEnv-v0'); e.reset(seed=0); "
        "print(e.step(e.action_space.sample())); sys.exit('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "'cost'" in done.stdout


def test_vectorised_copies_keep_their_costs(small_tree_file):
    kwargs = {"tree": str(small_tree_file), "prompts": 2, "candidates": 4, "labels": 4}
    copies = gym.make_vec(LONG_ID, num_envs=2, vectorization_mode="sync", **kwargs)
    assert isinstance(copies.action_space, ProductOfSimplices)
    copies.action_space.seed(0)
    copies.reset(seed=0)
    action = copies.action_space.sample()
    _, rewards, _, _, infos = copies.step(action)
    for index in range(2):
        alone = gym.make(LONG_ID, **kwargs)
        alone.reset(seed=0)
        _, reward, _, _, info = alone.step(action[index])
        assert rewards[index] == pytest.approx(reward, abs=1e-12)
        assert infos["cost"][index] == pytest.approx(info["cost"], abs=1e-12)
