"""Constrained PPO beside a stock PPO on the same number of environment steps: python benchmarks/ppo.py --help.

Prints one line per seed and writes them as JSON. Every number is exact: the law of the deterministic policy, evaluated
on the whole tree.
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from command import MANY, SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import gymnasium as gym
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn
    from transfer import play

    from agents.common.evaluation import Evaluation
    from agents.ppo_lagrangian.agent import AGENT
    from agents.ppo_lagrangian.callbacks import LawEvaluation, evaluate_deterministic
    from agents.ppo_lagrangian.shipped import POLICY_FORMAT, save_policy
    from agents.ppo_lagrangian.training import make_model
    from agents.ppo_lagrangian.vec_env import LogitVecEnv
    from wm_env.common.arguments import parse
    from wm_env.common.files import check_output, write_json
    from wm_env.env import CovertWatermarkEnv
    from wm_env.optimum import percent_of_optimum
    from wm_env.problem import open_tree, split_prompts
    from wm_env.wrappers import LogitsToSimplices


@dataclass(frozen=True)
class Result:
    """What a seed reached."""

    learner: str
    seed: int
    start_rate: float
    """Before the first rollout; where PPO-Lagrangian acts with marginals, that of the cover."""
    rate: float
    percent: float
    cost: float
    seconds: float
    held_out_percent: float | None = None
    held_out_cost: float | None = None


@dataclass(frozen=True)
class Options:
    """Which learner, which seeds, how long."""

    learner: Literal["ppo-lagrangian", "stock-ppo"] = "ppo-lagrangian"
    """stock-ppo: Stable-Baselines3's PPO, reward minus a fixed penalty on the cost."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    split: Literal["all", "train"] = "all"
    """train: learn on prompts of the training split and evaluate on the ten held-out ones too."""
    preset: Literal["ppo", "paper"] = "ppo"
    """Constants of PPO-Lagrangian and sizes of the environment: ppo = its defaults, paper = the paper's problem."""
    prompts: int | None = None
    labels: int | None = None
    candidates: int | None = None
    """If not given, those of the preset."""
    iterations: int | None = None
    """Rollouts; if not given, as many as in the preset."""
    margin: float = 0.0
    """Share of the limit that training leaves, so that prompts that were never seen stay within it."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where PPO-Lagrangian's networks are."""
    threads: int = 1
    penalty: float = 1.0541
    """Of the stock PPO, bits per unit of cost; the optimal multiplier of the default problem by default."""
    out: Path = Path("runs/benchmark-ppo.json")
    save: Path | None = None
    """File for the policy of the last seed, such as those that come with the package."""


class Penalised(LogitVecEnv):
    """reward - penalty * cost."""

    def __init__(self, penalty: float, copies: int, **arguments: Any):
        super().__init__(copies, **arguments)
        self.penalty = penalty

    def step_wait(self) -> VecEnvStepReturn:
        observation, rewards, dones, infos = super().step_wait()
        costs = [info["cost"] for info in infos]
        return observation, rewards - self.penalty * torch.tensor(costs).numpy().astype("float32"), dones, infos


def constrained(options: Options, arguments: dict[str, Any], seed: int) -> Result:
    preset = AGENT.presets[options.preset]
    settings = replace(preset, seed=seed, labels=arguments["labels"], device=options.device)
    env = CovertWatermarkEnv(**arguments)
    tighter = arguments | {"epsilon": (1 - options.margin) * env.problem.epsilon}
    model = make_model(tighter, settings)
    model.set_logger(configure(None, []))
    start = evaluate_deterministic(model, env)
    callback = LawEvaluation(CovertWatermarkEnv(**tighter))
    begin = time.perf_counter()
    model.learn((options.iterations or preset.iterations) * model.n_steps * model.n_envs, callback)
    seconds = time.perf_counter() - begin
    callback.restore_best()
    found = evaluate_deterministic(model, env)
    if options.save is not None:
        save_policy(model.policy, options.save)
    beyond = {}
    if options.split == "train":
        test = CovertWatermarkEnv(**arguments | {"split": "test", "prompts": 10})
        unseen = evaluate_deterministic(model, test)
        beyond = {"held_out_percent": percent(unseen, test), "held_out_cost": unseen.cost}
    return Result("ppo-lagrangian", seed, start.rate, found.rate, percent(found, env), found.cost, seconds, **beyond)


def stock(options: Options, arguments: dict[str, Any], seed: int) -> Result:
    copies = 8
    env = Penalised(options.penalty, copies, **arguments)
    model = PPO("MultiInputPolicy", env, n_steps=32, batch_size=64, seed=seed, device="cpu")
    begin = time.perf_counter()
    rate, cost = played(model, arguments)
    start = rate
    model.learn((options.iterations or 600) * 2 * copies)
    seconds = time.perf_counter() - begin
    rate, cost = played(model, arguments)
    optimum = CovertWatermarkEnv(**arguments).problem.rate_bound
    return Result("stock-ppo", seed, start, rate, percent_of_optimum(rate, optimum), cost, seconds)


def played(model: PPO, arguments: dict[str, Any]) -> tuple[float, float]:
    """What the deterministic policy is worth: rate in bits per text and cost."""
    env = LogitsToSimplices(gym.make("wm_env:CovertWatermarkEnv-v0", **arguments))
    return play(lambda observation, _: model.predict(observation, deterministic=True)[0], env)


def percent(evaluation: Evaluation, env: CovertWatermarkEnv) -> float:
    return percent_of_optimum(evaluation.rate, env.problem.rate_bound)


def main() -> None:
    options = parse(Options)
    within(options, seeds=SEEDS, prompts=MANY, iterations=MANY, penalty=(0, 10**6), margin=(0, 1), threads=(1, 1024))
    check_output(options.out, "name another --out", "held_out_percent")
    if options.save is not None:
        check_output(options.save, "name another --save", POLICY_FORMAT.kind)
    torch.set_num_threads(options.threads)
    preset = AGENT.presets[options.preset]
    whole = open_tree("news")
    arguments = {
        "tree": "news",
        "split": options.split,
        "prompts": options.prompts or preset.prompts or len(split_prompts(whole, options.split)),
        "labels": options.labels or preset.labels,
        "candidates": options.candidates or preset.candidates or whole.meta.candidates,
    }
    run = constrained if options.learner == "ppo-lagrangian" else stock
    results = []
    for seed in options.seeds:
        results.append(run(options, arguments, seed))
        print(results[-1], flush=True)
        write_json(options.out, [asdict(result) for result in results])


if __name__ == "__main__":
    run_benchmark(main)
