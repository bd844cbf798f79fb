"""Evaluate a trained law as a code: error rates, total variation, limits, tables and figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from wm_env.common.command import INTERRUPTED, quitting_on_interrupt, run_command, silence_output, tell, tell_failure

with quitting_on_interrupt(__name__):
    import tyro

    from wm_env.common.help import paragraph_help

if TYPE_CHECKING:
    from polar.code.adaptive import AdaptiveSettings


_LIVE_ONLY = ("texts", "model", "device")


@paragraph_help
@dataclass(frozen=True)
class Options:
    """Evaluate the law of a run: bit errors, block errors and total variation, exact and measured.

    Writes results.json, ber.png and tv.png. The defaults are the paper's two figures.
    """

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Run folder with tree.safetensors and law.safetensors; the newest under runs/ if left out."""
    message_bits: tuple[int | Literal["auto"], ...] = ()
    """l, message bits per block; 1 to 5 if left out, or as many as the law was made for. "auto": also, for every state,
    the most bits that meet --auto-error and --auto-tv; the default for a law that was planned with it. --live takes one
    of them, 3 if left out."""
    keys: tuple[int | Literal["paper"], ...] = (1, 2, 4, 8, 16, 32, 64)
    """K, numbers of keys per block, powers of two; "paper" is 2^ceil(I(U;X|S))."""
    decoder: tuple[Literal["sc", "ml", "map"], ...] = ("sc", "ml", "map")
    """sc: successive, the paper's rule; ml: argmax P(X|V); map: the posterior of the message."""
    knowledge: tuple[Literal["marginal", "path"], ...] = ("marginal", "path")
    """What the decoder knows of the state: its law Z (the paper), or also the blocks received before."""
    surplus: tuple[Literal["frozen", "dither"], ...] = ("frozen", "dither")
    """Use of key bits beyond the message: fix further positions of V (the paper), or shift the encoder's draw."""
    thresholds: tuple[float, float] | None = None
    """T_epsilon T_delta in bits: take M* by the paper's thresholds on the entropies instead of by length."""
    auto_error: float = 0.0
    """Most block error of a state with "auto", as seen by a decoder that knows the state; 0 is exact."""
    auto_tv: float = 0.0
    """Most total variation that "auto" may add in a state to what the law itself spends there."""
    auto_dither: int | None = None
    """Bits of a block's key beyond the pad that both ends know with "auto", 0 to 8; those that the law was planned with
    if left out."""
    transmissions: int = 1000
    """Monte Carlo transmissions (texts) per operating point; 0 for none."""
    seed: int = 0
    """Seed of the Monte Carlo, and of the texts of --live."""
    live: bool = False
    """Instead of the exact evaluation: write texts with the language model, read them back from their bytes, and let an
    observer look at them. Writes live.json, and transmissions.jsonl and TensorBoard texts into the run folder."""
    texts: int = 40
    """With --live: texts of each kind."""
    model: str = "mini"
    """With --live: the model of the run's tree; mini, a folder, or a hub id OWNER/NAME."""
    device: str = "cpu"
    """With --live: where the model runs, such as cpu or cuda:0."""
    out: Path | None = None
    """Output folder; evaluation/ in the run folder if left out."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse (the command line by default) and evaluate.

    Returns the exit code: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    with quitting_on_interrupt(__name__):
        options = tyro.cli(Options, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
        # Imported only now, so that --help does not wait for torch.
        from polar.code.adaptive import AdaptiveSettings
        from polar.evaluation.run import Request, evaluate_run, newest_run, planned_dither

    try:
        check_mode(options)
        run = options.run if options.run is not None else newest_run(Path("runs"))
        out = options.out if options.out is not None else run / "evaluation"
        adaptive = AdaptiveSettings(
            block_error=options.auto_error,
            extra_variation=options.auto_tv,
            dither_bits=planned_dither(run) if options.auto_dither is None else options.auto_dither,
            transmissions=options.transmissions,
            seed=options.seed,
        )
        if options.live:
            return live(options, run, out, adaptive)
        request = Request(
            message_bits=options.message_bits,
            keys=options.keys,
            decoders=options.decoder,
            knowledge=options.knowledge,
            surplus=options.surplus,
            thresholds=options.thresholds,
            adaptive=adaptive,
            transmissions=options.transmissions,
            seed=options.seed,
        )
        evaluate_run(run, out, request)
    except BrokenPipeError:
        silence_output()
    except (ValueError, OSError) as error:
        return tell_failure(error)
    except KeyboardInterrupt:
        tell("interrupted")
        return INTERRUPTED
    return 0


def check_mode(options: Options) -> None:
    """Refuse options that the chosen evaluation would ignore.

    Raises:
        ValueError: one that only the other one has.
    """
    ignored, when = (("keys", "surplus", "transmissions"), "without") if options.live else (_LIVE_ONLY, "with")
    for name in ignored:
        if getattr(options, name) != getattr(Options, name):
            raise ValueError(f"--{name} only counts {when} --live: leave one of them out")


def live(options: Options, run: Path, out: Path, adaptive: "AdaptiveSettings") -> int:
    """Evaluate with the language model; returns the exit code: 0 done, 130 interrupted."""
    with quitting_on_interrupt(__name__):
        from polar.evaluation.live.run import evaluate_live
        from polar.evaluation.live.session import LiveRequest

    if len(options.message_bits) > 1:
        raise ValueError('--live takes one number of --message-bits, or "auto"')
    request = LiveRequest(
        texts=options.texts,
        model=options.model,
        device=options.device,
        message_bits=options.message_bits[0] if options.message_bits else None,
        adaptive=adaptive,
        thresholds=options.thresholds,
        decoders=options.decoder,
        knowledge=options.knowledge,
        seed=options.seed,
    )
    return 0 if evaluate_live(run, out, request) else INTERRUPTED


if __name__ == "__main__":
    run_command(main)
