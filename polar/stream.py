"""The scheme `stream`: one message over the whole text, from the full vocabulary, with hardly any entropy wasted.

**The problem.** The receiver has bytes, not tokens, and most texts have many tokenisations: the token " a" is a prefix
of " an", and every token of its own first byte. If the message chose tokens, the receiver would have to guess which
ones; if it chose groups of tokens where one continues another, nearly all tokens of one first byte would be one group
and half of the entropy would be lost.

**The scheme.** The message chooses the text, byte by byte; shared randomness chooses where tokens end. Both ends keep
the tokens so far, c, and the bytes b of the token under way. With p(b) the probability of the token b and p(b*) that of
all tokens that begin with b, the token ends here with probability p(b) / p(b*).

* Mostly, the law of the next byte y is a mixture over that event, and the message draws y from

      P(y) = [p(by* | c) + p(b | c) p(y* | cb)] / p(b* | c),

  which takes a look ahead at the model's law after c and b. Then shared randomness decides whether the token ended, by
  the posterior probability: the second term over the sum. After " a" comes " " only if the token ended, "n" nearly
  always if it did not: the byte decides, shared randomness has little to do, and little entropy is lost.
* Where the token hardly ends here (probability below `RARE`), shared randomness decides that before the byte: it loses
  at most 0.12 bits, and saves a look ahead that would be in vain.

**Exactness.** Both are decompositions of the chain rule, p(token | c) = prod over its bytes, by Bayes' rule; no token
is excluded, merged or rejected. So the tokens have exactly the model's law, whatever the message is, and the
receiver, who knows c, b and the shared randomness at every byte, is never in doubt: there is no search, and no text
that the sender must discard. What is lost is the entropy of the shared decisions given the text.

Every look ahead whose token then ends is the model's law for the next token, needed anyway; the others are the extra
cost in forward passes. On the embedded model `RARE` = 1/64 saves 0.3 passes per token against 1/256 and loses 0.2 % of
the entropy; beyond that every pass saved costs more.
"""

from collections.abc import Generator
from typing import Protocol

import numpy as np

from polar.arithmetic import Reader, Side
from polar.secrets import KeyStream, MessageKeys
from polar.vocabulary import Node, Vocabulary
from wm_env.tree import Ints

RARE = 1 / 64
"""Probability of a token's end below which shared randomness alone decides about it."""

Tokens = tuple[int, ...]
"""The token ids of a text so far, without the prompt."""


class TokenLaw(Protocol):
    """The law of the next token, as integers."""

    def at(self, ranks: Ints) -> list[int]:
        """The cumulative mass of all tokens of smaller rank, in units of the whole mass over its last value."""


Walk = Generator[Tokens, TokenLaw, tuple[Tokens, Node]]
"""Asks for the law after some tokens, is sent it, and returns the tokens and the node of the token under way."""


def walk(vocabulary: Vocabulary, keys: MessageKeys, side: Side) -> Walk:
    """Embed or read a message, byte by byte, until `side` is done.

    Raises:
        MessageTooLongError, NoEntropyError: from the sender.
        NoMessageError: from the receiver.
    """
    ends = keys.stream("token ends")
    tokens: Tokens = ()
    law = yield tokens
    node = vocabulary.root
    while not side.done:
        marks = law.at(node.bounds)
        own, longer = marks[1] - marks[0], marks[-1] - marks[1]
        if _is_decided_first(own, longer, node):
            if longer == 0 or (own and ends.below(own + longer) < own):
                tokens += (_draw(vocabulary, law, int(node.bounds[0]), int(node.bounds[1]), ends),)
                side.note_tokens(len(tokens))
                law, node = (yield tokens), vocabulary.root
            else:
                byte = _choose_byte(side, _masses(node, marks))
                node = vocabulary.child(node, byte)
            continue
        ended = (*tokens, int(vocabulary.ids[node.bounds[0]]))
        law_after = yield ended
        first = _masses(vocabulary.root, law_after.at(vocabulary.root.bounds))
        whole = sum(first.values())
        continued = {byte: mass * whole for byte, mass in _masses(node, marks).items()}
        started = {byte: mass * own for byte, mass in first.items()}
        byte = _choose_byte(
            side, started | {letter: mass + started.get(letter, 0) for letter, mass in continued.items()}
        )
        if _is_true(started.get(byte, 0), continued.get(byte, 0), ends):
            tokens, law = ended, law_after
            side.note_tokens(len(tokens))
            node = vocabulary.child(vocabulary.root, byte)
        else:
            node = vocabulary.child(node, byte)
    return tokens, node


def finish_token(vocabulary: Vocabulary, law: TokenLaw, node: Node, draws: KeyStream) -> int:
    """Draw the token under way, one that begins with the string of `node`; its id."""
    return _draw(vocabulary, law, int(node.bounds[0]), int(node.bounds[-1]), draws)


def _is_decided_first(own: int, longer: int, node: Node) -> bool:
    """Whether shared randomness decides the end of the token before the message chooses a byte."""
    several = node.bounds[1] - node.bounds[0] > 1
    return several or own < RARE * (own + longer)


def _masses(node: Node, marks: list[int]) -> dict[int, int]:
    """The mass of every next byte, from the cumulative masses at the node's bounds."""
    return {
        byte: end - start
        for byte, start, end in zip(node.next_bytes, marks[1:-1], marks[2:], strict=True)
        if end > start
    }


def _choose_byte(side: Side, masses: dict[int, int]) -> int:
    options = sorted(masses)
    index = side.choose([masses[byte] for byte in options], _reader(options))
    side.put(bytes([options[index]]))
    return options[index]


def _reader(options: list[int]) -> Reader:
    def read(text: bytes, position: int) -> int | None:
        if position == len(text) or text[position] not in options:
            return None
        return options.index(text[position])

    return read


def _is_true(for_it: int, against: int, draws: KeyStream) -> bool:
    """An event with odds for : against. Certainty draws nothing."""
    return bool(for_it) and (not against or draws.below(for_it + against) < for_it)


def _draw(vocabulary: Vocabulary, law: TokenLaw, start: int, end: int, draws: KeyStream) -> int:
    """A token of the ranks start..end-1, in proportion to its mass; a single one draws nothing."""
    if end - start > 1:
        marks = law.at(np.array([start, end]))
        point = marks[0] + draws.below(marks[1] - marks[0])
        while end - start > 1:
            middle = (start + end) // 2
            start, end = (middle, end) if law.at(np.array([middle]))[0] <= point else (start, middle)
    return int(vocabulary.ids[start])
