"""The options of the four commands, and the input that they name. Free of torch: help and refusals come at once."""

import sys
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from polar.text.canonical import decoded
from polar.text.framing import Message, parse_bits
from polar.text.keys.derivation import check_nonce
from polar.text.keys.ledger import check_ledger, ledger_beside
from polar.text.keys.lock import lock_of
from polar.text.keys.received import seen_beside
from polar.text.schemes import NAMES, load_schemes
from polar.text.settings import LawSettings, Limits, Settings
from wm_env.common.command import is_closed
from wm_env.common.files import (
    MOST_BYTES,
    check_output,
    check_replaceable,
    encoded,
    is_open_as,
    link_target,
    read_all,
    read_file,
)
from wm_env.common.foreign.encodings import text_of
from wm_env.common.help import paragraph_help

FIRST_NONCES = 128
"""Nonces that `decode` tries if it is told nothing."""

MOST_NONCES = 1_000_000
"""More than anyone has the time to try."""

MOST_PROMPT = 1 << 20
"""Bytes of the longest prompt: the model sees the end of a long one, but all of it becomes tokens."""

STDOUT = 1
"""The handle of standard output."""

RECORD_KIND = "covert-watermark text law"
"""The kind of the files that `embed --record` writes."""

if TYPE_CHECKING:
    SchemeName = str

    class SchemeOptions:
        """The settings of every scheme, by its name."""
else:
    SchemeName = Literal[NAMES]
    SchemeOptions = make_dataclass(
        "SchemeOptions",
        [
            (name, tyro.conf.OmitArgPrefixes[type(scheme)], field(default=scheme))
            for name, scheme in load_schemes().items()
            if fields(scheme)
        ],
        frozen=True,
    )


@paragraph_help
@dataclass(frozen=True)
class Model:
    """The language model, and what it continues. Sender and receiver must use the same."""

    model: str = "mini"
    """"mini" (comes with the package), a folder with a checkpoint of LLaDA, Dream or a masked LM of transformers, or a
    hub id OWNER/NAME."""
    prompt: str | None = None
    """What the text continues; may be empty. White space at its ends does not count."""
    prompt_file: Path | None = None
    """The same from a file (UTF-8)."""
    device: str = "cpu"
    """Where the model runs, such as cpu or cuda:0."""
    arithmetic: Literal["exact", "float"] | None = None
    """exact: sender and receiver may have any machines. float: both need the same kind of machine and software. By
    default exact for LLaDA and Dream, unless --dtype is given, and float for encoders."""
    dtype: Literal["float32", "bfloat16", "float64"] | None = None
    """Number format of float arithmetic. float64 rounds logits, so that other machines nearly always find the same; it
    is the default of encoders, float32 that of LLaDA and Dream."""

    def read_prompt(self) -> str:
        """The prompt.

        Raises:
            ValueError: none is given, two are, it is not UTF-8, or too long to be one.
            OSError: the file cannot be read.
        """
        if (self.prompt is None) == (self.prompt_file is None):
            raise ValueError("give either --prompt or --prompt-file")
        if self.prompt_file is not None:
            return read_whole_prompt(self.prompt_file)
        return encoded(self.prompt or "", "--prompt").decode()


