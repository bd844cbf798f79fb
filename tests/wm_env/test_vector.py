import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trees import uneven_tree

from wm_env.criteria.credit import CreditByState
from wm_env.spaces import ProductOfSimplices
from wm_env.tree import save_tree

LONG_ID = "wm_env:CovertWatermarkEnv-v0"
MODES = [mode.value for mode in AutoresetMode]


@pytest.fixture(scope="module")
def uneven_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("trees") / "uneven.safetensors"
    save_tree(uneven_tree(prompts=6, blocks=3, candidates=3, seed=2), path)
    return str(path)


def pair(tree, copies, mode, **arguments):
    """The vector environment and Gymnasium's loop over single environments."""
    batched = gym.make_vec(
        LONG_ID, copies, vectorization_mode="vector_entry_point", autoreset_mode=mode, tree=tree, **arguments
    )
    looped = gym.make_vec(
        LONG_ID, copies, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, tree=tree, **arguments
    )
    return batched, looped


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_same(found[name], value)
    elif expected.dtype == object:
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert_same(one, other)
    else:
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        tolerance = 1e-7 if expected.dtype == np.float32 else 1e-12
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "arguments",
    [
        {"prompts": 3, "labels": 4, "candidates": 3},
        {"prompts": 2, "labels": 4, "candidates": 3, "gamma": 0.9, "objective": "coded", "message_bits": 1},
    ],
)
def test_every_number_is_that_of_single_environments(uneven_file, mode, arguments):
    batched, looped = pair(uneven_file, 3, mode, **arguments)
    assert_same(batched.reset(seed=5), looped.reset(seed=5))
    batched.action_space.seed(1)
    for _ in range(8):
        action = batched.action_space.sample()
        expected = looped.step(action)
        assert_same(batched.step(action), expected)
        over = expected[2]
        if mode == "Disabled" and over.any():
            options = {"reset_mask": over}
            assert_same(batched.reset(options=dict(options)), looped.reset(options=dict(options)))


def test_copies_with_other_prompts_and_at_other_blocks(uneven_file):
    arguments = {"prompts": 4, "labels": 2, "candidates": 3}
    batched, looped = pair(uneven_file, 5, "Disabled", **arguments)
    assert_same(batched.reset(seed=3, options={"prompts": 2}), looped.reset(seed=3, options={"prompts": 2}))
    batched.action_space.seed(0)
    mask = np.array([True, False, True, False, False])
    for number in range(6):
        action = batched.action_space.sample()
        assert_same(batched.step(action), looped.step(action))
        if number == 0:
            # Two copies start again, with three prompts: from now on the copies stand at different blocks.
            options = {"reset_mask": mask, "prompts": 3}
            assert_same(batched.reset(options=dict(options)), looped.reset(options=dict(options)))
        elif number in (2, 3):
            over = ~mask if number == 2 else mask
            options = {"reset_mask": over, "prompts": 1 + number % 2}
            assert_same(batched.reset(options=dict(options)), looped.reset(options=dict(options)))
    assert len({problem.tree.prompts for problem in batched.problems}) > 1


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_options_hold_for_one_reset(uneven_file, mode):
    batched, looped = pair(uneven_file, 4, mode, prompts=3, labels=2, candidates=3)
    batched.action_space.seed(0)
    for options in ({"prompts": 2}, {}, {"prompts": 1}):
        assert_same(batched.reset(seed=0, options=dict(options)), looped.reset(seed=0, options=dict(options)))
        for _ in range(6):
            action = batched.action_space.sample()
            assert_same(batched.step(action), looped.step(action))
        assert {len(problem.tree.prompts) for problem in batched.problems} == {3}


@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), copies=st.integers(1, 4))
def test_copies_do_not_influence_each_other(small_tree_file, seed, copies):
    arguments = {"tree": str(small_tree_file), "prompts": 2, "candidates": 4, "labels": 4}
    batched = gym.make_vec(LONG_ID, copies, vectorization_mode="vector_entry_point", **arguments)
    alone = gym.make(LONG_ID, **arguments)
    batched.reset(seed=0)
    batched.action_space.seed(seed)
    actions = [batched.action_space.sample() for _ in range(2)]
    stepped = [batched.step(action) for action in actions]
    chosen = seed % copies
    alone.reset(seed=0)
    for action, (observation, rewards, _, _, infos) in zip(actions, stepped, strict=True):
        seen, reward, *_, info = alone.step(action[chosen])
        assert rewards[chosen] == pytest.approx(reward, abs=1e-12)
        assert infos["cost"][chosen] == pytest.approx(info["cost"], abs=1e-12)
        np.testing.assert_allclose(observation["state_probs"][chosen], seen["state_probs"], atol=1e-7)


