"""Every environment that `import wm_env` registers passes the checkers of Gymnasium and Stable-Baselines3."""

import warnings

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_sb3

import wm_env  # noqa: F401  (registers)

IDS = sorted(name for name, spec in gym.registry.items() if str(spec.entry_point).startswith("wm_env"))


def test_all_are_there():
    tasks = [f"CovertWatermarkEnv-{task}-v0" for task in ("Default", "Paper", "Small")]
    assert [*tasks, "CovertWatermarkEnv-v0", "CovertWatermarkText-v0"] == IDS


@pytest.mark.parametrize("name", IDS)
def test_checkers(name):
    env = gym.make(f"wm_env:{name}").unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)
        # It would like actions in [-1, 1]; laws are in [0, 1].
        warnings.filterwarnings("ignore", message=".*symmetric and normalized.*")
        check_sb3(env)
