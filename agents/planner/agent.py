"""The planner in the table of agents."""

from dataclasses import dataclass
from typing import ClassVar

from agents.common.agent import Agent, learner_in
from agents.common.settings import AgentSettings


@dataclass(frozen=True)
class PlannerSettings(AgentSettings):
    """The planner has no constants."""

    chooses_lengths: ClassVar[bool] = True


AGENT = Agent(
    learner=learner_in("agents.planner.learner", "Planner"),
    constants=PlannerSettings(),
    lacks=frozenset({"iterations", "seed", "device", "gradient"}),
)