@paragraph_help
@dataclass(frozen=True)
class Agreement:
    """What both ends must agree on, besides key, model and prompt."""

    scheme: SchemeName = NAMES[0]
    """stream: token by token, all of the model's entropy. block: in every block one of Q candidates. parallel: n tokens
    at once; the receiver needs no model, only its tokenizer. robust: the model's own law; read after edits and
    inside other texts, with the tokenizer alone."""
    sender: str = ""
    """Who writes, if several use one key, such as the two ends of a conversation: no two senders share anything."""
    check_bits: Literal[32, 64] = 32
    """Bits of the check value."""
    law: tyro.conf.OmitArgPrefixes[LawSettings] = field(default_factory=LawSettings)
    own: tyro.conf.OmitArgPrefixes[SchemeOptions] = field(default_factory=SchemeOptions)

    @property
    def settings(self) -> Settings:
        """The settings of the chosen scheme."""
        schemes = load_schemes() | vars(self.own)
        return Settings(schemes[self.scheme], self.law, encoded(self.sender, "--sender").decode(), self.check_bits)

    def check(self) -> None:
        """Raise ValueError for settings that are out of range, or belong to another scheme."""
        self.settings.check()
        for name, scheme in load_schemes().items():
            given = vars(self.own).get(name, scheme)
            changed = [key for key, value in asdict(scheme).items() if asdict(given)[key] != value]
            if changed and name != self.scheme:
                flag = f"--{changed[0].replace('_', '-')}"
                raise ValueError(f"{flag} belongs to the scheme {name}, and the scheme is {self.scheme}: leave it out")


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
    message_file: Path | None = None
    """The message from a file, any bytes; - is standard input."""
    message: str | None = None
    """The message as text (UTF-8). Others on this machine can see it in the list of processes."""
    message_bits: str | None = None
    """The message as zeros and ones."""
    nonce: int | None = None
    """Number of the message under this key; by default the first that the ledger does not have."""
    allow_nonce_reuse: bool = False
    """Use a nonce again. If all else is the same too, the texts of one message are equal."""
    ledger: Path | None = None
    """The file that notes used nonces; by default the key file's name with .nonces behind it."""
    record: Path | None = None
    """Also write what a receiver needs instead of the model (*.safetensors)."""
    model: tyro.conf.OmitArgPrefixes[Model] = field(default_factory=Model)
    agreement: tyro.conf.OmitArgPrefixes[Agreement] = field(default_factory=Agreement)
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
        self.agreement.check()
        self.limits.check()
        if self.nonce is not None:
            check_nonce(self.nonce, self.agreement.settings.scheme.nonce_limit)
        self._check_not_in_use("--ledger", self.ledger_file)
        if self.record is not None:
            self._check_record(self.record)
        check_ledger(self.ledger_file, None if self.allow_nonce_reuse else self.nonce)

    def _check_record(self, record: Path) -> None:
        check_output(record, "name another --record")
        self._check_not_in_use("--record", record)
        if link_target(record) in (link_target(self.ledger_file), lock_of(self.ledger_file)):
            raise ValueError(f"{record} is the key's ledger or the lock of it: name another --record")
        if not self.agreement.settings.scheme.needs_model:
            raise ValueError(
                f"the receiver of the scheme {self.agreement.scheme} needs no model and no record: leave out --record"
            )
        check_replaceable(record, RECORD_KIND, "name another --record")

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
            raise ValueError("give one of --message-file, --message and --message-bits")
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
    """The text, or a document that holds it; - is standard input. The prompt may still be in front of it."""
    key: Path
    """The key file."""
    nonce: int | None = None
    """Number of the message, if known."""
    search: int | None = None
    """How many nonces to try if it is not; 128 if not given. They follow those that were seen."""
    ledger: Path | None = None
    """The file that notes which messages were read; by default the key file's name with .seen behind it."""
    record: Path | None = None
    """Read the text with this record, which the sender wrote, instead of the model."""
    model: tyro.conf.OmitArgPrefixes[Model] = field(default_factory=Model)
    agreement: tyro.conf.OmitArgPrefixes[Agreement] = field(default_factory=Agreement)

    @property
    def ledger_file(self) -> Path:
        """Where messages that were read are noted."""
        return seen_beside(self.key) if self.ledger is None else self.ledger

    def check(self) -> None:
        """Raise ValueError for options that are out of range or do not go together."""
        self.agreement.check()
        if self.nonce is not None:
            check_nonce(self.nonce, self.agreement.settings.scheme.nonce_limit)
        if self.search is None:
            return
        if self.nonce is not None or self.record is not None:
            raise ValueError("--search is for texts of which neither --nonce nor --record is known: leave it out")
        if not 1 <= self.search <= MOST_NONCES:
            raise ValueError(f"search={self.search}: from 1 to {MOST_NONCES} nonces can be tried")

    @property
    def needs_model(self) -> bool:
        """Whether the text is read with the model."""
        return self.record is None and self.agreement.settings.scheme.needs_model

    def read_prompt(self) -> str | None:
        """The prompt; None if none was given and the text is read without a model, where it only helps to recognise it
        in front of the text.

        Raises:
            ValueError: none is given where it is needed, two are, it is not UTF-8, or too long to be one.
            OSError: the file cannot be read.
        """
        if not self.needs_model and self.model.prompt is None and self.model.prompt_file is None:
            return None
        return self.model.read_prompt()


@paragraph_help
@dataclass(frozen=True)
class Detect:
    """Say whether a text of the scheme robust is marked with a key, and which parts of it are."""

    text_file: tyro.conf.Positional[Path]
    """The text, or a document that holds it; - is standard input."""
    key: Path
    """The key file."""
    search: int = FIRST_NONCES
    """How many nonces are looked for, from 0 on."""
    model: str = "mini"
    """The model, whose tokenizer is needed: "mini", a folder, or a hub id OWNER/NAME."""
    payload_bits: int = 32
    """Length of messages in bits, as the sender's."""
    clock: Literal["words", "tokens"] = "words"
    """As the sender's."""
    sender: str = ""
    """As the sender's."""

    def check(self) -> None:
        """Raise ValueError for options that are out of range."""
        if not 1 <= self.search <= MOST_NONCES:
            raise ValueError(f"search={self.search}: from 1 to {MOST_NONCES} nonces can be tried")


Command = (
    Annotated[Keygen, tyro.conf.subcommand("keygen")]
    | Annotated[Embed, tyro.conf.subcommand("embed")]
    | Annotated[Decode, tyro.conf.subcommand("decode")]
    | Annotated[Detect, tyro.conf.subcommand("detect")]
)


def read_whole_prompt(path: Path) -> str:
    """The prompt in a file.

    Raises:
        ValueError: it is no text, or too long to be a prompt.
        OSError: it cannot be read.
    """
    text = decoded(read_file(path, MOST_PROMPT))
    if text is None:
        raise ValueError(f"{path} is not UTF-8 text: save it as UTF-8")
    return text


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


def read_received(path: Path) -> bytes:
    """The bytes of a received text, as `read_input` reads them.

    Raises:
        ValueError: as there, or they are no text in UTF-8 or in what their byte-order mark says.
        OSError: it cannot be read.
    """
    data = read_input(path)
    try:
        text_of(data)
    except ValueError as error:
        raise ValueError(f"{path} is {error}, or give another file") from None
    return data
