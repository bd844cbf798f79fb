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
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from wm_env.common.command import INTERRUPTED, quitting_on_interrupt, run_command, tell, tell_failure

with quitting_on_interrupt(__name__):
    import tyro

    from agents.common.settings import PRESETS, RunSettings
    from wm_env.common.help import paragraph_help


@paragraph_help
@dataclass(frozen=True)
class Options:
    """Options of train.py."""

    settings: Annotated[RunSettings, tyro.conf.arg(name="")]
    """All that a run depends on."""
    preset: Literal["default", "paper", "coded", "ppo", "smoke"] | None = None
    """Defaults that go together: paper = M 256, T 6000, as in the paper; default = M 64, T 2000; coded = the coded
    objective, M 8 for 3 bits, T 3000; ppo = constrained PPO on the environment's default problem; smoke = seconds, too
    short for the budget. If not given, coded for the primal-dual learner with --objective coded and default for all
    others."""
    run: Path | None = None
    """Run folder for law, metrics, TensorBoard events and checkpoint; if not given, runs/AGENT-PRESET, with -coded and
    -auto for --objective coded and --message-bits auto, then the same with -2 and so on; --resume takes the last."""
    resume: bool = False
    """Go on with the run in the run folder from its checkpoint, with the settings it was started with."""


def main() -> int:
    """Parse, train, report; returns the exit code: 0 done, 1 failed, 2 bad input, 128 + n stopped by signal n."""
    with quitting_on_interrupt(__name__):
        preset = _preset()
        options = _parse(Options(PRESETS[preset]))
        # Torch is imported only now: the help has been shown and wrong options have been refused.
        from agents.common.evaluation import summary
        from agents.common.interrupts import InterruptedRunError
        from agents.common.progress import say
        from agents.common.runs import last_folder, next_folder, run_name
        from agents.training.loop import TrainingFailedError
        from agents.training.run import read_settings, resume_run, start_run, train

    try:
        name = Path("runs") / run_name(options.settings, preset)
        if options.resume:
            folder = options.run or last_folder(name)
            stored = read_settings(folder)
            run = resume_run(folder, stored, _parse(Options(stored)).settings)
        else:
            run = start_run(options.run or next_folder(name), options.settings, sys.argv)
        evaluation = train(run)
        say(f"{run.folder.law}: {summary(evaluation, run.problem, run.objective)}")
    except InterruptedRunError as stop:
        tell(str(stop))
        return 128 + stop.signal_number
    except TrainingFailedError as error:
        tell(f"error: {error}")
        return 1
    except (ValueError, OSError) as error:
        return tell_failure(error)
    except KeyboardInterrupt:
        tell("interrupted")
        return INTERRUPTED
    return 0


def _preset() -> str:
    """The preset that the command line names, or else the one for its agent and objective.

    Read before everything else, since it decides what the other options default to, in --help too.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--preset", "--agent", "--objective"):
        early.add_argument(option, nargs="?")
    named = early.parse_known_args()[0]
    if named.preset in PRESETS:
        return str(named.preset)
    return "coded" if named.objective == "coded" and named.agent in (None, "primal-dual") else "default"


def _parse(default: Options) -> Options:
    """The command line; what it leaves out comes from `default`."""
    return tyro.cli(Options, default=default, description=__doc__, config=(tyro.conf.FlagCreatePairsOff,))


if __name__ == "__main__":
    run_command(main)
