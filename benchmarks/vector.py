"""Steps per second of many copies, batched and in Stable-Baselines3's DummyVecEnv: python benchmarks/vector.py [TREE].

Both play the same simplex actions, alternating in one process; both reset finished episodes in the same step. One row
of the table per size of the problem, the second is the environment's default. With --device cuda the batch is of
tensors on that device (`wm_env.tensor_env`), and the largest difference between its rewards and costs and those of
DummyVecEnv is told.
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

LONG_ID, ROUNDS, STEPS = "wm_env:CovertWatermarkEnv-v0", 9, 20
SIZES = ((1, 8, 8), (4, 8, 8), (8, 12, 16), (16, 16, 16))
"""Prompts, candidates and labels."""


def seconds_per_step(step: Callable[[], object], steps: int, wait: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one step of all copies."""
    wait()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps


def compare(options: argparse.Namespace, prompts: int, candidates: int, labels: int) -> None:
    """Print one row: medians of the rounds, and of the ratios within a round."""
    copies, on_device = options.copies, options.device is not None
    arguments: dict[str, Any] = {"tree": options.tree, "prompts": prompts, "candidates": candidates, "labels": labels}
    chosen = {"device": options.device} if on_device else {}
    batched = gym.make_vec(
        LONG_ID, copies, vectorization_mode="vector_entry_point", autoreset_mode="SameStep", **chosen, **arguments
    )
    dummy = make_vec_env(LONG_ID, n_envs=copies, env_kwargs=arguments)
    batched.action_space.seed(0)
    action = batched.action_space.sample()
    given = torch.from_numpy(action).to(options.device) if on_device else action
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    batched.reset(seed=0)
    dummy.reset()
    apart = difference(dummy, batched, action, given) if on_device else None
    for _ in range(2):
        batched.step(given)
    rounds = [
        (
            seconds_per_step(lambda: dummy.step(action), max(2, STEPS // (1 + copies // 64)), wait),
            seconds_per_step(lambda: batched.step(given), STEPS, wait),
        )
        for _ in range(ROUNDS)
    ]
    row = f"| {prompts} | {candidates} | {labels} | {action[0].size:,} |"
    for kind in (0,) if on_device else (0, 1):
        one, other = (statistics.median(row[which][kind] for row in rounds) for which in (0, 1))
        ratio = statistics.median(row[0][kind] / row[1][kind] for row in rounds)
        row += f" {copies / one:,.0f} | {copies / other:,.0f} | {ratio:.1f} |"
    print(row if apart is None else f"{row} {apart:.1e} |", flush=True)


def difference(dummy: Any, batched: Any, action: Any, given: Any) -> float:
    """The largest difference between rewards or costs of one episode; rewards of DummyVecEnv are float32."""
    worst = 0.0
    done = False
    while not done:
        _, rewards, dones, infos = dummy.step(action)
        _, found, _, _, columns = batched.step(given)
        columns = columns.get("final_info", columns)
        costs = torch.tensor([info["cost"] for info in infos], dtype=torch.float64)
        pairs = ((found, torch.from_numpy(rewards)), (columns["cost"], costs))
        worst = max(worst, *(float((one.cpu() - other).abs().max()) for one, other in pairs))
        done = bool(dones.all())
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", nargs="?", default="news", help='a tree file, or "news", the shipped one')
    parser.add_argument("--device", choices=("cpu", "cuda"), help="a batch of tensors on this device; else of NumPy")
    parser.add_argument("--copies", type=int, help="64, on a device 256")
    options = parser.parse_args()
    if options.copies is None:
        options.copies = 64 if options.device is None else 256
    open_tree(options.tree)  # what cannot be read is told before the table
    torch.set_num_threads(1)
    columns = " | DummyVecEnv | batched | ratio"
    heads = columns * 2 if options.device is None else columns + " | largest difference"
    where = "in the last three columns per second of processor time" if options.device is None else options.device
    print(f"Steps per second of {options.copies} copies, {where}:\n")
    print(f"| prompts | Q | M | entries of an action{heads} |\n" + "| --- " * (3 + heads.count("|")) + "| --- |")
    for size in SIZES:
        compare(options, *size)


if __name__ == "__main__":
    run_benchmark(main)
