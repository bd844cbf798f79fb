"""The tokenizer of a checkpoint folder, read as data, and mostly without transformers, whose import takes seconds.

transformers makes a tokenizer of `tokenizer.json` and of what `tokenizer_config.json` adds. Where the latter names only
tokens that the former has as special ones, both tokenizers are the same.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from wm_env.common.files import first_line, read_json
from wm_env.lm.text import text_tokenizer, tokenizer_fingerprint
from wm_env.lm.tokenizer import TextTokenizer, read_text_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_PLAIN_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
_WITHOUT_EFFECT = frozenset(
    (
        *("backend", "clean_up_tokenization_spaces", "is_local", "model_input_names", "model_max_length"),
        *("name_or_path", "padding_side", "tokenizer_class", "truncation_side"),
    )
)


@dataclass(frozen=True)
class CheckpointTokenizer:
    """The tokenizer of a checkpoint.

    Attributes:
        text: for texts.
        fingerprint: SHA-256 of the whole tokenizer, as the library tokenizers writes it.
        open: makes that of transformers.
    """

    text: TextTokenizer
    fingerprint: str
    open: Callable[[], "PreTrainedTokenizerFast"]


def checkpoint_tokenizer(folder: Path) -> CheckpointTokenizer:
    """The tokenizer in `folder`.

    Raises:
        OSError: there are no such files.
        ValueError: they hold no tokenizer, or a random one.
    """
    if _is_plain(folder):
        text = read_text_tokenizer(folder)
        whole = Tokenizer.from_str(text.whole).to_str()
        return CheckpointTokenizer(text, hashlib.sha256(whole.encode()).hexdigest(), partial(read_tokenizer, folder))
    tokenizer = read_tokenizer(folder)
    return CheckpointTokenizer(text_tokenizer(tokenizer), tokenizer_fingerprint(tokenizer), lambda: tokenizer)


def read_tokenizer(folder: Path) -> "PreTrainedTokenizerFast":
    """The tokenizer in `folder`/tokenizer.json; of Dream, which has none, that of vocab.json and merges.txt.

    Raises:
        OSError: there are no such files.
        ValueError: they hold no tokenizer.
    """
    from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

    kind, file = PreTrainedTokenizerFast, "tokenizer.json"
    if not (folder / file).is_file():
        if not ((folder / "merges.txt").is_file() and read_json(folder / "config.json").get("model_type") == "Dream"):
            raise FileNotFoundError(f"{folder} holds no {file}; the model cannot read text without it")
        # Dream took over Qwen2's tokenizer, in Qwen2's format, with other added tokens.
        kind, file = Qwen2Tokenizer, "vocab.json"
    try:
        return kind.from_pretrained(folder)
    except Exception as error:  # the tokenizers library raises bare Exception on a malformed file
        raise ValueError(f"{folder / file} is not a tokenizer: {first_line(error)}") from None


def _is_plain(folder: Path) -> bool:
    """Whether transformers would add nothing to `folder`/tokenizer.json."""
    paths = [folder / name for name in ("tokenizer.json", "tokenizer_config.json")]
    if not all(path.is_file() for path in paths) or (folder / "special_tokens_map.json").exists():
        return False
    values, settings = (read_json(path) for path in paths)
    added = values.get("added_tokens")
    if not isinstance(added, list) or settings.get("tokenizer_class") not in _PLAIN_CLASSES:
        return False
    special = [token.get("content") for token in added if isinstance(token, dict) and token.get("special") is True]
    return all(token in special for token in _named(settings))


def _named(settings: Mapping[str, Any]) -> Iterator[Any]:
    """The special tokens that tokenizer_config.json names, and whatever else in it may have an effect."""
    for name, value in settings.items():
        if name == "extra_special_tokens" and isinstance(value, list):
            yield from value
        elif name not in _WITHOUT_EFFECT and value is not None:
            yield value
