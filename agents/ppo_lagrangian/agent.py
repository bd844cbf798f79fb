"""Constrained PPO in the table of agents: its constants and presets."""

import dataclasses

from agents.common.agent import Agent, learner_in
from agents.common.settings import TASKS
from agents.ppo_lagrangian.settings import PPOSettings

AGENT = Agent(
    learner=learner_in("agents.ppo_lagrangian.training", "PPOLearner"),
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
