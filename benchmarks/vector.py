"""Steps per second of 64 copies, batched and in Stable-Baselines3's DummyVecEnv: python benchmarks/vector.py [TREE].

Both play the same simplex actions, alternating in one process; both reset finished episodes in the same step. One row
of the table per size of the problem, the second is the environment's default.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from command import run_benchmark

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import gymnasium as gym
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    from wm_env.problem import open_tree

LONG_ID, COPIES, ROUNDS, STEPS = "wm_env:CovertWatermarkEnv-v0", 64, 9, 20
SIZES = ((1, 8, 8), (4, 8, 8), (8, 12, 16), (16, 16, 16))
"""Prompts, candidates and labels."""


def seconds_per_step(step: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one step of all copies."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - wall) / STEPS, (time.process_time() - cpu) / STEPS


def compare(tree: str, prompts: int, candidates: int, labels: int) -> None:
    """Print one row: medians of the rounds, and of the ratios within a round."""
    arguments: dict[str, Any] = {"tree": tree, "prompts": prompts, "candidates": candidates, "labels": labels}
    batched = gym.make_vec(
        LONG_ID, COPIES, vectorization_mode="vector_entry_point", autoreset_mode="SameStep", **arguments
    )
    dummy = make_vec_env(LONG_ID, n_envs=COPIES, env_kwargs=arguments)
    batched.action_space.seed(0)
    action = batched.action_space.sample()
    batched.reset(seed=0)
    dummy.reset()
    rounds = [
        (seconds_per_step(lambda: dummy.step(action)), seconds_per_step(lambda: batched.step(action)))
        for _ in range(ROUNDS)
    ]
    row = f"| {prompts} | {candidates} | {labels} | {action[0].size:,} |"
    for kind in (0, 1):
        one, other = (statistics.median(row[which][kind] for row in rounds) for which in (0, 1))
        ratio = statistics.median(row[0][kind] / row[1][kind] for row in rounds)
        row += f" {COPIES / one:,.0f} | {COPIES / other:,.0f} | {ratio:.1f} |"
    print(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", nargs="?", default="news", help='a tree file, or "news", the shipped one')
    tree = parser.parse_args().tree
    open_tree(tree)  # what cannot be read is told before the table
    torch.set_num_threads(1)
    print("Steps per second, in the last three columns per second of processor time:\n")
    print(
        "| prompts | Q | M | entries of an action"
        + " | DummyVecEnv | batched | ratio" * 2
        + " |\n"
        + "| --- " * 10
        + "|"
    )
    for size in SIZES:
        compare(tree, *size)


if __name__ == "__main__":
    run_benchmark(main)
