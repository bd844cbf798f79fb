"""Find the laws P(u|s) and W(x|u,s) that hide the most bits within a total-variation budget.

Examples:
  python train.py                                        the shipped tree, minutes on two cores
  python train.py --preset paper --run runs/paper        the set-up of the paper
  python train.py --objective coded                      uniform message bits, at the limit of one block
  python train.py --agent planner --run runs/planner     the exact optimum
  python train.py --agent planner --objective coded --message-bits auto --dither-bits 4 --labels 256 --epsilon 0
                                                         bits without error at total variation 0
  python train.py --preset ppo --split train             constrained PPO, and its law for prompts that it never saw
  python train.py --run runs/paper --resume              go on after an interruption
"""

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from wm_env.common.command import exit_code, quitting_on_interrupt, run_command, say, tell

with quitting_on_interrupt(__name__):
    import tyro

    from agents.common.settings import RunSettings
    from agents.common.table import AGENTS, agent_of, preset, preset_names
    from wm_env.common.arguments import parse
    from wm_env.common.help import paragraph_help
    from wm_env.criteria.table import COSTS, OBJECTIVES


@paragraph_help
@dataclasses.dataclass(frozen=True)
class Options:
    """Options of train.py beside the settings of the run."""

    preset: str | None = None
    """Defaults that go together: paper = M 256, T 6000, as in the paper; default = M 64, T 2000; coded = the coded
    objective, M 8 for 3 bits, T 3000; small = 4 prompts, Q 8, M 8; ppo = constrained PPO on the small task; smoke =
    seconds, too short for the budget. If not given, the agent's own: ppo for PPO, coded for the primal-dual learner
    with --objective coded, default for all others."""
    run: Path | None = None
    """Run folder for law, metrics, TensorBoard events and checkpoint; if not given, runs/AGENT-PRESET, with -coded and
    -auto for --objective coded and --message-bits auto, then the same with -2 and so on; --resume takes the last."""
    resume: bool = False
    """Go on with the run in the run folder from its checkpoint, with the settings it was started with."""
    track: Literal["wandb", "mlflow"] | None = None
    """Send the numbers of TensorBoard to Weights & Biases or MLflow too (pip install wandb, or mlflow)."""


_TABLES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "agent": ("Who chooses the laws", AGENTS),
    "objective": ("Reward r of a block, in bits", OBJECTIVES),
    "cost": ("Cost c of a block", COSTS),
}
"""Settings that are names in a table, with the beginning of their help."""

_NAMING = ("objective", "cost", "message_bits")
"""Settings that the name of a run folder depends on, beside agent and preset."""


def main() -> int:
    """Parse, train, report; returns the exit code: 0 done, 1 failed, 2 bad input, 128 + n stopped by signal n."""
    with quitting_on_interrupt(__name__):
        early = _early()
        name, default = preset(early.preset, early.agent, early.objective)
        if not early.resume:
            options, settings = _parse(default)
        # Torch is imported only now: the help has been shown and wrong options have been refused.
        from agents.common.evaluation import law_summary
        from agents.common.interrupts import InterruptedRunError
        from agents.common.runs import last_folder, next_folder, run_name
        from agents.common.tracking import check_tracker
        from agents.training.run import read_settings, resume_run, start_run, train

    def work() -> int:
        if early.resume:
            named = {field: value for field in _NAMING if (value := getattr(early, field)) is not None}
            folder = early.run or last_folder(Path("runs") / run_name(dataclasses.replace(default, **named), name))
            stored = read_settings(folder)
            given, changed = _parse(stored)
            check_tracker(given.track)
            run = resume_run(folder, stored, changed)
        else:
            given = options
            check_tracker(given.track)
            folder = options.run or next_folder(Path("runs") / run_name(settings, name))
            run = start_run(folder, settings, sys.argv)
        try:
            evaluation = train(run, given.track)
        except InterruptedRunError as stop:
            tell(str(stop))
            return 128 + stop.signal_number
        say(f"{run.folder.law}: {law_summary(evaluation, run.problem, run.objective)}")
        return 0

    return exit_code(work)


def _early() -> argparse.Namespace:
    """What decides which options there are and what they default to, in --help too; wrong names are left for later."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--preset", "--agent", "--objective", "--cost", "--message-bits"):
        early.add_argument(option, nargs="?")
    early.add_argument("--run", nargs="?", type=Path)
    early.add_argument("--resume", action="store_true")
    named = early.parse_known_args()[0]
    named.preset = named.preset if named.preset in preset_names() else None
    named.agent = named.agent if named.agent in AGENTS else None
    return named


def _parse(default: RunSettings) -> tuple[Options, RunSettings]:
    """The command line; what it leaves out comes from `default`. Only what its agent makes use of is an option."""
    agent = agent_of(default.agent)
    fields: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(RunSettings):
        kind: Any = field.type
        if field.name in agent.lacks:
            kind = tyro.conf.Suppress[tyro.conf.Fixed[kind]]  # type: ignore[misc]
        if field.name in _TABLES:
            about, table = _TABLES[field.name]
            about += ": " + "; ".join(f"{name} = {entry.about}" for name, entry in table.items()) + "."
            kind = Annotated[Literal[tuple(table)], tyro.conf.arg(help=about)]
        if field.name == "constants":
            kind = Annotated[type(default.constants), tyro.conf.arg(name=default.constants.section)]
            if not default.constants.section:
                kind = tyro.conf.Suppress[tyro.conf.Fixed[kind]]  # type: ignore[misc]
        fields.append((field.name, kind, dataclasses.field(default=getattr(default, field.name))))
    settings_kind = dataclasses.make_dataclass("Settings", fields, frozen=True)
    settings_kind.__doc__ = RunSettings.__doc__
    names = Literal[preset_names()]  # type: ignore[valid-type]
    options_kind = dataclasses.make_dataclass(
        "AllOptions",
        [
            ("settings", Annotated[settings_kind, tyro.conf.arg(name="")], dataclasses.field(default=settings_kind())),
            ("preset", names | None, None),
            ("run", Path | None, None),
            ("resume", bool, False),
            ("track", Literal["wandb", "mlflow"] | None, None),
        ],
        frozen=True,
    )
    options_kind.__doc__ = Options.__doc__
    given: Any = parse(options_kind, description=__doc__, config=(tyro.conf.FlagCreatePairsOff,))
    settings = RunSettings(**{name: getattr(given.settings, name) for name, *_ in fields})
    return Options(given.preset, given.run, given.resume, given.track), settings


if __name__ == "__main__":
    run_command(main)
