"""The laws and pools that a receiver asks for on the way through one text, kept in a file: then it needs no model.

A record holds, for every question of the receiver, what the answer was: of the law of a token only the cumulative
masses that were looked at. It says nothing about the key or the message that the text itself does not say.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polar.text.arithmetic import NoMessageError
from polar.text.keys import check_nonce
from polar.text.schemes.block import CandidatePool
from polar.text.schemes.stream import TokenLaw, Tokens
from polar.text.settings import Settings
from polar.text.vocabulary import Vocabulary
from wm_env.common.arrays import Floats, Ints
from wm_env.common.files import fingerprint, write_atomically
from wm_env.common.json_values import entry
from wm_env.common.tensors import Arrays, FileFormat, read_tensors, write_tensors

AnyPool = TypeVar("AnyPool", bound=CandidatePool)
Answer = TypeVar("Answer")
Result = TypeVar("Result")
Recorded = TypeVar("Recorded")

Asking = Generator[Tokens, Answer, Result]
"""A walk: it yields the tokens after which it needs a law or pool, and is sent it."""

LawRecords = dict[Tokens, dict[int, int]]
"""The cumulative masses, by rank, that were looked at in the law after some tokens."""

PoolRecords = dict[Tokens, CandidatePool]
"""The pool after some tokens."""

RECORD_FORMAT = FileFormat(kind="covert-watermark text law", version=3)


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
    """A pool, as `polar.text.schemes.block.CandidatePool` has it."""

    tokens: Ints
    text: tuple[bytes, ...]
    cover: Floats
    log2_prob: Floats


def record_laws(asking: Asking[TokenLaw, Result], records: LawRecords) -> Asking[TokenLaw, Result]:
    """The same walk; what it looks at is added to `records`."""
    return _recorded_walk(asking, lambda tokens, law: WatchedLaw(law, records.setdefault(tokens, {})))


def record_pools(asking: Asking[AnyPool, Result], records: dict[Tokens, AnyPool]) -> Asking[AnyPool, Result]:
    """The same walk; the pools that it gets are added to `records`."""
    return _recorded_walk(asking, records.setdefault)


def _recorded_walk(
    asking: Asking[Answer, Result], record: Callable[[Tokens, Answer], Answer]
) -> Asking[Answer, Result]:
    """The same walk; it gets what `record` makes of every question and its answer."""
    question = next(asking)
    while True:
        answer = record(question, (yield question))
        try:
            question = asking.send(answer)
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
class About:
    """Which text a law is of.

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


