"""The primal-dual learner in the table of agents: its constants and presets."""

import dataclasses
from typing import TYPE_CHECKING

from agents.common.agent import Agent
from agents.common.settings import TASKS, PolicySettings, RunSettings
from agents.primal_dual.settings import LearnerSettings

if TYPE_CHECKING:
    from agents.common.learner import Learner
    from wm_env.criteria.objectives import Objective
    from wm_env.problem import Problem


def _learner(problem: "Problem", objective: "Objective", settings: RunSettings) -> "Learner":
    from agents.primal_dual.learner import PrimalDualLearner

    return PrimalDualLearner(problem, objective, settings)


AGENT = Agent(
    learner=_learner,
    constants=LearnerSettings(),
    presets={
        "default": dataclasses.replace(TASKS["default"], constants=LearnerSettings(evaluate_every=50)),
        "paper": dataclasses.replace(TASKS["paper"], constants=LearnerSettings()),
        "coded": dataclasses.replace(
            TASKS["coded"],
            constants=LearnerSettings(
                learning_rate=0.1,
                schedule="linear",
                second_moment="row",
                dual_step=0.1,
                first_multiplier=10.0,
                policy=PolicySettings(embedding=None, leading_spread=0.01, trailing_spread=0.01),
            ),
        ),
        "smoke": dataclasses.replace(TASKS["smoke"], constants=LearnerSettings(evaluate_every=10)),
    },
    lacks=frozenset({"dither_bits", "budget"}),
)
