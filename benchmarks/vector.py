"""Steps per second of 64 copies, batched and in Stable-Baselines3's DummyVecEnv: python benchmarks/vector.py [TREE].

Both play the same simplex actions, alternating in one process; both reset finished episodes in the same step.
"""

import statistics
import sys
import time
from collections.abc import Callable

import gymnasium as gym
import torch
from stable_baselines3.common.env_util import make_vec_env

LONG_ID, COPIES, ROUNDS, STEPS = "wm_env:CovertWatermarkEnv-v0", 64, 9, 20


def seconds_per_step(step: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one step of all copies."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - wall) / STEPS, (time.process_time() - cpu) / STEPS


def main(tree: str) -> None:
    torch.set_num_threads(1)
    batched = gym.make_vec(
        LONG_ID, COPIES, vectorization_mode="vector_entry_point", autoreset_mode="SameStep", tree=tree
    )
    dummy = make_vec_env(LONG_ID, n_envs=COPIES, env_kwargs={"tree": tree})
    batched.action_space.seed(0)
    action = batched.action_space.sample()
    batched.reset(seed=0)
    dummy.reset()
    rounds = [
        (seconds_per_step(lambda: dummy.step(action)), seconds_per_step(lambda: batched.step(action)))
        for _ in range(ROUNDS)
    ]
    for name, kind in (("wall clock", 0), ("processor", 1)):
        one, other = (statistics.median(row[which][kind] for row in rounds) for which in (0, 1))
        ratio = statistics.median(row[0][kind] / row[1][kind] for row in rounds)
        print(
            f"{name}: DummyVecEnv {COPIES / one:.0f} steps/s, batched {COPIES / other:.0f} steps/s, "
            f"median ratio {ratio:.1f}"
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "news")