@dataclass(frozen=True)
class TextLaw:
    """Everything but the key that the receiver of one text needs.

    Attributes:
        about: which text this is.
        laws: the marks of the laws of tokens, by the tokens before (scheme stream).
        pools: the pools, by the tokens before (scheme block).
        vocabulary: the tokens that a text can contain (scheme stream).
    """

    about: About
    laws: Mapping[Tokens, Mapping[int, int]]
    pools: Mapping[Tokens, CandidatePool]
    vocabulary: Vocabulary | None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content."""
        return fingerprint(_arrays(self), asdict(self.about))


def save_text_law(law: TextLaw, path: Path) -> None:
    """Write a law, whole or not at all, in a file that only its owner can read.

    Raises:
        OSError: the file cannot be written.
    """
    meta = {"about": asdict(law.about)}
    write_atomically(path, lambda temporary: write_tensors(temporary, RECORD_FORMAT, _arrays(law), meta), mode=0o600)


def load_text_law(path: Path) -> TextLaw:
    """Read a law; it comes from somebody else, so everything in it is checked.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged, changed, of another kind or format version, or no text can have this law.
    """
    arrays, meta = read_tensors(path, RECORD_FORMAT)
    try:
        about = entry(meta, "about", About, path)
        about.settings.check()
        check_nonce(about.nonce)
        return _from_arrays(arrays, about)
    except ValueError as error:
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


def _from_arrays(arrays: Arrays, about: About) -> TextLaw:
    questions: list[Tokens] = []
    parents, pieces = _array(arrays, "parent"), _pieces(arrays, "added", "added_lengths")
    for parent, added in zip(parents.tolist(), pieces, strict=True):
        if not -1 <= parent < len(questions):
            raise ValueError(f"question {len(questions)} continues question {parent}")
        questions.append((questions[parent] if parent >= 0 else ()) + tuple(added.tolist()))
    if about.settings.scheme == "stream":
        strings = _read_strings(arrays, "vocabulary")
        vocabulary = Vocabulary(dict(zip(_array(arrays, "ids").tolist(), strings, strict=True)))
        answers = zip(_pieces(arrays, "ranks"), _pieces(arrays, "marks"), strict=True)
        laws = [_law(ranks, marks, len(vocabulary.ids)) for ranks, marks in answers]
        return TextLaw(about, dict(zip(questions, laws, strict=True)), {}, vocabulary)
    if about.settings.scheme == "parallel":
        raise ValueError("texts of the scheme parallel have no law")
    texts = iter(_read_strings(arrays, "text"))
    columns = _pieces(arrays, "tokens"), _pieces(arrays, "cover"), _pieces(arrays, "log2_prob")
    pools = [
        _pool(tokens, tuple(islice(texts, len(cover))), cover, log2_prob, about.settings)
        for tokens, cover, log2_prob in zip(*columns, strict=True)
    ]
    return TextLaw(about, {}, dict(zip(questions, pools, strict=True)), None)


def _law(ranks: Ints, marks: Ints, tokens: int) -> dict[int, int]:
    """The recorded masses of one law, which rise from 0 to the whole.

    Raises:
        ValueError: they do not, or there are no such ranks.
    """
    if (np.diff(ranks) <= 0).any() or not ((ranks >= 0) & (ranks <= tokens)).all():
        raise ValueError("ranks are not those of the vocabulary")
    if not len(marks) or (np.diff(marks) < 0).any() or marks[0] < 0 or marks[-1] <= 0 or marks[ranks == 0].any():
        raise ValueError("masses do not rise from 0")
    return dict(zip(ranks.tolist(), marks.tolist(), strict=True))


def _pool(tokens: Ints, text: tuple[bytes, ...], cover: Floats, log2_prob: Floats, settings: Settings) -> RecordedPool:
    """One recorded pool.

    Raises:
        ValueError: it is none of these settings.
    """
    if not 1 <= len(cover) == len(text) <= settings.candidates or not all(text):
        raise ValueError("a pool has too few or too many candidates, or empty ones")
    if tokens.shape[1] != settings.block_length:
        raise ValueError(f"candidates have {tokens.shape[1]} tokens, not {settings.block_length}")
    if not ((cover >= 0).all() and abs(cover.sum() - 1) <= 1e-6):
        raise ValueError("probabilities of candidates are not a law")
    return RecordedPool(tokens, text, cover, log2_prob)


def _flat(rows: list[Any]) -> Ints:
    return np.array([value for row in rows for value in row], dtype=np.int64)


def _array(arrays: Arrays, name: str) -> NDArray[Any]:
    """The array `name`, of the type and the number of axes that it must have.

    Raises:
        ValueError: there is none, or it is another.
    """
    if name not in arrays:
        raise ValueError(f"{name} is missing")
    wanted = {"cover": np.float64, "log2_prob": np.float64, "text": np.uint8, "vocabulary": np.uint8}
    kind, axes = np.dtype(wanted.get(name, np.int64)), 2 if name == "tokens" else 1
    array = arrays[name]
    if array.ndim != axes or array.dtype != kind:
        raise ValueError(f"{name} is {array.dtype} with {array.ndim} axes, {kind} with {axes} is needed")
    return array


def _pieces(arrays: Arrays, name: str, lengths: str = "answer_lengths") -> list[NDArray[Any]]:
    """The array `name`, cut into pieces of the lengths in another."""
    values, sizes = _array(arrays, name), _array(arrays, lengths)
    if not ((sizes >= 0) & (sizes <= len(values))).all() or sizes.sum() != len(values):
        raise ValueError(f"{lengths} do not add up to {name}")
    return np.split(values, np.cumsum(sizes)[:-1])


def _strings(name: str, strings: Any) -> Arrays:
    return {
        name: np.frombuffer(b"".join(strings), dtype=np.uint8),
        f"{name}_lengths": np.array([len(string) for string in strings], dtype=np.int64),
    }


def _read_strings(arrays: Arrays, name: str) -> list[bytes]:
    return [piece.tobytes() for piece in _pieces(arrays, name, f"{name}_lengths")]
