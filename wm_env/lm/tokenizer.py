"""Text to token ids and back, from a `tokenizer.json` alone: no torch, no transformers, no state that others change.

What a tokenizer file says beside the way in which text becomes tokens is left out: truncation, padding, what is put
around a text, and added tokens, whose names inside a text are spelled like any other words. So two programs with one
file tokenise alike, whatever else they do with it.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from wm_env.common.files import encoded, first_line, read_text
from wm_env.common.json_values import entry


class TextTokenizer:
    """A tokenizer of plain text.

    Attributes:
        content: the serialised tokenizer without what is left out.
        whole: the serialised tokenizer.
        added: ids of the added tokens, special or not; no text has them.
    """

    def __init__(self, serialised: str) -> None:
        """Take a tokenizer from the text of its file.

        Raises:
            ValueError: it is no tokenizer, or a random one (BPE dropout).
        """
        self.whole = serialised
        try:
            values: dict[str, Any] = json.loads(serialised)
            self.added = frozenset(
                entry(token, "id", int, "added_tokens") for token in values.get("added_tokens") or ()
            )
            model: dict[str, Any] = values["model"]
            if model.get("dropout"):
                raise ValueError(
                    f"the tokenizer has BPE dropout {model['dropout']}, so that it tokenises a text differently each "
                    'time: set "dropout" to null in its file'
                )
            plain = values | {"added_tokens": [], "truncation": None, "padding": None, "post_processor": None}
            self.content = json.dumps(plain, ensure_ascii=False)
            self._backend = Tokenizer.from_str(self.content)
            self._vocabulary: dict[str, int] = self._backend.get_vocab()
            self._decoder: dict[str, Any] = plain.get("decoder") or {}
        except ValueError:
            raise
        except Exception as error:  # the tokenizers library raises bare Exception on a malformed file
            raise ValueError(f"this is not a tokenizer: {first_line(error)}") from None

    @property
    def ids(self) -> frozenset[int]:
        """The ids of all tokens, added ones too."""
        return self.added.union(self._vocabulary.values())

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content."""
        return hashlib.sha256(self.content.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`, nothing added.

        Raises:
            ValueError: it is no text (halves of surrogate pairs).
        """
        encoded(text, "the text")
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The token ids of `text`, as `encode` gives them, and where each token stands, as characters (first, behind).

        Raises:
            ValueError: it is no text (halves of surrogate pairs).
        """
        encoded(text, "the text")
        encoding = self._backend.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    @property
    def is_byte_level(self) -> bool:
        """Whether the bytes of a text's tokens are the text; other tokenizers drop spaces, case or accents."""
        parts = self._decoder.get("decoders", [self._decoder])
        return {part.get("type") for part in parts} == {"ByteLevel"}

    @cached_property
    def strings(self) -> Mapping[int, bytes]:
        """The bytes of every token that is made of text; special and other added tokens are left out.

        The bytes of a block are those of its tokens one after the other, whatever stands before it; no space is cleaned
        up. A byte-level BPE says itself what they are. The words of a WordPiece vocabulary (BERT) begin with a space
        here, and their later pieces do not: its texts have a space before every word and every punctuation mark.

        Raises:
            ValueError: the tokenizer is of another kind, or an entry of a byte-level one is not made of bytes.
        """
        tokens = {number: token for token, number in self._vocabulary.items() if number not in self.added}
        if self._decoder.get("type") == "WordPiece":
            return {number: _word_piece(token, self._decoder["prefix"]) for number, token in tokens.items()}
        if not self.is_byte_level:
            kind = self._decoder.get("type", "no decoder")
            raise ValueError(f"the tokenizer decodes by {kind}; a byte-level BPE or a WordPiece tokenizer is needed")
        alphabet = byte_alphabet()
        for token in tokens.values():
            if foreign := set(token) - alphabet.keys():
                raise ValueError(
                    f"the tokenizer's entry {token!r} is not made of bytes ({min(foreign)!r} stands for none): a "
                    "byte-level tokenizer is needed"
                )
        return {number: bytes(alphabet[letter] for letter in token) for number, token in tokens.items()}


def byte_alphabet() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for: itself if it can be printed, else by order."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _word_piece(token: str, prefix: str) -> bytes:
    return (token.removeprefix(prefix) if token.startswith(prefix) else f" {token}").encode()


def read_text_tokenizer(folder: Path) -> TextTokenizer:
    """The tokenizer in `folder`/tokenizer.json.

    Raises:
        OSError: there is no such file.
        ValueError: it holds no tokenizer, or a random one.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no tokenizer.json; texts cannot be read without it")
    try:
        return TextTokenizer(read_text(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
