"""Tokens as bytes: what a block looks like in a text, and which blocks a reader of the text can tell apart.

A receiver has the text, not the token ids, and one text has many tokenisations. So candidates are byte strings:
blocks of equal bytes are one candidate, and a block that ends inside a character is none.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from wm_env.lm.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def text_tokenizer(tokenizer: "PreTrainedTokenizerFast") -> TextTokenizer:
    """A tokenizer of transformers as one of plain text; what happens to the one later does not change the other."""
    return TextTokenizer(tokenizer.backend_tokenizer.to_str())


def tokenizer_fingerprint(tokenizer: "PreTrainedTokenizerFast") -> str:
    """SHA-256 of the serialised tokenizer."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def token_bytes(tokenizer: "PreTrainedTokenizerFast") -> Mapping[int, bytes]:
    """The bytes of every token that is made of text, see `TextTokenizer.strings`.

    Raises:
        ValueError: the tokenizer is of another kind, or random.
    """
    return text_tokenizer(tokenizer).strings


def spell(vocabulary: Mapping[int, bytes], tokens: Iterable[int]) -> bytes:
    """The text of token ids; `vocabulary` is `token_bytes` of their tokenizer."""
    return b"".join(vocabulary[token] for token in tokens)


def is_text(block: bytes) -> bool:
    """Whether `block` is whole UTF-8 characters, so that it can stand in a text that ended with a whole character."""
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def prefix_pairs(texts: Sequence[bytes]) -> int:
    """Number of ordered pairs (a, b) of different strings where b continues a.

    Only such a pair can leave open where a block ends in a text. Pools keep both, since dropping one would bend the
    law; a decoder that reads the whole text is misled only if two whole texts are equal.
    """
    ordered = sorted(set(texts))
    pairs = 0
    for first, start in enumerate(ordered):
        for longer in ordered[first + 1 :]:
            if not longer.startswith(start):
                break
            pairs += 1
    return pairs