def test_credit_is_that_of_the_wrapper_and_outlasts_the_reset(uneven_file):
    arguments = {"tree": uneven_file, "prompts": 3, "labels": 4, "candidates": 3}
    batched = gym.make_vec(LONG_ID, 2, vectorization_mode="vector_entry_point", autoreset_mode="SameStep", **arguments)
    singles = [CreditByState(gym.make(LONG_ID, **arguments)) for _ in range(2)]
    batched.reset(seed=0)
    batched.action_space.seed(4)
    for single in singles:
        single.reset(seed=0)
    for _ in range(3):
        action = batched.action_space.sample()
        batched.step(action)
        credit = batched.unwrapped.credit()
        for copy, single in enumerate(singles):
            info = single.step(action[copy])[4]
            for name, values in credit.items():
                np.testing.assert_allclose(values[copy], info[name], atol=1e-12)


@pytest.mark.parametrize("mode", ["SameStep", AutoresetMode.SAME_STEP])
def test_the_autoreset_mode_is_gymnasium_s_or_its_name(small_tree_file, mode):
    batched = gym.make_vec(LONG_ID, num_envs=2, tree=str(small_tree_file), candidates=4, autoreset_mode=mode)
    assert batched.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_spaces_and_metadata(small_tree_file):
    batched = gym.make_vec(LONG_ID, num_envs=3, tree=str(small_tree_file), prompts=2, candidates=4)
    assert batched.unwrapped.spec.kwargs["vectorization_mode"] == "vector_entry_point"
    assert isinstance(batched.action_space, ProductOfSimplices)
    assert batched.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    observation, infos = batched.reset(seed=0)
    assert observation in batched.observation_space
    assert infos["optimal_rate"].shape == (3,)
    np.testing.assert_array_equal(infos["rate_bound"], infos["optimal_rate"])
    before = {name: values.copy() for name, values in observation.items()}
    batched.step(batched.action_space.sample())
    for name, values in before.items():
        np.testing.assert_array_equal(observation[name], values)


def test_bad_input_names_the_copy(small_tree_file):
    arguments = {"tree": str(small_tree_file), "prompts": 2, "candidates": 4, "labels": 4}
    batched = gym.make_vec(LONG_ID, 3, vectorization_mode="vector_entry_point", autoreset_mode="Disabled", **arguments)
    action = batched.action_space.sample()
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        batched.step(action)
    batched.reset(seed=0)
    spoiled = action.copy()
    spoiled[2, 1, 3, 2] = np.nan
    with pytest.raises(ValueError, match=r"copy 2: W\(x\|u,s\) of state 1, label 3 is not a law"):
        batched.step(spoiled)
    with pytest.raises(ValueError, match="wants"):
        batched.step(action[:2])
    batched.step(action)
    batched.step(action)
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        batched.step(action)
    for mask in (np.array([True, False]), np.zeros(3, dtype=bool), [True, True, True]):
        with pytest.raises(ValueError, match=r"shape \(3,\) with at least one True"):
            batched.reset(options={"reset_mask": mask})
    with pytest.raises(ValueError, match="2 seeds for 3 copies"):
        batched.reset(seed=[1, 2])
    with pytest.raises(ValueError, match="unknown reset options"):
        batched.reset(options={"prompt": 1})


