"""A trained policy on covers that it never saw: python benchmarks/transfer.py --policies default --trees news FILE.

Each policy plays the environment once on every tree as it is, without training. Rate and cost are exact, as the
environment's are; the optimum is that of the tree. A tree is "news", a file of `wm_env.lm.build`, or "synthetic:BITS",
16 prompts whose covers have so many bits a block.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command import MANY, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import gymnasium as gym
    import numpy as np
    import torch
    from scipy.stats import entropy

    from agents.training.policy import load_policy
    from wm_env.common.arguments import parse
    from wm_env.env import CovertWatermarkEnv
    from wm_env.optimum import percent_of_optimum
    from wm_env.problem import open_tree
    from wm_env.synthetic import synthetic_tree
    from wm_env.tree import StateTree, save_tree

_SYNTHETIC = "synthetic:"


@dataclass(frozen=True)
class Options:
    """Which policies, and where they play."""

    policies: tuple[str, ...] = ("default", "paper")
    """Shipped policies, files with a policy, or run folders of an agent that generalises."""
    trees: tuple[str, ...] = ("news", "synthetic:2", "synthetic:3")
    """Trees: "news", files, or "synthetic:BITS"."""
    labels: int = 32
    """M."""
    epsilon: float = 0.1
    """Limit of the cost."""
    seed: int = 0
    """Of synthetic trees."""


def play(policy: Callable[[Any, Any], Any], env: gym.Env[Any, Any]) -> tuple[float, float]:
    """Rate in bits per text and cost of one episode."""
    observation, _ = env.reset()
    rate, ended = 0.0, False
    while not ended:
        observation, reward, ended, _, info = env.step(policy(observation, env))
        rate += float(reward)
    return rate, float(info["cost_so_far"])


def file_of(name: str, folder: Path, seed: int) -> str:
    """A tree as the environment takes it; synthetic ones are written to a file."""
    if not name.startswith(_SYNTHETIC):
        return name
    path = folder / f"{name.removeprefix(_SYNTHETIC)}.safetensors"
    save_tree(synthetic_tree(16, entropy=float(name.removeprefix(_SYNTHETIC)), seed=seed), path)
    return str(path)


def mean_entropy(tree: StateTree) -> float:
    """Mean H(X|S=s) over the states of the first block, bits."""
    return float(np.mean(entropy(tree.blocks[0].cover, base=2, axis=1)))


def main() -> None:
    options = parse(Options, description=__doc__)
    within(options, labels=MANY, epsilon=(0, 1), seed=(0, 2**32 - 1))
    torch.set_num_threads(1)
    print("| tree | bits of a block | policy | % of optimum | cost |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.trees:
            path = file_of(name, Path(folder), options.seed)
            tree = open_tree(path)
            env = CovertWatermarkEnv(
                tree=path,
                prompts=len(tree.prompts),
                candidates=tree.meta.candidates,
                labels=options.labels,
                epsilon=options.epsilon,
            )
            bits = mean_entropy(tree)
            for policy in options.policies:
                rate, cost = play(load_policy(policy), env)
                share = percent_of_optimum(rate, env.problem.rate_bound)
                print(f"| {name} | {bits:.2f} | {policy} | {share:.2f} | {cost:.4f} |", flush=True)


if __name__ == "__main__":
    run_benchmark(main)
