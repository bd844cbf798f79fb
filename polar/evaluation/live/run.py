"""A live evaluation from end to end: load, tell the cost, write and read texts, print, write files."""

from pathlib import Path
from typing import Any

from polar.evaluation.live.measures import measure_rounds
from polar.evaluation.live.report import (
    detection_table,
    first_samples,
    legend,
    likelihood_table,
    live_content,
    save_samples,
    save_transmissions,
    text_error_table,
)
from polar.evaluation.live.rounds import Round, play_rounds
from polar.evaluation.live.session import Session, estimate_texts, open_session
from polar.evaluation.report import RESULTS_MARK, stored_results
from polar.evaluation.run import OTHER_FOLDER, over_budget
from polar.evaluation.settings import EvaluationSettings
from wm_env.common.command import say
from wm_env.common.files import check_output, check_writable, write_json
from wm_env.common.foreign.visible import visible
from wm_env.common.progress import ProgressBar, duration
from wm_env.runs import check_there, load_run


def evaluate_live(path: Path, out: Path | None, settings: EvaluationSettings) -> bool:
    """Evaluate the law of a run folder with its model; True if all texts were finished.

    Prints tables and a text of each kind; writes live.json to `out`, by default `evaluation` in the run folder, and
    transmissions.jsonl and TensorBoard texts to the run folder. Ctrl-C ends the texts, and the figures are of those
    that are finished.

    Raises:
        FileNotFoundError: no such run, or no tree or law in it.
        ValueError: a damaged file, another model than the tree's, or settings that cannot be met.
        OSError: a folder cannot be written, or the results.json in `out` cannot be read.
        KeyboardInterrupt: before two texts were finished.
    """
    run = load_run(path)
    out = run.folder.evaluation if out is None else out
    session = open_session(run, settings)
    excess = over_budget(run.task, session.tree, session.law)
    transmissions = run.folder.transmissions
    check_output(out / "live.json", OTHER_FOLDER, "draws_of_keyed_pools")
    check_output(out / "results.json", OTHER_FOLDER, RESULTS_MARK)
    stored_results(out / "results.json")  # what cannot be read is told before the texts, not after
    check_output(transmissions, "the texts of a live evaluation go there, move it", "surprise_bits_at_temperature_1")
    check_writable(path, "TensorBoard's events go there")
    tell_texts(session)
    rounds = play_until_interrupted(session)
    live = measure_rounds(session, rounds)
    found = live_content(session, rounds, live)
    check_there(run)
    write_json(out / "live.json", found)
    save_transmissions(session, rounds, transmissions)
    save_samples(session, rounds, path)
    add_to_results(out / "results.json", found)
    if excess is not None:
        say(f"\nlaw {excess}")
    say(f"\n{legend(session)}")
    say(f"\nA text of each kind, its blocks in brackets with the bits they carry\n{first_samples(session, rounds[0])}")
    say(f"\nMessages read from the bytes of {len(rounds)} texts of each kind\n{text_error_table(live)}")
    say(f"\nLikelihood under the untruncated model, chain rule\n{likelihood_table(live)}")
    say(f"\nObservers without the key, one text at a time, prompt known\n{detection_table(live)}")
    say(
        f"\nOf the model's own {len(rounds)} texts the tree contains {live.plain_in_tree}; {live.redrawn} blocks that "
        "were not text were drawn again."
    )
    places = [visible(str(place)) for place in (out / "live.json", transmissions, path)]
    say("\n{}, {}, TensorBoard texts live/* in {}".format(*places))
    return len(rounds) == settings.texts


def add_to_results(path: Path, found: dict[str, Any]) -> None:
    """Put the figures into the results.json of an exact evaluation of the same law, where there is one.

    Raises:
        OSError: the file cannot be read or written.
        ValueError: it is damaged.
    """
    content = stored_results(path)
    if content is not None and content.get("law") == found["law"]:
        write_json(path, {**content, "live": found})


def tell_texts(session: Session) -> None:
    """Print what will be done and how long it will take."""
    cost, meta = estimate_texts(session), session.tree.meta
    say(
        f"4 times {session.settings.texts} texts of {session.writer.blocks} blocks of {meta.block_length} tokens, "
        f"{session.mean_bits:.3g} bits per block, {visible(meta.model)} at temperature {meta.temperature:g}: "
        f"about {cost.canvases} canvases, {duration(cost.seconds)} at the speed measured now"
    )


def play_until_interrupted(session: Session) -> list[Round]:
    """The rounds that were finished: all, or those before Ctrl-C.

    Raises:
        KeyboardInterrupt: fewer than two were finished.
    """
    rounds: list[Round] = []
    try:
        with ProgressBar(session.settings.texts) as bar:
            for played in play_rounds(session):
                rounds.append(played)
                bar.update(len(rounds), counted="texts")
    except KeyboardInterrupt:
        if len(rounds) < 2:
            raise
        say(f"interrupted: the figures are of {len(rounds)} of {session.settings.texts} texts")
    return rounds
