"""Constrained PPO in the table of agents: its constants and presets."""

import dataclasses
from typing import TYPE_CHECKING

from agents.common.agent import Agent
from agents.common.settings import TASKS, RunSettings
from agents.ppo_lagrangian.settings import PPOSettings

if TYPE_CHECKING:
    from agents.common.learner import Learner
    from wm_env.criteria.objectives import Objective
    from wm_env.problem import Problem


def _learner(problem: "Problem", objective: "Objective", settings: RunSettings) -> "Learner":
    from agents.ppo_lagrangian.training import PPOLearner

    return PPOLearner(problem, objective, settings)


AGENT = Agent(
    learner=_learner,
    constants=PPOSettings(),
    presets={
        "ppo": dataclasses.replace(TASKS["small"], iterations=400, constants=PPOSettings()),
        "paper": dataclasses.replace(TASKS["paper"], iterations=250, constants=PPOSettings(copies=4)),
        "coded": dataclasses.replace(
            TASKS["coded"],
            iterations=600,
            constants=PPOSettings(learning_rate=0.02, epochs=5, dual_step=0.2, dual_gain=0.0, target_kl=0.1),
        ),
    },
    lacks=frozenset({"gradient", "dither_bits", "budget"}),
)
