"""Tokens as bytes: what a block looks like in a text, and which blocks a reader of the text can tell apart.

A receiver has the text, not the token ids, and one text has many tokenisations. So candidates are byte strings:
blocks of equal bytes are one candidate, and a block that ends inside a character is none.
"""

import json
from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> dict[int, bytes]:
    """The bytes of every token that is made of text; special and other added tokens are left out.

    A byte-level BPE only ever concatenates, so the bytes of a block are those of its tokens one after the other,
    whatever stands before it; no space is cleaned up.

    Raises:
        ValueError: the tokenizer is not a byte-level one.
    """
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"] or {}
    kinds = {part["type"] for part in decoder.get("decoders", [decoder]) if "type" in part}
    if kinds != {"ByteLevel"}:
        raise ValueError(f"the tokenizer decodes by {sorted(kinds)}; a byte-level BPE tokenizer is needed")
    alphabet = {character: byte for byte, character in bytes_to_unicode().items()}
    added = tokenizer.added_tokens_decoder
    return {
        number: bytes(alphabet[character] for character in token)
        for token, number in tokenizer.get_vocab().items()
        if number not in added
    }


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
