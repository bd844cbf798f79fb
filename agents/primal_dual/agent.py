"""The primal-dual learner in the table of agents: its constants and presets."""

import dataclasses

from agents.common.agent import Agent, learner_in
from agents.common.settings import TASKS, PolicySettings
from agents.primal_dual.settings import LearnerSettings

AGENT = Agent(
    learner=learner_in("agents.primal_dual.learner", "PrimalDualLearner"),
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
