"""The options of the three commands, and the input that they name. Free of torch: help and refusals come at once."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from polar.text.framing import Message, parse_bits
from polar.text.keys import check_nonce
from polar.text.ledger import check_ledger, ledger_beside, lock_of
from polar.text.settings import Limits, Settings
from wm_env.common.command import is_closed
from wm_env.common.files import (
    MOST_BYTES,
    check_output,
    encoded,
    is_open_as,
    link_target,
    read_all,
    read_file,
    read_text,
)
from wm_env.common.help import paragraph_help

FIRST_NONCES = 16
"""Nonces that `decode` tries if it is told nothing: 0 to 15."""

MOST_NONCES = 1_000_000
"""More than anyone has the time to try."""

STDOUT = 1
"""The handle of standard output."""


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
    arithmetic: Literal["exact", "float"] | None = None
    """exact: sender and receiver may have any machines. float: both need the same kind of machine and software. By
    default exact for LLaDA and Dream, unless --dtype is given, and float for encoders."""
    dtype: Literal["float32", "bfloat16", "float64"] | None = None
    """Number format of float arithmetic; float32 by default."""

    def read_prompt(self) -> str:
        """The prompt.

        Raises:
            ValueError: none is given, two are, it is not UTF-8, or too long to be one.
            OSError: the file cannot be read.
        """
        if (self.prompt is None) == (self.prompt_file is None):
            raise ValueError("give either --prompt or --prompt-file")
        if self.prompt_file is not None:
            return read_text(self.prompt_file)
        return encoded(self.prompt or "", "--prompt").decode()


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
    """Number of the message under this key; by default the first that the ledger does not have. From 16 on the receiver
    has to be told."""
    allow_nonce_reuse: bool = False
    """Use a nonce again. Whoever sees both texts can learn how the messages differ."""
    ledger: Path | None = None
    """The file that notes used nonces; by default the key file's name with .nonces behind it."""
    law: Path | None = None
    """Also write what a receiver needs instead of the model (*.safetensors)."""
    model: tyro.conf.OmitArgPrefixes[Model] = field(default_factory=Model)
    settings: tyro.conf.OmitArgPrefixes[Settings] = field(default_factory=Settings)
    limits: tyro.conf.OmitArgPrefixes[Limits] = field(default_factory=Limits)

    @property
    def ledger_file(self) -> Path:
        """Where used nonces are noted."""
        return ledger_beside(self.key) if self.ledger is None else self.ledger

    def check(self) -> None:
        """Refuse what a text would be made for in vain.

        Raises:
            ValueError: options are out of range or do not go together, the nonce was used, or the ledger is damaged.
            OSError: a file that is to be written cannot be.
        """
        self.settings.check()
        self.limits.check()
        if self.nonce is not None:
            check_nonce(self.nonce)
        self._check_not_in_use("--ledger", self.ledger_file)
        if self.law is not None:
            self._check_law(self.law)
        check_ledger(self.ledger_file, None if self.allow_nonce_reuse else self.nonce)

    def _check_law(self, law: Path) -> None:
        check_output(law, "name another --law")
        self._check_not_in_use("--law", law)
        if link_target(law) in (link_target(self.ledger_file), lock_of(self.ledger_file)):
            raise ValueError(f"{law} is the key's ledger or the lock of it: name another --law")
        if self.settings.scheme == "parallel":
            raise ValueError("the receiver of the scheme parallel needs no model and no law: leave out --law")

    def _check_not_in_use(self, option: str, output: Path) -> None:
        """Raise ValueError if the file that is to be written is one that the command reads, or prints the text to."""
        if is_open_as(STDOUT, output):
            # It would be renamed over the file that the text goes to.
            raise ValueError(f"{output} is where standard output goes, and the text with it: name another {option}")
        read = {"the key": self.key, "--message-file": self.message_file, "--prompt-file": self.model.prompt_file}
        target = link_target(output)
        for name, path in read.items():
            if path is not None and target == link_target(path):
                raise ValueError(f"{output} is {name}: name another {option}")
        if target.is_file() and target.parent == link_target(Path(self.model.model)):
            raise ValueError(f"{output} is a file of the model: name another {option}")

    def read_message(self) -> Message:
        """The message.

        Raises:
            ValueError: none is given, or several, or it is not UTF-8, or too long.
            OSError: the file cannot be read.
        """
        given = [part is not None for part in (self.message, self.message_file, self.message_bits)]
        if sum(given) != 1:
            raise ValueError("give one of --message, --message-file and --message-bits")
        if self.message_bits is not None:
            return parse_bits(self.message_bits)
        if self.message_file is not None:
            return read_input(self.message_file)
        return encoded(self.message or "", "--message")


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
    search: int | None = None
    """Nonces to try if it is not: 0, 1, 2, ...; 16 if not given."""
    law: Path | None = None
    """Read the text with this law, which the sender wrote, instead of the model."""
    model: tyro.conf.OmitArgPrefixes[Model] = field(default_factory=Model)
    settings: tyro.conf.OmitArgPrefixes[Settings] = field(default_factory=Settings)

    def check(self) -> None:
        """Raise ValueError for options that are out of range or do not go together."""
        self.settings.check()
        if self.nonce is not None:
            check_nonce(self.nonce)
        if self.search is None:
            return
        if self.nonce is not None or self.law is not None:
            raise ValueError("--search is for texts of which neither --nonce nor --law is known: leave it out")
        if not 1 <= self.search <= MOST_NONCES:
            raise ValueError(f"search={self.search}: from 1 to {MOST_NONCES} nonces can be tried")

    def nonces(self) -> range:
        """The nonce that was given, or the first few."""
        if self.nonce is not None:
            return range(self.nonce, self.nonce + 1)
        return range(FIRST_NONCES if self.search is None else self.search)

    def read_prompt(self) -> str | None:
        """The prompt; None if none was given and the text is read without a model, where it only helps to recognise it
        in front of the text.

        Raises:
            ValueError: none is given where it is needed, two are, it is not UTF-8, or too long to be one.
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


def read_input(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a file, or of standard input if it is called -.

    Raises:
        ValueError: standard input is closed, or there are more than `most` bytes.
        OSError: it cannot be read.
    """
    if str(path) != "-":
        return read_file(path, most)
    if is_closed(sys.stdin):
        raise ValueError("standard input is closed: name a file instead of -")
    return read_all(sys.stdin.buffer, "standard input", most)
