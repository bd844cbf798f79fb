"""The options of the three commands, and the input that they name. Free of torch: help and refusals come at once."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from polar.framing import Message, parse_bits
from polar.settings import Limits, Settings
from wm_env.help import paragraph_help


@paragraph_help
@dataclass(frozen=True)
class Model:
    """The language model, and what it continues. Sender and receiver must use the same."""

    model: str = "mini"
    """"mini" (comes with the package), a folder with a checkpoint of LLaDA, Dream or a masked LM of transformers, or a
    hub id OWNER/NAME."""
    prompt: str | None = None
    """What the text continues; may be empty."""
    prompt_file: Path | None = None
    """The same from a file (UTF-8), as it is, final newline included."""
    device: str = "cpu"
    """Where the model runs, such as cpu or cuda:0."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the model."""

    def read_prompt(self) -> str:
        """The prompt.

        Raises:
            ValueError: none is given, two are, or the file is not UTF-8.
            OSError: the file cannot be read.
        """
        if (self.prompt is None) == (self.prompt_file is None):
            raise ValueError("give either --prompt or --prompt-file")
        if self.prompt_file is None:
            return self.prompt or ""
        try:
            return self.prompt_file.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{self.prompt_file} is not UTF-8 text") from None


@paragraph_help
@dataclass(frozen=True)
class Keygen:
    """Write a new key to a file that only you can read. It never overwrites one."""

    file: tyro.conf.Positional[Path]
    """The key file."""


@paragraph_help
@dataclass(frozen=True)
class Embed:
    """Write a text that carries a message."""

    key: Path
    """The key file."""
    message: str | None = None
    """The message as text (UTF-8)."""
    message_file: Path | None = None
    """The message from a file, any bytes; - is standard input."""
    message_bits: str | None = None
    """The message as zeros and ones."""
    nonce: int | None = None
    """Number of the message under this key; by default the first that the ledger does not have."""
    allow_nonce_reuse: bool = False
    """Use a nonce again. Whoever sees both texts can learn how the messages differ."""
    ledger: Path | None = None
    """The file that notes used nonces; by default the key file's name with .nonces behind it."""
    law: Path | None = None
    """Also write what a receiver needs instead of the model (*.safetensors)."""
    model: tyro.conf.OmitArgPrefixes[Model] = field(default_factory=Model)
    settings: tyro.conf.OmitArgPrefixes[Settings] = field(default_factory=Settings)
    limits: tyro.conf.OmitArgPrefixes[Limits] = field(default_factory=Limits)

    def check(self) -> None:
        """Raise ValueError for options that are out of range or do not go together."""
        self.settings.check()
        self.limits.check()
        if self.law is not None and self.settings.scheme == "parallel":
            raise ValueError("the receiver of the scheme parallel needs no model and no law: leave out --law")

    def read_message(self) -> Message:
        """The message.

        Raises:
            ValueError: none is given, or several.
            OSError: the file cannot be read.
        """
        given = [part is not None for part in (self.message, self.message_file, self.message_bits)]
        if sum(given) != 1:
            raise ValueError("give one of --message, --message-file and --message-bits")
        if self.message_bits is not None:
            return parse_bits(self.message_bits)
        return read_input(self.message_file) if self.message_file is not None else (self.message or "").encode()


@paragraph_help
@dataclass(frozen=True)
class Decode:
    """Find the message in a text."""

    text_file: tyro.conf.Positional[Path]
    """The text; - is standard input. The prompt may still be in front of it."""
    key: Path
    """The key file."""
    nonce: int | None = None
    """Number of the message, if known."""
    search: int = 16
    """Nonces to try if it is not: 0, 1, 2, ..."""
    law: Path | None = None
    """Read the text with this law, which the sender wrote, instead of the model."""
    model: tyro.conf.OmitArgPrefixes[Model] = field(default_factory=Model)
    settings: tyro.conf.OmitArgPrefixes[Settings] = field(default_factory=Settings)

    def check(self) -> None:
        """Raise ValueError for options that are out of range."""
        self.settings.check()
        if self.search < 1:
            raise ValueError(f"search={self.search}: at least one nonce must be tried")

    def nonces(self) -> range:
        """The nonce that was given, or the first few."""
        return range(self.search) if self.nonce is None else range(self.nonce, self.nonce + 1)

    def read_prompt(self) -> str | None:
        """The prompt; None if none was given and the text is read without a model, where it only helps to recognise it
        in front of the text.

        Raises:
            ValueError: none is given where it is needed, two are, or the file is not UTF-8.
            OSError: the file cannot be read.
        """
        without_model = self.law is not None or self.settings.scheme == "parallel"
        if without_model and self.model.prompt is None and self.model.prompt_file is None:
            return None
        return self.model.read_prompt()


Command = (
    Annotated[Keygen, tyro.conf.subcommand("keygen")]
    | Annotated[Embed, tyro.conf.subcommand("embed")]
    | Annotated[Decode, tyro.conf.subcommand("decode")]
)


def read_input(path: Path) -> bytes:
    """The bytes of a file, or of standard input if it is called -."""
    return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
