"""The laws and pools that a receiver asks for on the way through one text, kept in a file: then it needs no model.

A record holds, for every question of the receiver, what the answer was: of the law of a token only the cumulative
masses that were looked at. It says nothing about the key or the message that the text itself does not say.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from polar.arithmetic import NoMessageError
from polar.block import CandidatePool
from polar.stream import TokenLaw, Tokens
from polar.vocabulary import Vocabulary
from wm_env.files import fingerprint, write_atomically
from wm_env.tensors import Arrays, FileFormat, read_tensors, write_tensors
from wm_env.tree import Floats, Ints

Answer = TypeVar("Answer")
Result = TypeVar("Result")
Recorded = TypeVar("Recorded")

Asking = Generator[Tokens, Answer, Result]
"""A walk: it yields the tokens after which it needs a law or pool, and is sent it."""

LawRecords = dict[Tokens, dict[int, int]]
"""The cumulative masses, by rank, that were looked at in the law after some tokens."""

PoolRecords = dict[Tokens, CandidatePool]
"""The pool after some tokens."""

RECORD_FORMAT = FileFormat(kind="covert-watermark text law", version=1)


class WatchedLaw:
    """A law of tokens that remembers in `marks` what was looked at."""

    def __init__(self, law: TokenLaw, marks: dict[int, int]) -> None:
        self._law = law
        self._marks = marks

    def at(self, ranks: Ints) -> list[int]:
        """As in `TokenLaw`."""
        marks = self._law.at(ranks)
        self._marks.update(zip(ranks.tolist(), marks, strict=True))
        return marks


@dataclass(frozen=True)
class RecordedLaw:
    """The cumulative masses of a law that were looked at, by rank."""

    marks: Mapping[int, int]

    def at(self, ranks: Ints) -> list[int]:
        """As in `TokenLaw`; raises NoMessageError where nobody looked before."""
        try:
            return [self.marks[rank] for rank in ranks.tolist()]
        except KeyError:
            raise NoMessageError("the text leaves the path that the law was recorded on") from None


@dataclass(frozen=True)
class RecordedPool:
    """A pool, as `polar.block.CandidatePool` has it."""

    tokens: Ints
    text: tuple[bytes, ...]
    cover: Floats
    log2_prob: Floats


def record_laws(asking: Asking[TokenLaw, Result], records: LawRecords) -> Asking[TokenLaw, Result]:
    """The same walk; what it looks at is added to `records`."""
    question = next(asking)
    while True:
        law = yield question
        try:
            question = asking.send(WatchedLaw(law, records.setdefault(question, {})))
        except StopIteration as stop:
            result: Result = stop.value
            return result


def record_pools(asking: Asking[CandidatePool, Result], records: PoolRecords) -> Asking[CandidatePool, Result]:
    """The same walk; the pools that it gets are added to `records`."""
    question = next(asking)
    while True:
        records[question] = yield question
        try:
            question = asking.send(records[question])
        except StopIteration as stop:
            result: Result = stop.value
            return result


def recorded_law(records: Mapping[Tokens, Mapping[int, int]], tokens: Tokens) -> TokenLaw:
    """The recorded law after `tokens`; raises NoMessageError if there is none."""
    return RecordedLaw(_recorded(records, tokens))


def recorded_pool(records: Mapping[Tokens, CandidatePool], tokens: Tokens) -> CandidatePool:
    """The recorded pool after `tokens`; raises NoMessageError if there is none."""
    return _recorded(records, tokens)


@dataclass(frozen=True)
class TextLaw:
    """Everything but the key that the receiver of one text needs.

    Attributes:
        about: JSON types: the settings of the channel, nonce, and fingerprints of model, prompt and text.
        laws: the marks of the laws of tokens, by the tokens before (scheme stream).
        pools: the pools, by the tokens before (scheme block).
        vocabulary: the tokens that a text can contain (scheme stream).
    """

    about: Mapping[str, Any]
    laws: Mapping[Tokens, Mapping[int, int]]
    pools: Mapping[Tokens, CandidatePool]
    vocabulary: Vocabulary | None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content."""
        return fingerprint(_arrays(self), self.about)


