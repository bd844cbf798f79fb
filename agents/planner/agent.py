"""The planner in the table of agents."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agents.common.agent import Agent
from agents.common.settings import AgentSettings, RunSettings

if TYPE_CHECKING:
    from agents.common.learner import Learner
    from wm_env.criteria.objectives import Objective
    from wm_env.problem import Problem


@dataclass(frozen=True)
class PlannerSettings(AgentSettings):
    """The planner has no constants."""

    chooses_lengths: ClassVar[bool] = True


def _learner(problem: "Problem", objective: "Objective", settings: RunSettings) -> "Learner":
    from agents.planner.learner import Planner

    return Planner(problem, objective, settings)


AGENT = Agent(
    learner=_learner, constants=PlannerSettings(), lacks=frozenset({"iterations", "seed", "device", "gradient"})
)
