"""The end of a text, once the message is in it: plain sampling from the model, with keyed draws."""

import codecs
import re

from polar.text.keys.derivation import KeyStream
from polar.text.scheme import Tokens
from polar.text.schemes.stream.walk import LawAfter, finish_token
from polar.text.settings import Ending
from polar.text.vocabulary import Node, Vocabulary

LONGEST_TAIL = 64
"""Most tokens that a text is continued by to reach the end of a sentence."""

LONGEST_REST = 16
"""Most tokens after that, to end with a whole character that is no white space."""

_LONGEST_CHARACTER = 4

_INITIAL = re.compile(rb"(?<![A-Za-z\x80-\xff])[A-Z]\.\Z")


def write_tail(
    vocabulary: Vocabulary, tokens: Tokens, node: Node, draws: KeyStream, ending: Ending, law_after: LawAfter
) -> Tokens:
    """Finish the token and the character under way, then, if asked to, the sentence; all tokens of the text.

    Where the text stops depends on the text alone, so this is the model's own text with a public stop rule.
    """
    if node.depth:
        tokens += (finish_token(vocabulary, law_after(tokens), node, draws),)
    text = vocabulary.text(tokens)
    longest = LONGEST_TAIL if ending == "sentence" else 0
    added = 0
    while (added < longest and not ends_sentence(text)) or (added < longest + LONGEST_REST and not may_end(text)):
        tokens += (finish_token(vocabulary, law_after(tokens), vocabulary.root, draws),)
        text += vocabulary.text(tokens[-1:])
        added += 1
    return tokens


def ends_sentence(text: bytes) -> bool:
    """Whether `text` ends with a full stop, exclamation or question mark, or one of these and a closing mark.

    The full stop of an initial ("P.", "U.S.") is none.
    """
    end = text.rstrip(b"\"')\n")
    return end.endswith((b".", b"!", b"?")) and not _INITIAL.search(end) and not _is_cut(text)


def may_end(text: bytes) -> bool:
    """Whether `text` ends with a whole character that is no white space, which copying would lose."""
    return not _is_cut(text) and not text[-1:].isspace()


def _is_cut(text: bytes) -> bool:
    """Whether `text` ends inside a UTF-8 character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(text[-_LONGEST_CHARACTER:])
    return bool(decoder.getstate()[0])