def save_text_law(law: TextLaw, path: Path) -> None:
    """Write a law, whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    meta = {"about": dict(law.about)}
    write_atomically(path, lambda temporary: write_tensors(temporary, RECORD_FORMAT, _arrays(law), meta))


def load_text_law(path: Path) -> TextLaw:
    """Read a law.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged, changed, of another kind or format version.
    """
    arrays, meta = read_tensors(path, RECORD_FORMAT)
    try:
        return _from_arrays(arrays, meta["about"])
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): ask the sender for it again") from None


def _recorded(records: Mapping[Tokens, Recorded], tokens: Tokens) -> Recorded:
    try:
        return records[tokens]
    except KeyError:
        raise NoMessageError("the text leaves the path that the law was recorded on") from None


def _arrays(law: TextLaw) -> Arrays:
    """Questions as (an earlier one, the tokens added to it); answers one after the other, with their lengths."""
    questions = list(law.laws) or list(law.pools)
    parents = [_parent(questions, number) for number in range(len(questions))]
    added = [
        question[0 if parent < 0 else len(questions[parent]) :]
        for question, parent in zip(questions, parents, strict=True)
    ]
    arrays: Arrays = {
        "parent": np.array(parents, dtype=np.int64),
        "added": _flat(added),
        "added_lengths": np.array([len(tokens) for tokens in added], dtype=np.int64),
    }
    if law.vocabulary is not None:
        arrays |= _strings("vocabulary", law.vocabulary.strings) | {"ids": law.vocabulary.ids}
        arrays["ranks"] = _flat([sorted(marks) for marks in law.laws.values()])
        arrays["marks"] = _flat([[marks[rank] for rank in sorted(marks)] for marks in law.laws.values()])
        arrays["answer_lengths"] = np.array([len(marks) for marks in law.laws.values()], dtype=np.int64)
        return arrays
    pools = list(law.pools.values())
    arrays |= _strings("text", [string for pool in pools for string in pool.text])
    for name in ("tokens", "cover", "log2_prob"):
        arrays[name] = np.concatenate([getattr(pool, name) for pool in pools])
    arrays["answer_lengths"] = np.array([len(pool.text) for pool in pools], dtype=np.int64)
    return arrays


def _parent(questions: list[Tokens], number: int) -> int:
    """The number of the longest earlier question that question `number` continues, -1 if there is none."""
    question = questions[number]
    earlier = {questions[other]: other for other in range(max(0, number - 8), number)}
    for length in range(len(question) - 1, -1, -1):
        if question[:length] in earlier:
            return earlier[question[:length]]
    return -1


def _from_arrays(arrays: Arrays, about: Mapping[str, Any]) -> TextLaw:
    questions: list[Tokens] = []
    for parent, added in zip(arrays["parent"].tolist(), _pieces(arrays["added"], arrays["added_lengths"]), strict=True):
        questions.append(((*questions[parent],) if parent >= 0 else ()) + tuple(added.tolist()))
    sizes = arrays["answer_lengths"]
    if "ids" in arrays:
        vocabulary = Vocabulary(dict(zip(arrays["ids"].tolist(), _read_strings(arrays, "vocabulary"), strict=True)))
        answers = zip(_pieces(arrays["ranks"], sizes), _pieces(arrays["marks"], sizes), strict=True)
        laws = [dict(zip(ranks.tolist(), marks.tolist(), strict=True)) for ranks, marks in answers]
        return TextLaw(about, dict(zip(questions, laws, strict=True)), {}, vocabulary)
    texts = _read_strings(arrays, "text")
    ends = np.cumsum(sizes).tolist()
    pools = [
        RecordedPool(tokens, tuple(texts[end - len(cover) : end]), cover, log2_prob)
        for tokens, cover, log2_prob, end in zip(
            *(_pieces(arrays[name], sizes) for name in ("tokens", "cover", "log2_prob")), ends, strict=True
        )
    ]
    return TextLaw(about, {}, dict(zip(questions, pools, strict=True)), None)


def _flat(rows: list[Any]) -> Ints:
    return np.array([value for row in rows for value in row], dtype=np.int64)


def _pieces(values: Any, lengths: Ints) -> list[Any]:
    if lengths.sum() != len(values):
        raise ValueError("lengths do not add up")
    return np.split(values, np.cumsum(lengths)[:-1])


def _strings(name: str, strings: Any) -> Arrays:
    return {
        name: np.frombuffer(b"".join(strings), dtype=np.uint8),
        f"{name}_lengths": np.array([len(string) for string in strings], dtype=np.int64),
    }


def _read_strings(arrays: Arrays, name: str) -> list[bytes]:
    return [piece.tobytes() for piece in _pieces(arrays[name], arrays[f"{name}_lengths"])]
