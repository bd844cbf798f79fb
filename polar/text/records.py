"""The answers of a model that the receiver of one text asks for, kept in a file: then the receiver needs no model.

A record holds, for every question of the receiver, what the answer was. It says nothing about the key or the message
that the text itself does not say.

Most of a record are masses of laws that rise in small steps. So the file has the differences of neighbouring numbers,
all their lowest bytes first, then all second ones, ..., compressed by zlib. The fingerprint is that of the numbers.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from polar.text.keys.derivation import check_nonce
from polar.text.scheme import NoMessageError, Tokens
from polar.text.settings import Settings, settings_from_json
from wm_env.common.arrays import Ints
from wm_env.common.files import fingerprint, write_atomically
from wm_env.common.json_values import entry
from wm_env.common.tensors import Arrays, FileFormat, read_tensors, write_tensors

Answer = TypeVar("Answer")

RECORD_FORMAT = FileFormat(
    kind="covert-watermark text law",
    version=5,
    earlier={1: "a version before 0.1", 2: "a version before 0.1", 3: "version 0.1", 4: "a version before 0.2"},
)

_KINDS = {kind: np.dtype(kind) for kind in ("uint8", "int32", "int64", "float64")}

_LONGEST = 1 << 26
"""Numbers of an array that is read."""


class Answers(Protocol):
    """The answers to the questions of one text, as a scheme keeps them."""

    def arrays(self) -> Arrays:
        """As arrays, of which the scheme makes the same answers again."""


@dataclass(frozen=True)
class About:
    """Which text a record is of.

    Attributes:
        settings: of the channel.
        nonce: of the message.
        model: fingerprint of the model.
        prompt: SHA-256 of the prompt, in hex.
        text: SHA-256 of the text, in hex.
    """

    settings: Settings
    nonce: int
    model: str
    prompt: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self) | {"settings": self.settings.to_json()}


@dataclass(frozen=True)
class Record:
    """Everything but the key that the receiver of one text needs."""

    about: About
    answers: Answers

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content."""
        return fingerprint(self.answers.arrays(), self.about.to_json())


def save_record(record: Record, path: Path) -> None:
    """Write a record, whole or not at all, in a file that only its owner can read.

    Raises:
        OSError: the file cannot be written.
    """
    small, shapes = compress(record.answers.arrays())
    meta = {"about": record.about.to_json(), "arrays": shapes}
    write_atomically(path, lambda temporary: write_tensors(temporary, RECORD_FORMAT, small, meta), mode=0o600)


def load_record(path: Path) -> Record:
    """Read a record; it comes from somebody else, so everything in it is checked.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged, changed, of another kind or format version, or no text can have this record.
    """
    stored, meta = read_tensors(path, RECORD_FORMAT)
    try:
        arrays = expand(stored, entry(meta, "arrays", Shapes, path))
        values = entry(meta, "about", dict[str, Any], path)
        settings = settings_from_json(entry(values, "settings", dict[str, Any], path), path)
        nonce, *names = (
            entry(values, "nonce", int, path),
            *(entry(values, name, str, path) for name in ("model", "prompt", "text")),
        )
        check_nonce(nonce)
        return Record(About(settings, nonce, *names), settings.scheme.answers(arrays, settings))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): ask the sender for it again") from None


Shapes = dict[str, tuple[str, int]]
"""By name the kind and the length of arrays of one axis."""


def compress(arrays: Arrays) -> tuple[Arrays, Shapes]:
    """Arrays as bytes, see the module, and their shapes."""
    shapes = {name: (str(array.dtype), len(array)) for name, array in arrays.items()}
    return {name: _compressed(array) for name, array in arrays.items()}, shapes


def expand(stored: Arrays, shapes: Shapes) -> Arrays:
    """What `compress` was given.

    Raises:
        ValueError: the bytes are not that.
    """
    return {name: _expanded(array_of(stored, name, np.uint8), *shape) for name, shape in shapes.items()}


def _compressed(array: NDArray[Any]) -> NDArray[np.uint8]:
    """An array of one axis as bytes, see the module."""
    numbers = np.diff(array.astype(np.int64), prepend=0) if array.dtype.kind == "i" else array
    planes = np.ascontiguousarray(numbers).view(np.uint8).reshape(len(array), numbers.itemsize).T
    return np.frombuffer(zlib.compress(planes.tobytes(), 9), dtype=np.uint8)


