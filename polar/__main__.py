"""Hide a message in a text, and find it again.

    python -m polar keygen secret.key
    python -m polar embed --key secret.key --prompt-file prompt.txt --message-file message.bin > text.txt
    python -m polar decode --key secret.key --prompt-file prompt.txt text.txt > message.bin

With --scheme parallel the receiver needs no model: text, key, settings and the model's tokenizer are enough.

Texts and payloads go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 bad
arguments or input, 3 the text carries no message, 130 interrupted.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from wm_env.startup import INTERRUPTED, quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import torch
    import tyro

    from polar.channel import Channel, Settings, open_channel
    from polar.decoding import Decoded, decode, decode_parallel, decode_with_law
    from polar.embedding import Embedded, Limits, embed_with_retries
    from polar.framing import BitString, Message, parse_bits
    from polar.records import load_text_law, save_text_law
    from polar.secrets import NonceLedger, load_key, new_key, open_ledger, save_key
    from wm_env.lm.llada import load_lm, load_tokenizer
    from wm_env.lm.stack import stack_of

ATTEMPTS = 4
"""Nonces that are tried when a text cannot be sent."""

DONE, FAILED, BAD_INPUT, NO_MESSAGE = range(4)


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

    def open(self, settings: Settings) -> Channel:
        """The channel to write or read texts on."""
        prompt = self.read_prompt()
        return open_channel(load_lm(self.model, device=self.device, dtype=getattr(torch, self.dtype)), prompt, settings)


@dataclass(frozen=True)
class Keygen:
    """Write a new key to a file that only you can read. It never overwrites one."""

    file: tyro.conf.Positional[Path]
    """The key file."""


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


Command = (
    Annotated[Keygen, tyro.conf.subcommand("keygen")]
    | Annotated[Embed, tyro.conf.subcommand("embed")]
    | Annotated[Decode, tyro.conf.subcommand("decode")]
)


def read_input(path: Path) -> bytes:
    """The bytes of a file, or of standard input if it is called -."""
    return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()


def keygen(options: Keygen) -> int:
    """Write a key file."""
    try:
        save_key(new_key(), options.file)
    except FileExistsError:
        raise ValueError(f"{options.file} exists, and keys are never overwritten: name another file") from None
    tell(f"{options.file}: a new key; keep it secret, and give it to the receiver over a safe channel")
    return DONE


def embed(options: Embed) -> int:
    """Write a text; its nonce is noted before the text is printed, and not if there is no text."""
    if options.law is not None and options.settings.scheme == "parallel":
        raise ValueError("the receiver of the scheme parallel needs no model and no law: leave out --law")
    key, message = load_key(options.key), options.read_message()
    channel = options.model.open(options.settings)
    with open_ledger(options.ledger or options.key.with_name(options.key.name + ".nonces")) as ledger:
        sent = embed_with_retries(channel, message, key, nonces_to_try(options, ledger), options.limits)
        if options.law is not None:
            assert sent.law is not None
            save_text_law(sent.law, options.law)
            tell(f"{options.law}: the law of the text, fingerprint {sent.law.fingerprint[:16]}")
        ledger.record(sent.nonce)
    try:
        tell(summary(sent))
        if sent.law is not None:
            tell(f"written with {stack_of(channel.source.lm)}: a receiver without a law file needs the same")
        write_output(sent.text.encode(), newline=True)
    except (OSError, KeyboardInterrupt) as stop:
        reason = f"{stop}; " if str(stop) else ""
        raise type(stop)(f"{reason}nonce {sent.nonce} counts as used, as part of its text may be out") from None
    return DONE


def nonces_to_try(options: Embed, ledger: NonceLedger) -> Iterator[int]:
    """The nonce that was asked for, or the first few that are free.

    Raises:
        ValueError: the nonce was used before.
    """
    if options.nonce is None:
        nonce = -1
        for _ in range(ATTEMPTS):
            nonce = ledger.first_free(nonce + 1)
            yield nonce
        return
    if ledger.is_used(options.nonce) and not options.allow_nonce_reuse:
        raise ValueError(
            f"nonce {options.nonce} was used with this key: the next free one is {ledger.first_free()} "
            "(or --allow-nonce-reuse, if you know what it gives away)"
        )
    yield options.nonce


def summary(sent: Embedded) -> str:
    """One line on a text: how long it is, what it carries, and how it differs from the model's own."""
    bits = sent.frame_bits / sent.coded_tokens
    rejected = f"; {sent.rejected} nonces before it gave texts that could not be sent" if sent.rejected else ""
    exact = "exactly the model's law" if sent.tv_bound == 0 else f"TV to the model's law at most {sent.tv_bound:.3g}"
    return (
        f"nonce {sent.nonce}: {sent.payload_bits} bits, {sent.frame_bits} with the frame, in {sent.coded_tokens} of "
        f"{len(sent.tokens)} tokens ({bits:.2f} bits per token); {exact}{rejected}"
    )


