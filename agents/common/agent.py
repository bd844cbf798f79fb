"""A row of the table of agents. Free of torch, as the settings are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from agents.common.settings import AgentSettings, RunSettings

if TYPE_CHECKING:
    from agents.common.learner import Learner
    from wm_env.criteria.objectives import Objective
    from wm_env.problem import Problem


@dataclass(frozen=True)
class Agent:
    """What the module of an agent says of it, under the name AGENT.

    Attributes:
        learner: makes the learner of a problem, an objective and settings; imports its libraries itself, so that the
            help of a command line does without them.
        constants: of the agent, at their defaults.
        presets: settings by name; the first preset is the one that the agent implies.
        lacks: settings that the agent has no use for.
    """

    learner: Callable[["Problem", "Objective", RunSettings], "Learner"]
    constants: AgentSettings = field(default_factory=AgentSettings)
    presets: Mapping[str, RunSettings] = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()


def learner_in(module: str, name: str) -> Callable[["Problem", "Objective", RunSettings], "Learner"]:
    """What makes learners of the class `name`, and imports the class's module only then."""

    def learner(problem: "Problem", objective: "Objective", settings: RunSettings) -> "Learner":
        made: Learner = getattr(import_module(module), name)(problem, objective, settings)
        return made

    return learner
