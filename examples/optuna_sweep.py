"""Tune constrained PPO against the known optimum with Optuna: python examples/optuna_sweep.py [TRIALS]. Needs Optuna.

A trial is 100 rollouts on the small task, a quarter of `train.py --preset ppo`. It is worth the percentage of the exact
optimum that its best law within the limit has, 0 if there is none. The first trial is the shipped constants. 30 trials
take about two minutes of one core; the best has about 99.8 %, where the shipped constants have about 99.7 %.
"""

import dataclasses
import sys

import torch
from stable_baselines3.common.logger import configure

from agents.common.table import preset
from agents.ppo_lagrangian.callbacks import LawEvaluation, evaluate_deterministic
from agents.ppo_lagrangian.settings import PPOSettings
from agents.ppo_lagrangian.training import make_model
from wm_env.env import CovertWatermarkEnv
from wm_env.optimum import percent_of_optimum

try:
    import optuna
except ModuleNotFoundError as missing:
    raise SystemExit(f"error: this example needs Optuna ({missing}): pip install optuna") from None

ROLLOUTS = 100
SHIPPED = {
    name: getattr(PPOSettings(), name) for name in ("learning_rate", "epochs", "dual_step", "dual_gain", "target_kl")
}


def worth(trial):
    """Train with the constants of a trial; percent of the optimum."""
    constants = PPOSettings(
        learning_rate=trial.suggest_float("learning_rate", 5e-4, 5e-2, log=True),
        epochs=trial.suggest_int("epochs", 1, 10),
        dual_step=trial.suggest_float("dual_step", 0.05, 5.0, log=True),
        dual_gain=trial.suggest_float("dual_gain", 0.0, 50.0),
        target_kl=trial.suggest_float("target_kl", 2e-3, 0.2, log=True),
    )
    env = CovertWatermarkEnv()
    model = make_model({}, dataclasses.replace(preset("ppo")[1], constants=constants))
    model.set_logger(configure(None, []))
    evaluation = LawEvaluation(env, every=10)
    model.learn(ROLLOUTS * model.n_steps * model.n_envs, evaluation)
    evaluation.restore_best()
    found = evaluate_deterministic(model, env)
    percent = percent_of_optimum(found.rate, env.problem.rate_bound) if found.feasible else 0.0
    print(f"trial {trial.number}: rate {found.rate:.4f} bits, cost {found.cost:.4f}, {percent:.2f} % of the optimum")
    return percent


def main(trials):
    # The networks are small: a second thread costs more than it gains.
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial(SHIPPED)
    study.optimize(worth, n_trials=trials)
    print(f"best: trial {study.best_trial.number}, {study.best_value:.2f} % of the optimum, by")
    print(", ".join(f"{name}={value:.3g}" for name, value in study.best_params.items()))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