def decode_text(options: Decode) -> int:
    """Print the message of a text, if it has one."""
    key, text = load_key(options.key), read_input(options.text_file)
    if options.law is not None:
        found, stack = decode_by_law(options, text), None
    elif options.settings.scheme == "parallel":
        found, stack = decode_without_model(options, text), None
    else:
        nonces = nonces_to_read(options)
        channel = options.model.open(options.settings)
        found, stack = decode(channel, text, key, nonces), stack_of(channel.source.lm)
    if found.message is None:
        tell(f"no message: {found.reason} (p-value {found.p_value:.3g})")
        if stack is not None:
            tell(f"read with {stack}; if the sender's differs, ask for the law file of embed --law")
        return NO_MESSAGE
    tell(f"nonce {found.nonce}, p-value {found.p_value:.3g}")
    if isinstance(found.message, BitString):
        write_output(str(found.message).encode(), newline=True)
    else:
        write_output(found.message)
    return DONE


def nonces_to_read(options: Decode) -> Iterable[int]:
    """The nonce that was given, or the first few."""
    return range(options.search) if options.nonce is None else [options.nonce]


def decode_without_model(options: Decode, text: bytes) -> Decoded:
    """Read a text of the scheme parallel with the tokenizer of the model."""
    tokenizer = load_tokenizer(options.model.model)
    prompt = read_known_prompt(options.model) or b""
    return decode_parallel(tokenizer, text, load_key(options.key), nonces_to_read(options), options.settings, prompt)


def read_known_prompt(model: Model) -> bytes | None:
    """The prompt, None if none was given: without a model it only helps to recognise it in front of a text."""
    return None if model.prompt is None and model.prompt_file is None else model.read_prompt().encode()


def decode_by_law(options: Decode, text: bytes) -> Decoded:
    """Read the text with the law that was written beside it.

    Raises:
        ValueError: the law belongs to another prompt or nonce.
    """
    assert options.law is not None
    law = load_text_law(options.law)
    name = f"{options.law} (fingerprint {law.fingerprint[:16]})"
    prompt = read_known_prompt(options.model)
    if prompt is not None and hashlib.sha256(prompt).hexdigest() != law.about["prompt"]:
        raise ValueError(f"{name} was made for another prompt: ask the sender for the law of this text")
    if options.nonce not in (None, law.about["nonce"]):
        raise ValueError(f"{name} was made for nonce {law.about['nonce']}, not {options.nonce}")
    found = decode_with_law(text, load_key(options.key), law, prompt or b"")
    if found.message is None and hashlib.sha256(text).hexdigest() != law.about["text"]:
        tell(f"{name} was made for another text")
    return found


def write_output(data: bytes, newline: bool = False) -> None:
    """Write `data` to standard output as it is; on a terminal, with a line end if asked to."""
    sys.stdout.buffer.write(data)
    if newline and sys.stdout.isatty():
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


def tell(line: str) -> None:
    """A message for people."""
    print(line, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    try:
        options = tyro.cli(Command, prog="python -m polar", description=__doc__, args=arguments)
        if isinstance(options, Keygen):
            return keygen(options)
        return embed(options) if isinstance(options, Embed) else decode_text(options)
    except (ValueError, OSError) as error:
        tell(f"error: {error}")
        return BAD_INPUT
    except RuntimeError as error:
        tell(f"error: {error}")
        return FAILED
    except KeyboardInterrupt as stop:
        tell(f"interrupted: {str(stop) or 'no text was written, and no nonce was used'}")
        return INTERRUPTED


if __name__ == "__main__":
    raise SystemExit(main())
