"""Texts of the marks are edited and read, one file of results for each mark, temperature, length and edit."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mark_edits import EDIT_BY_NAME, EDITS, INSIDE_NAME, Edit, documents, edited, human_windows, overlap
from mark_schemes.door import payload_of
from mark_texts import LENGTHS, PARAPHRASED, MarkText, marks, read_texts

from wm_env.common.files import read_json, write_atomically
from wm_env.common.json_values import read_as

ROWS = [
    *((length, EDIT_BY_NAME["none"]) for length in (100, 200, 300)),
    (200, EDIT_BY_NAME["10 % replaced"]),
    *((300, EDIT_BY_NAME[name]) for name in ("20 % replaced", "40 % replaced", "10 % deleted, 10 % added")),
    *((200, edit) for edit in EDITS[1:] if edit.name != "10 % replaced"),
    (300, EDIT_BY_NAME[INSIDE_NAME]),
]
"""(tokens, edit) of each row."""

HUMAN_WINDOWS = 300


@dataclass(frozen=True)
class Row:
    """What came of the texts of a row, one number a text.

    Attributes:
        right: whether the payload came back exactly.
        wrong: whether the receiver reported another one; marks without a check always report one.
        bits: share of the payload's bits that came back, 1/2 where the receiver says that there is none.
        score: of detection.
        seconds: processor time of reading.
        overlap: characters in both the marked part and the receiver's, over characters in either.
        attempts: checks compared.
    """

    right: list[int]
    wrong: list[int]
    bits: list[float]
    score: list[float]
    seconds: list[float]
    overlap: list[float]
    attempts: list[int]


def row_path(folder: Path, name: str, temperature: float, length: int, edit: str) -> Path:
    """Where a row is kept."""
    title = f"{name}-{temperature}-{length}-{edit}"
    return folder / "rows" / f"{''.join(letter if letter.isalnum() else '_' for letter in title)}.json"


def human_path(folder: Path, name: str) -> Path:
    """Where the scores of human text are kept."""
    return row_path(folder, name, 0, 200, "human")


def read_row(path: Path) -> Row:
    """A row that was measured."""
    return read_as(Row, read_json(path), path)


def read_one(edit: Edit, text: MarkText, document: str) -> dict[str, float]:
    """Edit and read one text."""
    received, span = edited(text, edit, document)
    start = time.process_time()
    found = marks()[text.mark].read(text.key, text.nonce, received, text.length)
    seconds = time.process_time() - start
    payload = np.array(payload_of(text.number))
    right = found.bits is not None and bool((found.bits == payload).all())
    return {
        "right": int(right),
        "wrong": int(found.bits is not None and not right),
        "bits": 0.5 if found.bits is None else float((found.bits == payload).mean()),
        "score": found.score,
        "seconds": round(seconds, 5),
        "overlap": overlap(list(found.parts), span) if found.parts else 0.0,
        "attempts": found.attempts,
    }


def score_of(name: str, length: int, number: int, window: str) -> float:
    """The score of a text without a mark."""
    return marks()[name].read(1, number % 100, window, length).score


def measure(
    folder: Path, names: Sequence[str], temperatures: Sequence[float], texts: int, human: str, workers: int
) -> None:
    """Measure the rows that are missing in the folder."""
    with ProcessPoolExecutor(workers) as pool:
        for name in names:
            for temperature in temperatures:
                for length, edit in ROWS:
                    path = row_path(folder, name, temperature, length, edit.name)
                    _kept(path, partial(_row, pool, folder, name, temperature, length, edit, texts))
            windows = human_windows(human, 200, HUMAN_WINDOWS)
            scores = partial(pool.map, partial(score_of, name, 200), range(len(windows)), windows, chunksize=4)
            _kept(human_path(folder, name), partial(_listed, scores))


def _listed(scores: Callable[[], Iterable[float]]) -> list[float]:
    return list(scores())


def _row(
    pool: ProcessPoolExecutor, folder: Path, name: str, temperature: float, length: int, edit: Edit, texts: int
) -> dict[str, Any]:
    stored = list(read_texts(folder, name, temperature, max(length, PARAPHRASED) if edit.paraphrased else length))
    stored = stored[:texts]
    mixed = (
        documents(list(read_texts(folder, "plain", temperature, LENGTHS[-1]))) if edit.inside else [""] * len(stored)
    )
    found: Iterable[dict[str, float]] = pool.map(partial(read_one, edit), stored, mixed[: len(stored)], chunksize=4)
    rows = list(found)
    return {column: [row[column] for row in rows] for column in rows[0]}


def _kept(path: Path, make: Callable[[], object]) -> None:
    """Make a file if it is missing, and say how long it took."""
    if path.exists():
        return
    start = time.perf_counter()
    content = json.dumps(make())
    write_atomically(path, lambda target: target.write_text(content))
    print(f"{path.stem}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
