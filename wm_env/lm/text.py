"""Tokens as bytes: what a block looks like in a text, and which blocks a reader of the text can tell apart.

A receiver has the text, not the token ids, and one text has many tokenisations. So candidates are byte strings:
blocks of equal bytes are one candidate, and a block that ends inside a character is none.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> dict[int, bytes]:
    """The bytes of every token that is made of text; special and other added tokens are left out.

    The bytes of a block are those of its tokens one after the other, whatever stands before it; no space is cleaned up.
    A byte-level BPE says itself what they are. The words of a WordPiece vocabulary (BERT) begin with a space here, and
    their later pieces do not: its texts have a space before every word and every punctuation mark.

    Raises:
        ValueError: the tokenizer is of another kind.
    """
    decoder = _decoder(tokenizer)
    added = tokenizer.added_tokens_decoder
    tokens = {number: token for token, number in tokenizer.get_vocab().items() if number not in added}
    if decoder.get("type") == "WordPiece":
        return {number: _word_piece(token, decoder["prefix"]) for number, token in tokens.items()}
    if not is_byte_level(tokenizer):
        kind = decoder.get("type", "no decoder")
        raise ValueError(f"the tokenizer decodes by {kind}; a byte-level BPE or a WordPiece tokenizer is needed")
    alphabet = {character: byte for byte, character in bytes_to_unicode().items()}
    return {number: bytes(alphabet[character] for character in token) for number, token in tokens.items()}


def spell(vocabulary: Mapping[int, bytes], tokens: Iterable[int]) -> bytes:
    """The text of token ids; `vocabulary` is `token_bytes` of their tokenizer."""
    return b"".join(vocabulary[token] for token in tokens)


def is_byte_level(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether the bytes of a text's tokens are the text; other tokenizers drop spaces, case or accents."""
    decoder = _decoder(tokenizer)
    return {part.get("type") for part in decoder.get("decoders", [decoder])} == {"ByteLevel"}


def _decoder(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    decoder: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"] or {}
    return decoder


def _word_piece(token: str, prefix: str) -> bytes:
    return (token.removeprefix(prefix) if token.startswith(prefix) else f" {token}").encode()


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
