"""The tokenizer of a model as the receiver needs it: ids, strings and where they stand in the text. No torch.

Only the `tokenizers` library is used, which reads the tokenizer.json of every fast tokenizer of transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

EMBEDDED = Path(__file__).parents[4] / "wm_env" / "lm" / "mini"


@dataclass(frozen=True)
class Tokens:
    """A text, tokenised.

    Attributes:
        ids: token ids.
        spans: where each stands in the text, as characters.
    """

    ids: list[int]
    spans: list[tuple[int, int]]


class Reader:
    """A tokenizer, and the string of each of its tokens.

    Args:
        tokenizer: of the `tokenizers` library.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.strings = token_strings(tokenizer)

    def encode(self, text: str) -> Tokens:
        """The tokens of a text, nothing added."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return Tokens(encoding.ids, encoding.offsets)


def load_reader(model: str | Path = "mini") -> Reader:
    """The tokenizer of the embedded model ("mini"), or of a model in a folder.

    Raises:
        FileNotFoundError: the folder holds no tokenizer.json.
        ValueError: it is not one.
    """
    path = (EMBEDDED if str(model) == "mini" else Path(model)) / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give mini, or the folder of a model with a tokenizer.json")
    try:
        return Reader(Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises plain exceptions
        raise ValueError(f"{path} is no tokenizer: {error}") from None


def token_strings(tokenizer: Tokenizer) -> Mapping[int, str]:
    """The string of each token id as it stands inside a text; parts of characters are replaced by U+FFFD."""
    kind = str(type(tokenizer.decoder).__name__)
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    spell = {"ByteLevel": _byte_level, "WordPiece": _word_piece}.get(kind, _marked)
    return {number: spell(token) for token, number in vocabulary.items()}


def _byte_level(token: str) -> str:
    try:
        return bytes(_BYTES[character] for character in token).decode("utf-8", "replace")
    except KeyError:  # an added token
        return token


def _word_piece(token: str) -> str:
    return token.removeprefix("##") if token.startswith("##") else f" {token}"


def _marked(token: str) -> str:
    return token.replace("\u2581", " ")


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level vocabularies write bytes: printable ones as themselves, others from U+0100."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES: dict[str, int] = _byte_alphabet()


def check_tokenizer(value: Any) -> Tokenizer:
    """The tokenizer of the `tokenizers` library behind a fast tokenizer of transformers."""
    return getattr(value, "backend_tokenizer", value)
