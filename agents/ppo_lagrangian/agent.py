"""Constrained PPO in the table of agents: its constants and presets."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agents.common.agent import Agent
from agents.common.settings import TASKS, AgentSettings, RunSettings, check_numbers, check_positive
from wm_env.common.help import paragraph_help

if TYPE_CHECKING:
    from agents.common.learner import Learner
    from wm_env.objectives import Objective
    from wm_env.problem import Problem

MOST_COPIES = 4096
"""Most copies of an environment, all of whose laws of a rollout are in memory at once."""


@paragraph_help
@dataclass(frozen=True)
class PPOSettings(AgentSettings):
    """The constants of constrained PPO that matter; the others are the defaults of `PPOLagrangian`."""

    section: ClassVar[str] = "ppo"
    copies: int = 8
    """Copies of the environment; a rollout is one episode of each."""
    learning_rate: float = 0.02
    """Step of Adam at the start; falls linearly to 0 over the run."""
    dual_step: float = 0.2
    """eta_beta, the step of the multiplier, bits per unit of cost and unit of violation."""
    target_kl: float = 0.1
    """KL divergence by row that ends the epochs of a rollout, nats."""
    evaluate_every: int = 25
    """Rollouts between two exact evaluations, each with a row of metrics and a checkpoint."""

    def check(self) -> None:
        """Check all of them.

        Raises:
            ValueError: the first one that is out of range.
        """
        check_numbers("above 0", lambda value: value > 0, evaluate_every=self.evaluate_every)
        check_positive(learning_rate=self.learning_rate, dual_step=self.dual_step, target_kl=self.target_kl)
        if not 0 < self.copies <= MOST_COPIES:
            raise ValueError(f"copies={self.copies}: a number from 1 to {MOST_COPIES} is needed")


def _learner(problem: "Problem", objective: "Objective", settings: RunSettings) -> "Learner":
    from agents.ppo_lagrangian.training import PPOLearner

    return PPOLearner(problem, objective, settings)


AGENT = Agent(
    learner=_learner,
    constants=PPOSettings(),
    presets={"ppo": dataclasses.replace(TASKS["small"], iterations=600)},
    lacks=frozenset({"gradient", "dither_bits"}),
)
