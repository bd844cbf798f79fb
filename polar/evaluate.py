"""Evaluate a trained law as a code: error rates, total variation, limits, tables and figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from wm_env.common.command import INTERRUPTED, exit_code, quitting_on_interrupt, run_command

with quitting_on_interrupt(__name__):
    import tyro

    from polar.evaluation.settings import EvaluationSettings
    from wm_env.common.arguments import parse
    from wm_env.common.help import paragraph_help

_EXACT_ONLY = ("keys", "surplus", "transmissions")
_LIVE_ONLY = ("texts", "model", "device")


@paragraph_help
@dataclass(frozen=True)
class Options:
    """Evaluate the law of a run: bit errors, block errors and total variation, exact and measured.

    Writes results.json and the figures ber and tv. The defaults are the paper's two figures.
    """

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Run folder with tree.safetensors and law.safetensors; the newest under runs/ if left out."""
    settings: Annotated[EvaluationSettings, tyro.conf.arg(name="")] = EvaluationSettings()  # noqa: RUF009  (frozen)
    """What to evaluate."""
    live: bool = False
    """Instead of the exact evaluation: write texts with the language model, read them back from their bytes, and let an
    observer look at them. Writes live.json, and transmissions.jsonl and TensorBoard texts into the run folder."""
    figures: tuple[Literal["png", "pdf", "svg"], ...] = ("png",)
    """Formats of the two figures."""
    out: Path | None = None
    """Output folder; evaluation/ in the run folder if left out."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse (the command line by default) and evaluate.

    Returns the exit code: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """

    def work() -> int:
        with quitting_on_interrupt(__name__):
            options = parse(Options, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
            check_mode(options)
            # Imported only now, so that --help does not wait for torch.
            from polar.evaluation.live.run import evaluate_live
            from polar.evaluation.run import evaluate_run
            from wm_env.runs import newest_run

        run = options.run if options.run is not None else newest_run(Path("runs"))
        if options.live:
            return 0 if evaluate_live(run, options.out, options.settings) else INTERRUPTED
        evaluate_run(run, options.out, options.settings, options.figures)
        return 0

    return exit_code(work)


def check_mode(options: Options) -> None:
    """Refuse options that the chosen evaluation would ignore.

    Raises:
        ValueError: one that only the other one has.
    """
    ignored, when = (_EXACT_ONLY, "without") if options.live else (_LIVE_ONLY, "with")
    for name in ignored:
        if getattr(options.settings, name) != getattr(EvaluationSettings, name):
            raise ValueError(f"--{name} only counts {when} --live: leave one of them out")
    if options.live and options.figures != Options.figures:
        raise ValueError("--figures only counts without --live: leave one of them out")


if __name__ == "__main__":
    run_command(main)
