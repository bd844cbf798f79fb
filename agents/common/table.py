"""The table of agents: a new agent is a module and a line here."""

import dataclasses
from importlib import import_module
from typing import Any, NamedTuple

from agents.common.agent import Agent
from agents.common.settings import TASKS, RunSettings
from wm_env.common.checks import check_known
from wm_env.common.json_values import read_as


class Row(NamedTuple):
    """An agent of the table.

    Attributes:
        module: holds its `agents.common.agent.Agent` under the name AGENT; imported only for the agent that is chosen.
        about: the agent in a few words.
        presets: names of the presets that only this agent has.
        exact: the law is computed, not learned: there are no iterations, and nothing to resume.
    """

    module: str
    about: str
    presets: tuple[str, ...] = ()
    exact: bool = False


AGENTS = {
    "primal-dual": Row("agents.primal_dual.agent", "the paper's Algorithm 1"),
    "ppo": Row("agents.ppo_lagrangian.agent", "constrained PPO", ("ppo",)),
    "planner": Row("agents.planner.agent", "the exact optimum in closed form", exact=True),
}

_ALWAYS_WRITTEN = ("learner", "ppo")
"""Sections that version 0.1.0 wrote for every agent."""


def agent_of(name: str) -> Agent:
    """The agent called `name`.

    Raises:
        ValueError: there is none.
    """
    check_known("agent", name, AGENTS)
    found: Agent = import_module(AGENTS[name].module).AGENT
    return found


def preset_names() -> tuple[str, ...]:
    """The names of all presets: of all tasks, and those of single agents."""
    return (*TASKS, *(name for row in AGENTS.values() for name in row.presets))


def preset(name: str | None = None, agent: str | None = None, objective: str | None = None) -> tuple[str, RunSettings]:
    """The name and the settings of a preset.

    Args:
        name: of the preset; None for the one that the agent implies for the objective.
        agent: its name; None for the agent that the preset belongs to, or else the first of the table. An agent without
            constants for the preset has its usual ones.
        objective: its name; None for the usual one.

    Raises:
        ValueError: no such agent or preset.
    """
    if name is not None:
        check_known("preset", name, preset_names())
    owner = next((owner for owner, row in AGENTS.items() if name in row.presets), next(iter(AGENTS)))
    chosen = owner if agent is None else agent
    own = agent_of(chosen).presets
    if name is None:
        usual = next(iter(own), "default")
        name = next((kind for kind, settings in own.items() if settings.objective == objective), usual)
    found = own.get(name) or agent_of(owner).presets.get(name) or TASKS[name]
    constants = own[name].constants if name in own else agent_of(chosen).constants
    return name, dataclasses.replace(found, agent=chosen, constants=constants)


def run_settings_from_json(value: object, source: object = "settings") -> RunSettings:
    """What `RunSettings.to_json` wrote; settings that came later than the file have their defaults.

    Args:
        value: of JSON's types.
        source: what it was read from, for errors.

    Raises:
        ValueError: a setting is unknown, of another type or out of range, or the agent is.
    """
    values = dict(read_as(dict[str, Any], value, source))
    usual = RunSettings().agent
    try:
        agent = agent_of(read_as(str, values.get("agent", usual), source, "agent"))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    own = values.pop(agent.constants.section, {})
    for section in _ALWAYS_WRITTEN:
        values.pop(section, None)
    constants = read_as(type(agent.constants), own, source, agent.constants.section)
    settings = dataclasses.replace(read_as(RunSettings, values, source), constants=constants)
    try:
        settings.check()
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    return settings