def _expanded(data: NDArray[np.uint8], kind: str, length: int) -> NDArray[Any]:
    """What `_compressed` was given: `length` numbers of a kind; ValueError if the bytes are not that."""
    if kind not in _KINDS or not 0 <= length <= _LONGEST:
        raise ValueError(f"no array of {length} {kind} is known")
    dtype = _KINDS[kind]
    wide = np.dtype(np.int64) if dtype.kind == "i" else dtype
    expander = zlib.decompressobj()
    try:
        planes = expander.decompress(data.tobytes(), length * wide.itemsize + 1)
    except zlib.error as error:
        raise ValueError(f"an array does not expand: {error}") from None
    if len(planes) != length * wide.itemsize or not expander.eof or expander.unused_data:
        raise ValueError(f"an array has not {length} numbers")
    columns = np.frombuffer(planes, dtype=np.uint8).reshape(wide.itemsize, length).T
    numbers: NDArray[Any] = np.ascontiguousarray(columns).view(wide)[:, 0] if length else np.empty(0, dtype=wide)
    return numbers.cumsum().astype(dtype) if dtype.kind == "i" else numbers


def recorded(answers: Mapping[Tokens, Answer]) -> Callable[[Tokens], Answer]:
    """The recorded answer after some tokens; raises NoMessageError if there is none."""

    def answer_after(tokens: Tokens) -> Answer:
        try:
            return answers[tokens]
        except KeyError:
            raise NoMessageError("the text leaves the path that the law was recorded on") from None

    return answer_after


def question_arrays(questions: Sequence[Tokens]) -> Arrays:
    """Questions as (number of an earlier one, the tokens added to it)."""
    parents = [_parent(questions, number) for number in range(len(questions))]
    added = [
        question[0 if parent < 0 else len(questions[parent]) :]
        for question, parent in zip(questions, parents, strict=True)
    ]
    return {"parent": np.array(parents, dtype=np.int32)} | packed("added", added)


def read_questions(arrays: Arrays) -> list[Tokens]:
    """What `question_arrays` packed."""
    questions: list[Tokens] = []
    for parent, added in zip(array_of(arrays, "parent").tolist(), pieces(arrays, "added"), strict=True):
        if not -1 <= parent < len(questions):
            raise ValueError(f"question {len(questions)} continues question {parent}")
        questions.append((questions[parent] if parent >= 0 else ()) + tuple(added.tolist()))
    return questions


def _parent(questions: Sequence[Tokens], number: int) -> int:
    """The number of the longest earlier question that question `number` continues, -1 if there is none."""
    question = questions[number]
    earlier = {questions[other]: other for other in range(max(0, number - 8), number)}
    for length in range(len(question) - 1, -1, -1):
        if question[:length] in earlier:
            return earlier[question[:length]]
    return -1


def packed(name: str, rows: Sequence[Any], kind: type = np.int32) -> Arrays:
    """Rows of numbers or byte strings one after the other, and their lengths."""
    return {
        name: np.array([value for row in rows for value in row], dtype=kind),
        f"{name}_lengths": np.array([len(row) for row in rows], dtype=np.int32),
    }


def array_of(arrays: Arrays, name: str, kind: type = np.int32) -> NDArray[Any]:
    """The array `name`, of one axis.

    Raises:
        ValueError: there is none, or it is of another type or shape.
    """
    if name not in arrays:
        raise ValueError(f"{name} is missing")
    array = arrays[name]
    if array.ndim != 1 or array.dtype != np.dtype(kind):
        raise ValueError(f"{name} is {array.dtype} with {array.ndim} axes, {np.dtype(kind)} with 1 is needed")
    return array


def pieces(arrays: Arrays, name: str, kind: type = np.int32) -> list[NDArray[Any]]:
    """The rows that `packed` put into the array `name`."""
    values, sizes = array_of(arrays, name, kind), array_of(arrays, f"{name}_lengths")
    if not ((sizes >= 0) & (sizes <= len(values))).all() or sizes.sum() != len(values):
        raise ValueError(f"{name}_lengths do not add up to {name}")
    return np.split(values, np.cumsum(sizes)[:-1])


def check_rising(ranks: Ints, marks: Ints, tokens: int) -> None:
    """Check recorded masses of one law, which rise from 0 to the whole.

    Raises:
        ValueError: they do not, or there are no such ranks.
    """
    if (np.diff(ranks) <= 0).any() or not ((ranks >= 0) & (ranks <= tokens)).all():
        raise ValueError("ranks are not those of the vocabulary")
    if not len(marks) or (np.diff(marks) < 0).any() or marks[0] < 0 or marks[-1] <= 0 or marks[ranks == 0].any():
        raise ValueError("masses do not rise from 0")
