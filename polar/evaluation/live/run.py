"""A live evaluation from end to end: load, tell the cost, write and read texts, print, write files."""

import dataclasses
from pathlib import Path
from typing import Any

from tqdm import tqdm

from polar.evaluation.live.measures import measure
from polar.evaluation.live.report import (
    detection_table,
    error_table,
    first_samples,
    legend,
    likelihood_table,
    results,
    save_samples,
    save_transmissions,
)
from polar.evaluation.live.rounds import Round, play
from polar.evaluation.live.session import LiveRequest, Session, estimate, open_session
from polar.evaluation.report import stored_results
from polar.evaluation.run import lengths_follow_state, load_run, over_budget, with_threshold_sets
from polar.text.progress import progress
from wm_env.common.files import check_writable, write_json


def evaluate_live(run: Path, out: Path, request: LiveRequest) -> bool:
    """Evaluate the law of a run folder with its model.

    Prints tables and a text of each kind; writes live.json to `out`, and transmissions.jsonl and TensorBoard texts to
    `run`. Ctrl-C ends the texts, and the figures are of those that are finished.

    Returns:
        Whether all texts were finished.

    Raises:
        FileNotFoundError: no such run, or no tree or law in it.
        ValueError: a damaged file, another model than the tree's, or a request that cannot be met.
        OSError: a folder cannot be written, or the results.json in `out` cannot be read.
        KeyboardInterrupt: before two texts were finished.
    """
    tree, law = load_run(run)
    if request.message_bits is None and lengths_follow_state(run):
        request = dataclasses.replace(request, message_bits="auto")
    if request.thresholds is not None:
        law = with_threshold_sets(law, *request.thresholds)
    excess = over_budget(run, law)
    session = open_session(tree, law, request, str(run))
    check_writable(out, "choose another --out")
    stored_results(out / "results.json")  # what cannot be read is told before the texts, not after
    check_writable(run, "transmissions.jsonl and TensorBoard's events go there")
    tell_cost(session)
    rounds = play_until_interrupted(session)
    live = measure(session, rounds)
    found = results(session, rounds, live)
    write_json(out / "live.json", found)
    save_transmissions(session, rounds, run / "transmissions.jsonl")
    save_samples(session, rounds, run)
    add_to_results(out / "results.json", found)
    if excess is not None:
        print(f"\nlaw {excess}")
    print(f"\n{legend(session)}")
    print(
        f"\nA text of each kind, its blocks in brackets with the bits they carry\n{first_samples(session, rounds[0])}"
    )
    print(f"\nMessages read from the bytes of {len(rounds)} texts of each kind\n{error_table(live)}")
    print(f"\nLikelihood under the untruncated model, chain rule\n{likelihood_table(live)}")
    print(f"\nObservers without the key, one text at a time, prompt known\n{detection_table(live)}")
    print(
        f"\nOf the model's own {len(rounds)} texts the tree contains {live.plain_in_tree}; {live.redrawn} blocks that "
        "were not text were drawn again."
    )
    print(f"\n{out / 'live.json'}, {run / 'transmissions.jsonl'}, TensorBoard texts live/* in {run}")
    return len(rounds) == request.texts


def add_to_results(path: Path, found: dict[str, Any]) -> None:
    """Put the figures into the results.json of an exact evaluation of the same law, where there is one.

    Raises:
        OSError: the file cannot be read or written.
        ValueError: it is damaged.
    """
    content = stored_results(path)
    if content is not None and content.get("law") == found["law"]:
        write_json(path, {**content, "live": found})


def tell_cost(session: Session) -> None:
    """Print what will be done and how long it will take."""
    cost, meta = estimate(session), session.tree.meta
    print(
        f"4 times {session.request.texts} texts of {session.writer.blocks} blocks of {meta.block_length} tokens, "
        f"{session.mean_bits:.3g} bits per block, {meta.model} at temperature {meta.temperature:g}: "
        f"about {cost.canvases} canvases, {tqdm.format_interval(round(cost.seconds))} at the speed measured now",
        flush=True,
    )


def play_until_interrupted(session: Session) -> list[Round]:
    """The rounds that were finished: all, or those before Ctrl-C.

    Raises:
        KeyboardInterrupt: fewer than two were finished.
    """
    rounds: list[Round] = []
    try:
        with progress() as report:
            for played in play(session):
                rounds.append(played)
                report(len(rounds), session.request.texts, "texts")
    except KeyboardInterrupt:
        if len(rounds) < 2:
            raise
        print(f"interrupted: the figures are of {len(rounds)} of {session.request.texts} texts", flush=True)
    return rounds
