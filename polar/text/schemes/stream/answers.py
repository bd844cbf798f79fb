"""What the receiver of a text of the scheme `stream` looked at in the laws of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile

import numpy as np

from polar.text.records import array_of, check_rising, packed, pieces, question_arrays, read_questions, recorded
from polar.text.scheme import NoMessageError, Tokens
from polar.text.schemes.stream.walk import LawAfter, TokenLaw
from polar.text.vocabulary import Vocabulary
from wm_env.common.arrays import Ints
from wm_env.common.tensors import Arrays

Marks = dict[int, int]
"""Cumulative masses of a law that were looked at, by rank."""


class WatchedLaw:
    """A law of tokens that remembers in `marks` what was looked at."""

    def __init__(self, law: TokenLaw, marks: Marks) -> None:
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
class LawAnswers:
    """The marks of the laws of tokens, by the tokens before, and the tokens that a text can contain."""

    vocabulary: Vocabulary
    laws: dict[Tokens, Marks]

    def watch(self, law_after: LawAfter) -> LawAfter:
        """The same laws; what is looked at in them is noted here."""
        return lambda tokens: WatchedLaw(law_after(tokens), self.laws.setdefault(tokens, {}))

    def law_after(self, tokens: Tokens) -> TokenLaw:
        """The recorded law after `tokens`; raises NoMessageError if there is none."""
        return RecordedLaw(recorded(self.laws)(tokens))

    def arrays(self) -> Arrays:
        """As in `Answers`, without what no law was asked for."""
        vocabulary, laws = self._reduced()
        rows = [sorted(marks) for marks in laws.values()]
        marks = [marks[rank] for marks, ranks in zip(laws.values(), rows, strict=True) for rank in ranks]
        return (
            question_arrays(list(laws))
            | packed("vocabulary", vocabulary.strings, np.uint8)
            | packed("ranks", rows)
            | {"ids": vocabulary.ids.astype(np.int32), "marks": np.array(marks, dtype=np.int64)}
        )

    def _reduced(self) -> tuple[Vocabulary, dict[Tokens, Marks]]:
        """Tokens between two neighbouring ranks that were looked at count as one, of what they all begin with: no law
        was asked for one of them, so the walk sees no difference.
        """
        edges = sorted({0, len(self.vocabulary.ids)}.union(*self.laws.values()))
        number = {rank: place for place, rank in enumerate(edges)}
        strings = self.vocabulary.strings
        groups = {
            int(self.vocabulary.ids[start]): _common_start(strings[start], strings[end - 1])
            for start, end in pairwise(edges)
        }
        laws = {tokens: {number[rank]: mark for rank, mark in marks.items()} for tokens, marks in self.laws.items()}
        return Vocabulary(groups), laws


def _common_start(first: bytes, last: bytes) -> bytes:
    """What both byte strings begin with."""
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    return first[:length]


def read_stream_answers(arrays: Arrays) -> LawAnswers:
    """What `LawAnswers.arrays` made.

    Raises:
        ValueError: no text can have these answers.
    """
    strings = [piece.tobytes() for piece in pieces(arrays, "vocabulary", np.uint8)]
    vocabulary = Vocabulary(dict(zip(array_of(arrays, "ids").tolist(), strings, strict=True)))
    ranks = pieces(arrays, "ranks")
    marks = array_of(arrays, "marks", np.int64)
    if sum(map(len, ranks)) != len(marks):
        raise ValueError("marks do not add up to ranks")
    laws: dict[Tokens, Marks] = {}
    values = np.split(marks, np.cumsum([len(row) for row in ranks])[:-1])
    for tokens, row, masses in zip(read_questions(arrays), ranks, values, strict=True):
        check_rising(row, masses, len(vocabulary.ids))
        laws[tokens] = dict(zip(row.tolist(), masses.tolist(), strict=True))
    return LawAnswers(vocabulary, laws)