def state_of(batched):
    """All that the numbers of later steps depend on."""
    env = batched.unwrapped
    return [
        env._state_probs.numpy().copy(),
        env._number.copy(),
        env._cost_so_far.copy(),
        np.array([problem.tree.fingerprint for problem in env.problems]),
        np.array([str(rng.bit_generator.state) for rng in env._rngs]),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_raises_changes_nothing(uneven_file, mode):
    batched, _ = pair(uneven_file, 3, mode, prompts=3, labels=4, candidates=3)
    batched.reset(seed=5, options={"prompts": 2})
    batched.action_space.seed(1)
    batched.step(batched.action_space.sample())
    # From here on copy 0 stands at an earlier block than the others.
    batched.reset(options={"reset_mask": np.array([True, False, False])})
    spoiled = batched.action_space.sample()
    spoiled[2] = np.nan
    before = state_of(batched)
    for call in (
        lambda: batched.step(spoiled),
        lambda: batched.reset(options={"prompts": 99}),
        lambda: batched.reset(options={"prompt": 1}),
        lambda: batched.reset(seed=[1, 2, -1]),
        lambda: batched.reset(seed=7, options={"prompts": 0}),
        lambda: batched.reset(seed=7, options={"reset_mask": np.zeros(3, dtype=bool)}),
    ):
        with pytest.raises((ValueError, gym.error.Error)):
            call()
        for one, other in zip(before, state_of(batched), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("seed", [np.int64(5), [5, 6], (5, np.int64(6)), np.array([5, 6]), range(5, 7)])
def test_seeds_of_every_type(small_tree_file, seed):
    batched = gym.make_vec(LONG_ID, 2, vectorization_mode="vector_entry_point", tree=str(small_tree_file), candidates=4)
    options = {"prompts": 2}
    batched.reset(seed=5, options=options)
    expected = [problem.tree.prompts for problem in batched.problems]
    batched.reset(seed=seed, options=options)
    assert [problem.tree.prompts for problem in batched.problems] == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": -1}, "^seed=-1: an integer >= 0"),
        ({"seed": 1.5}, "^seed=1.5: an integer"),
        ({"seed": "ab"}, "^seed='ab': an integer"),
        ({"seed": [1, -1]}, "^seed=-1: an integer >= 0"),
        ({"seed": [1, "1"]}, "^seed='1': an integer"),
        ({"seed": np.array([0.5, 1.0])}, "^seed=.*0.5.*: an integer"),
        ({"seed": np.zeros((2, 1), dtype=int)}, "^seed=array.*: an integer"),
        ({"options": 5}, "^options=5: a dictionary"),
        ({"options": {1: 2, "a": 3}}, "^options=.*: a dictionary with strings"),
    ],
)
def test_resets_that_are_refused(small_tree_file, wrong, message):
    batched = gym.make_vec(LONG_ID, 2, vectorization_mode="vector_entry_point", tree=str(small_tree_file), candidates=4)
    with pytest.raises(ValueError, match=message):
        batched.unwrapped.reset(**wrong)


def test_actions_are_arrays_of_real_numbers(small_tree_file):
    batched = gym.make_vec(
        LONG_ID, 2, vectorization_mode="vector_entry_point", tree=str(small_tree_file), candidates=4
    ).unwrapped
    batched.action_space.seed(0)
    action = batched.action_space.sample()
    for wrong in (action.astype(complex), action.astype(object), action.astype(str), [[1.0], [1.0, 2.0]]):
        batched.reset(seed=0)
        with pytest.raises(ValueError, match=r"^action: an array of real numbers is needed"):
            batched.step(wrong)
    batched.reset(seed=0)
    expected = batched.step(action)[1]
    for same in (action.astype(np.longdouble), action.astype(">f4"), action[::-1].copy()[::-1], action.tolist()):
        batched.reset(seed=0)
        np.testing.assert_allclose(batched.step(same)[1], expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "at least one copy"),
        *(({"num_envs": value}, "^num_envs=.*: an integer is needed") for value in ("2", 2.0, True, None)),
        ({"epsilon": "a"}, "^epsilon='a': a finite number is needed"),
        ({"autoreset_mode": "sometimes"}, "NextStep, SameStep, Disabled"),
        ({"render_mode": "ansi"}, "does not render"),
        ({"message_bits": 3}, "the gp objective has none"),
    ],
)
def test_bad_arguments(small_tree_file, arguments, message):
    from wm_env.vector import CovertWatermarkVectorEnv

    with pytest.raises(ValueError, match=message):
        CovertWatermarkVectorEnv(tree=str(small_tree_file), **{"candidates": 4, "prompts": 2, **arguments})
