"""The scheme `stream`: one message over the whole text, from the full vocabulary, with hardly any entropy wasted.

**The problem.** The receiver has bytes, not tokens, and most texts have many tokenisations: the token " a" is a prefix
of " an", and every token of its own first byte. If the message chose tokens, the receiver would have to guess which
ones; if it chose groups of tokens where one continues another, nearly all tokens of one first byte would be one group
and half of the entropy would be lost.

**The scheme.** The message chooses the text, byte by byte; shared randomness chooses the tokens that it is made of, and
waits with that until the text has nearly told. Both ends keep the *readings* of the text so far: tokens c, and bytes b
of the token under way, with the probability p(c) p(b* | c), where b* are all tokens that begin with b. Before a byte
every reading branches: the token under way goes on, or b was all of it. The message draws the byte from its law over
all branches, and the branches that the byte fits are the new readings. After " a" comes " " only if the token ended,
"n" nearly always if it did not: mostly a byte or two leave one reading that is worth keeping.

**Decisions.** A branch with less than `RARE` of the probability is not worth a pass of the model. Of two branches with
the same b the rest of the text hardly tells which one it is. There, and at the end, shared randomness decides whether
the less likely branch is the truth, by its probability; if not, it is dropped. The entropy of these decisions is all
that is lost.

**Exactness.** This is the chain rule and Bayes' rule: bytes are drawn from their law given the text and the decisions
so far, decisions from theirs. No token is excluded, merged or rejected, so the tokens have exactly the model's law,
whatever the message is. The receiver, who knows the bytes and the shared randomness, has the same readings at every
byte and is never in doubt: there is no search.

What follows tokens freely may be no UTF-8, and no such text can be sent: `polar.text.embedding` discards it and takes
the next nonce. So the law of what is sent is the model's, given that it is UTF-8. If a share q of all texts is not,
that is q away in total variation; only a text with a token that is no UTF-8 on its own can be among them, so q is at
most the expected number of such tokens in a text.

Every law after an ended token whose branch turns out to be the truth is needed anyway; the others are the extra cost in
forward passes.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

import numpy as np

from polar.text.arithmetic import ReadOption, Side
from polar.text.keys.derivation import KeyStream, MessageKeys
from polar.text.scheme import Tokens
from polar.text.vocabulary import Node, Vocabulary
from wm_env.common.arrays import Ints

RARE = Fraction(1, 64)
"""Shared randomness decides about a branch with a smaller share of the probability."""


class TokenLaw(Protocol):
    """The law of the next token, as integers."""

    def at(self, ranks: Ints) -> list[int]:
        """The cumulative mass of all tokens of smaller rank, in units of the whole mass over its last value."""


LawAfter = Callable[[Tokens], TokenLaw]
"""The law of the token after some tokens."""


def walk_tokens(vocabulary: Vocabulary, keys: MessageKeys, side: Side, law_after: LawAfter) -> tuple[Tokens, Node]:
    """Embed or read a message, byte by byte, until `side` is done: the tokens, and the node of that under way.

    Raises:
        MessageTooLongError, NoEntropyError: from the sender.
        NoMessageError: from the receiver.
    """
    ends = keys.stream("token ends")
    readings = [_Reading((), law_after(()), vocabulary.root, Fraction(1))]
    while not side.done:
        branches = [branch for reading in readings for branch in _branches(vocabulary, reading)]
        readings = []
        for branch in _decide(branches, ends, RARE):
            if branch.token is None:
                readings.append(branch.reading)
            else:
                tokens = (*branch.reading.tokens, branch.token)
                law = law_after(tokens)
                scale = branch.weight / law.at(vocabulary.root.bounds)[-1]
                readings.append(_Reading(tokens, law, vocabulary.root, scale))
        readings = _choose_byte(vocabulary, side, readings)
        side.note_tokens(min(len(reading.tokens) for reading in readings))
    (truth,) = _decide([_Branch(reading, None, reading.weight()) for reading in readings], ends, Fraction(1))
    return truth.reading.tokens, truth.reading.node


def finish_token(vocabulary: Vocabulary, law: TokenLaw, node: Node, draws: KeyStream) -> int:
    """Draw the token under way, one that begins with the string of `node`; its id."""
    return _draw(vocabulary, law, int(node.bounds[0]), int(node.bounds[-1]), draws)


@dataclass(frozen=True)
class _Reading:
    """One way in which the text so far may be made of tokens.

    Attributes:
        tokens: c, those that have ended.
        law: the law of the token after them.
        node: b, the string of the token under way.
        scale: the probability of c for one unit of mass of `law`, up to a factor that all readings share.
    """

    tokens: Tokens
    law: TokenLaw
    node: Node
    scale: Fraction

    def weight(self) -> Fraction:
        """The probability of the reading, up to the same factor."""
        marks = self.law.at(self.node.bounds)
        return self.scale * (marks[-1] - marks[0])


@dataclass(frozen=True)
class _Branch:
    """What a reading may be when the next byte comes.

    Attributes:
        reading: as it was before.
        token: the token that has ended, None if the one under way goes on.
        weight: the probability, up to the factor of the readings.
    """

    reading: _Reading
    token: int | None
    weight: Fraction

    @property
    def depth(self) -> int:
        """Length of the token under way."""
        return self.reading.node.depth if self.token is None else 0


def _branches(vocabulary: Vocabulary, reading: _Reading) -> list[_Branch]:
    """The branches of a reading that have a probability."""
    marks = reading.law.at(reading.node.bounds)
    masses: dict[int | None, int] = {None: marks[-1] - marks[1]}
    if marks[1] > marks[0]:
        ranks = np.arange(reading.node.bounds[0], reading.node.bounds[1] + 1)
        for rank, (start, end) in zip(ranks, pairwise(reading.law.at(ranks)), strict=False):
            masses[int(vocabulary.ids[rank])] = end - start
    return [_Branch(reading, token, reading.scale * mass) for token, mass in masses.items() if mass]


def _decide(branches: Sequence[_Branch], ends: KeyStream, rare: Fraction) -> list[_Branch]:
    """Let shared randomness decide about branches with a share below `rare`, and those that resemble a likelier one.

    The one that is the truth, or those that are left, the likeliest last.
    """
    weights = _whole_numbers([branch.weight for branch in branches])
    order = sorted(range(len(branches)), key=weights.__getitem__)
    total, left = sum(weights), []
    for place, number in enumerate(order[:-1]):
        resembles = any(branches[other].depth == branches[number].depth for other in order[place + 1 :])
        if weights[number] >= rare * total and not resembles:
            left.append(branches[number])
        elif ends.below(total) < weights[number]:
            return [branches[number]]
        else:
            total -= weights[number]
    return [*left, branches[order[-1]]]


def _choose_byte(vocabulary: Vocabulary, side: Side, readings: Sequence[_Reading]) -> list[_Reading]:
    """The readings of the text with the next byte."""
    scales = _whole_numbers([reading.scale for reading in readings])
    masses = [_masses(reading, scale) for reading, scale in zip(readings, scales, strict=True)]
    total = Counter[int]()
    for part in masses:
        total.update(part)
    options = sorted(total)
    byte = options[side.choose([total[option] for option in options], _reader(options))]
    side.put(bytes([byte]))
    return [
        _Reading(reading.tokens, reading.law, vocabulary.child(reading.node, byte), Fraction(scale))
        for reading, scale, part in zip(readings, scales, masses, strict=True)
        if byte in part
    ]


def _masses(reading: _Reading, scale: int) -> dict[int, int]:
    """The mass of every next byte that the token under way can go on with, times `scale`."""
    marks = reading.law.at(reading.node.bounds)
    return {
        byte: scale * (end - start)
        for byte, start, end in zip(reading.node.next_bytes, marks[1:-1], marks[2:], strict=True)
        if end > start
    }


def _whole_numbers(values: Sequence[Fraction]) -> list[int]:
    """The smallest whole numbers in proportion to positive `values`."""
    unit = math.lcm(*(value.denominator for value in values))
    numbers = [value.numerator * (unit // value.denominator) for value in values]
    divisor = math.gcd(*numbers)
    return [number // divisor for number in numbers]


def _reader(options: list[int]) -> ReadOption:
    def read(text: bytes, position: int) -> int | None:
        if position == len(text) or text[position] not in options:
            return None
        return options.index(text[position])

    return read


def _draw(vocabulary: Vocabulary, law: TokenLaw, start: int, end: int, draws: KeyStream) -> int:
    """A token of the ranks start..end-1, in proportion to its mass; a single one draws nothing."""
    if end - start > 1:
        marks = law.at(np.array([start, end]))
        point = marks[0] + draws.below(marks[1] - marks[0])
        while end - start > 1:
            middle = (start + end) // 2
            start, end = (middle, end) if law.at(np.array([middle]))[0] <= point else (start, middle)
    return int(vocabulary.ids[start])
