"""The end of a text, once the message is in it: plain sampling from the model, with keyed draws."""

import codecs
import re
from collections.abc import Generator

from polar.text.keys import KeyStream
from polar.text.schemes.stream import TokenLaw, Tokens, finish_token
from polar.text.settings import Ending
from polar.text.vocabulary import Node, Vocabulary

LONGEST_TAIL = 64
"""Most tokens that a text is continued by to reach the end of a sentence."""

_LONGEST_CHARACTER = 4

_INITIAL = re.compile(rb"(?<![A-Za-z\x80-\xff])[A-Z]\.\Z")

Walk = Generator[Tokens, TokenLaw, Tokens]
"""Asks for the law after some tokens, gets it, and returns the tokens in the end."""


def write_tail(vocabulary: Vocabulary, tokens: Tokens, node: Node, draws: KeyStream, ending: Ending) -> Walk:
    """Finish the token and the character under way, then, if asked to, the sentence.

    Where the text stops depends on the text alone, so this is the model's own text with a public stop rule.
    """
    if node.depth:
        tokens += (finish_token(vocabulary, (yield tokens), node, draws),)
    text = vocabulary.text(tokens)
    longest = LONGEST_TAIL if ending == "sentence" else 0
    added = 0
    while (added < longest and not ends_sentence(text)) or (added < longest + _LONGEST_CHARACTER and _is_cut(text)):
        tokens += (finish_token(vocabulary, (yield tokens), vocabulary.root, draws),)
        text += vocabulary.text(tokens[-1:])
        added += 1
    return tokens


def ends_sentence(text: bytes) -> bool:
    """Whether `text` ends with a full stop, exclamation or question mark, or one of these and a closing mark.

    The full stop of an initial ("P.", "U.S.") is none.
    """
    end = text.rstrip(b"\"')\n")
    return end.endswith((b".", b"!", b"?")) and not _INITIAL.search(end) and not _is_cut(text)


def _is_cut(text: bytes) -> bool:
    """Whether `text` ends inside a UTF-8 character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(text[-_LONGEST_CHARACTER:])
    return bool(decoder.getstate()[0])
