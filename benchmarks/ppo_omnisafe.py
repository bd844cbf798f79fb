"""OmniSafe's PPOLag on the default problem: python benchmarks/ppo_omnisafe.py [SEED ...].

OmniSafe 0.5.0 does not install plainly on Python 3.11. In an environment of its own, beside this package:

    pip install --no-deps omnisafe
    pip install wandb gdown moviepy pandas seaborn xxhash

and the empty module below in the place of safety-gymnasium, which cannot be imported with Gymnasium 1.
"""

# ruff: noqa: E402  (the stand-in must be there before OmniSafe is imported)
import sys
import tempfile
import time
import types
from typing import Any, ClassVar

sys.modules["safety_gymnasium"] = types.ModuleType("safety_gymnasium")

from command import run_benchmark

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import gymnasium as gym
    import torch
    from gymnasium.wrappers import FlattenObservation

    try:
        import omnisafe
        from omnisafe.envs.core import CMDP, env_register
    except ModuleNotFoundError as missing:
        sys.exit(f"error: {missing.name} is missing: the first lines of {__file__} say how to install it")

    from wm_env.common.files import check_seed
    from wm_env.optimum import percent_of_optimum
    from wm_env.wrappers import LogitsToSimplices

STEPS, EPOCH, EPSILON = 9600, 320, 0.1


def make_env() -> gym.Env[Any, Any]:
    return FlattenObservation(LogitsToSimplices(gym.make("wm_env:CovertWatermarkEnv-v0", epsilon=EPSILON)))


@env_register
class CovertWatermark(CMDP):
    _support_envs: ClassVar[list[str]] = ["CovertWatermark-v0"]
    need_auto_reset_wrapper = True
    need_time_limit_wrapper = False

    def __init__(self, env_id: str, num_envs: int = 1, device: str = "cpu", **kwargs: Any):
        super().__init__(env_id)
        self._env = make_env()
        self._num_envs, self._device = num_envs, device
        self._observation_space, self._action_space = self._env.observation_space, self._env.action_space
        self._metadata: dict[str, Any] = {}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[torch.Tensor, dict[str, Any]]:
        observation, info = self._env.reset(seed=seed)
        return torch.as_tensor(observation, dtype=torch.float32), info

    def step(self, action: torch.Tensor) -> tuple[Any, ...]:
        observation, reward, terminated, truncated, info = self._env.step(action.detach().cpu().numpy())
        numbers = (reward, info["cost"], float(terminated), float(truncated))
        return (torch.as_tensor(observation, dtype=torch.float32), *map(torch.tensor, numbers), {})

    def set_seed(self, seed: int) -> None:
        self.reset(seed=seed)

    def render(self) -> None:
        return None

    def close(self) -> None:
        self._env.close()


def train(seed: int) -> tuple[Any, float]:
    settings = {
        "seed": seed,
        "train_cfgs": {"total_steps": STEPS, "torch_threads": 1},
        "algo_cfgs": {"steps_per_epoch": EPOCH, "update_iters": 10, "gamma": 1.0, "cost_gamma": 1.0},
        "lagrange_cfgs": {"cost_limit": EPSILON},
        "logger_cfgs": {"log_dir": tempfile.mkdtemp(), "use_tensorboard": False, "save_model_freq": 10**6},
    }
    begin = time.perf_counter()
    agent = omnisafe.Agent("PPOLag", "CovertWatermark-v0", custom_cfgs=settings)
    agent.learn()
    return agent.agent, time.perf_counter() - begin


def play(learner: Any) -> tuple[float, float, float]:
    """Rate, percent of the optimum and cost of the policy's mean, through the wrappers that it was trained with."""
    env, rate, cost = learner._env, 0.0, 0.0
    observation, _ = env.reset()
    done = False
    while not done:
        with torch.no_grad():
            action = learner._actor_critic.actor.predict(observation, deterministic=True)
        observation, reward, spent, terminated, _, _ = env.step(action)
        rate, cost, done = rate + float(reward), cost + float(spent), bool(terminated)
    optimum = make_env().get_wrapper_attr("problem").rate_bound
    return rate, percent_of_optimum(rate, optimum), cost


def main() -> None:
    seeds = [int(word) for word in sys.argv[1:]] or range(5)
    for number in seeds:
        check_seed(number)
    for number in seeds:
        learner, seconds = train(number)
        print("omnisafe", number, *(f"{value:.4f}" for value in play(learner)), f"{seconds:.1f} s", flush=True)


if __name__ == "__main__":
    run_benchmark(main)
