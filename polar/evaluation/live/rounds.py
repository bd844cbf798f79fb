"""One round of a live evaluation: texts of all four kinds behind one prompt, sent, received and weighed."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from polar.evaluation.live.reading import (
    DecodingTables,
    Received,
    decoding_tables,
    edited_tables,
    log2_law,
    read_edited_text,
    read_keyed_text,
    read_run_text,
)
from polar.evaluation.live.session import Session
from polar.evaluation.live.texts import Continuation, KeyedPools, TreePaths, cover_paths, keyed_text, run_paths
from wm_env.common.arrays import Ints


@dataclass(frozen=True)
class Round:
    """Texts of all four kinds behind one prompt, and what was received of the watermarked two.

    Attributes:
        run, keyed, model, cover: the texts.
        run_received, keyed_received: what the receivers read.
        log2_marked: log2 of the law of the run's texts at the texts `run`, `model` and `cover`.
        log2_cover: log2 of the truncated model's law at `run` and `cover`.
    """

    run: Continuation
    keyed: Continuation
    model: Continuation
    cover: Continuation
    run_received: Received
    keyed_received: Received
    log2_marked: dict[str, float]
    log2_cover: dict[str, float]


def play_rounds(session: Session) -> Iterator[Round]:
    """Write and read `texts` rounds, one after the other.

    Raises:
        ValueError: the model draws hardly anything that is text.
    """
    tree, settings = session.tree, session.settings
    rng = np.random.default_rng([settings.seed, session.longest])
    prompts = rng.choice(len(tree.prior), size=settings.texts, p=tree.prior)
    marked = run_paths(tree, session.law, session.codes, prompts, rng)
    plain = cover_paths(tree, prompts, rng)
    tables, edited = decoding_tables(session), edited_tables(session)
    for number, prompt in enumerate(prompts.tolist()):
        yield _round(session, number, prompt, marked, plain, tables, edited)


def _round(
    session: Session,
    number: int,
    prompt: int,
    marked: TreePaths,
    plain: TreePaths,
    tables: DecodingTables,
    edited: dict[str, list[Ints]],
) -> Round:
    tree, writer, context = session.tree, session.writer, session.contexts[prompt]
    rng = np.random.default_rng([session.settings.seed, session.longest, number])
    run = writer.along_path(tree, "run", marked, number, context)
    cover = writer.along_path(tree, "cover", plain, number, context)
    model = writer.plain(prompt, context, rng)
    key = f"live text {session.settings.seed} {number}".encode()
    pools = KeyedPools(writer, 1 << session.longest, key)
    keyed = keyed_text(writer, pools, prompt, context, rng)
    covers = [block.cover for block in tree.blocks]
    received = read_run_text(session, run.text, marked.key[number], tables)
    edits = np.random.default_rng([session.settings.seed, session.longest, number, 1])
    after = read_edited_text(session, marked, number, edited, edits)
    lengths = dict.fromkeys(after, run.message_bits)
    received = dataclasses.replace(
        received, messages=received.messages | after, message_bits=received.message_bits | lengths
    )
    return Round(
        run=run,
        keyed=keyed,
        model=model,
        cover=cover,
        run_received=received,
        keyed_received=read_keyed_text(session, keyed, context, pools),
        log2_marked={t.kind: log2_law(tree, session.coded, prompt, t.text) for t in (run, model, cover)},
        log2_cover={t.kind: log2_law(tree, covers, prompt, t.text) for t in (run, cover)},
    )
