"""What the commands `embed` and `decode` of `python -m polar` do once their input has been read."""

import hashlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from polar.text import decoding
from polar.text.channel import Channel, open_channel
from polar.text.decoding import Decoded, decode_parallel, decode_with_law
from polar.text.embedding import Embedded, embed_with_retries
from polar.text.framing import BitString, Message, overhead_bits, payload_bits
from polar.text.keys import Key
from polar.text.ledger import NonceLedger, open_ledger
from polar.text.options import FIRST_NONCES, Decode, Embed, Model
from polar.text.progress import progress
from polar.text.records import load_text_law, save_text_law
from polar.text.settings import Settings
from wm_env.common.command import reason_of, tell
from wm_env.common.files import naming
from wm_env.lm.build.cost import estimate, measure_speed
from wm_env.lm.models.load import dtype_named, load_lm, load_tokenizer
from wm_env.lm.models.stack import stack_of

ATTEMPTS = 4
"""Nonces that are tried when a text cannot be sent."""


def embed(options: Embed, key: Key, message: Message, prompt: str) -> None:
    """Write a text; its nonce is noted before anything of the text gets out, and not if there is no text.

    Raises:
        ValueError, OSError: bad input, one line that says what to do.
        RuntimeError: no text could be written, its nonce may be another's, or it got lost on the way out.
    """
    channel = _open(options.model, prompt, options.settings)
    with open_ledger(options.ledger_file, tell) as ledger:
        nonces = _nonces_to_try(options, ledger)
        if options.settings.scheme == "block":
            tell(_block_estimate(channel, message))
        with progress() as report:
            sent = embed_with_retries(channel, message, key, nonces, options.limits, report)
        ledger.record(sent.nonce)
    try:
        if options.law is not None and sent.law is not None:  # the scheme without a law takes no --law
            save_text_law(sent.law, options.law)
            tell(f"{options.law}: the law of the text, fingerprint {sent.law.fingerprint[:16]}")
        tell(_summary(sent))
        if sent.nonce >= FIRST_NONCES:
            tell(_nonce_to_tell(options, sent.nonce))
        if sent.law is not None:
            tell(f"written with {stack_of(channel.source.lm)}: {_what_receivers_need(channel)}")
        write_output(sent.text.encode(), newline=True)
    except (OSError, KeyboardInterrupt) as stop:
        reason = f"{reason_of(stop)}; " if isinstance(stop, OSError) else ""
        kind = RuntimeError if isinstance(stop, OSError) else KeyboardInterrupt
        raise kind(f"{reason}nonce {sent.nonce} counts as used, as part of its text may be out") from None


def _open(model: Model, prompt: str, settings: Settings) -> Channel:
    """The channel to write or read texts on."""
    lm = load_lm(model.model, device=model.device, dtype=dtype_named(model.dtype), arithmetic=model.arithmetic)
    return open_channel(lm, prompt, settings)


def _nonces_to_try(options: Embed, ledger: NonceLedger) -> Iterator[int]:
    """The nonce that was asked for, or the first few that are free.

    Raises:
        ValueError: the nonce was used before.
    """
    if options.nonce is None:
        return _free_nonces(ledger)
    if not options.allow_nonce_reuse:
        ledger.check_unused(options.nonce)
    return iter([options.nonce])


def _free_nonces(ledger: NonceLedger) -> Iterator[int]:
    nonce = -1
    for _ in range(ATTEMPTS):
        nonce = ledger.first_free(nonce + 1)
        yield nonce


def _block_estimate(channel: Channel, message: Message) -> str:
    """One line on what a message costs in the scheme block: the pools take the time, and how many are needed depends
    on how evenly each can be divided, so the number of blocks is a least one.
    """
    settings, lm = channel.settings, channel.source.lm
    bits = payload_bits(message) + overhead_bits(message)
    blocks = math.ceil(bits / math.log2(settings.candidates))
    pool = settings.pool_settings(b"")
    context = channel.source.context(())
    cost = estimate(lm, [context], pool, blocks=1, batch_size=1)
    seconds = cost.flops / measure_speed(lm, len(context) + settings.block_length, pool)
    return (
        f"{bits} bits with the frame, at most log2 {settings.candidates} in a block of {settings.block_length} tokens: "
        f"{blocks} blocks or more of {cost.canvases} canvases; a block takes about {seconds:.2g} s by the speed just "
        f"measured, so {tqdm.format_interval(round(blocks * seconds))} or more"
    )


def _summary(sent: Embedded) -> str:
    """One line on a text: how long it is, what it carries, and how it differs from the model's own."""
    bits = sent.frame_bits / sent.coded_tokens
    rejected = f"; {sent.rejected} discarded before it, which could not be sent" if sent.rejected else ""
    exact = f"TV to {sent.reference} at most {sent.tv_bound:.3g}" if sent.tv_bound else f"exactly {sent.reference}"
    if sent.tv_estimated:
        exact += " (97.5 % confidence)"
    return (
        f"nonce {sent.nonce}: {sent.payload_bits} bits, {sent.frame_bits} with the frame, in {sent.coded_tokens} of "
        f"{len(sent.tokens)} tokens ({bits:.2f} bits per token); {exact}{rejected}"
    )


def _what_receivers_need(channel: Channel) -> str:
    if channel.source.lm.is_exact:
        return "a receiver needs the same on any machine, or the law file"
    return "computed in floats, so a receiver without a law file needs the same machine and software"


def _nonce_to_tell(options: Embed, nonce: int) -> str:
    """One line for the sender of a text whose nonce the receiver does not try by itself."""
    otherwise = "" if options.law is None else " or the law file"
    return f"decode tries nonces 0 to {FIRST_NONCES - 1} by itself: the receiver needs --nonce {nonce}{otherwise}"


def decode(options: Decode, key: Key, text: bytes, prompt: str | None) -> bool:
    """Print the message of a text; False if there is none.

    Raises:
        ValueError, OSError: bad input, one line that says what to do.
        RuntimeError: the message is not one for a terminal.
    """
    stack = None
    with progress() as report:
        if options.law is not None:
            found = _decode_by_law(options.law, options.nonce, key, text, prompt)
        elif options.settings.scheme == "parallel":
            tokenizer, front = load_tokenizer(options.model.model), (prompt or "").encode()
            found = decode_parallel(tokenizer, text, key, options.nonces(), options.settings, front)
        else:
            channel = _open(options.model, prompt or "", options.settings)
            found = decoding.decode(channel, text, key, options.nonces(), report)
            stack = stack_of(channel.source.lm)
    if found.message is None:
        tell(f"no message: {found.reason} (p-value {found.p_value:.3g})")
        tell(_what_must_agree(options))
        if stack is not None:
            tell(f"read with {stack}; if the sender's differs, ask for the law file of embed --law")
        return False
    tell(f"nonce {found.nonce}, p-value {found.p_value:.3g}")
    write_message(found.message)
    return True


def _decode_by_law(path: Path, nonce: int | None, key: Key, text: bytes, prompt: str | None) -> Decoded:
    """Read the text with the law that was written beside it; `nonce` and `prompt` are None where they are not given.

    Raises:
        ValueError: the law belongs to another prompt or nonce.
    """
    law = load_text_law(path)
    name = f"{path} (fingerprint {law.fingerprint[:16]})"
    front = None if prompt is None else prompt.encode()
    if front is not None and hashlib.sha256(front).hexdigest() != law.about.prompt:
        raise ValueError(f"{name} was made for another prompt: ask the sender for the law of this text")
    if nonce not in (None, law.about.nonce):
        raise ValueError(f"{name} was made for nonce {law.about.nonce}, not {nonce}")
    found = decode_with_law(text, key, law, front or b"")
    if found.message is None and hashlib.sha256(text).hexdigest() != law.about.text:
        tell(f"{name} was made for another text")
    return found


def _what_must_agree(options: Decode) -> str:
    """One line on what makes a text look as if it had no message."""
    if options.law is not None:
        return "the key and every byte of the text must be the sender's; the law file says all else"
    tried = options.nonces()
    nonces = f"{tried[0]}" if len(tried) == 1 else f"{tried[0]} to {tried[-1]}"
    others = "" if options.nonce is not None else "; --nonce N or --search COUNT tries others"
    settings = options.settings
    known = f"key, nonce (tried: {nonces}{others}), scheme ({settings.scheme})"
    if settings.scheme == "parallel":
        return (
            f"{known} and all but a few tokens of the text must be the sender's, and so must the tokenizer "
            f"({options.model.model}) and all other settings"
        )
    return (
        f"{known} and every byte of the text must be the sender's, and so must prompt, model ({options.model.model}), "
        f"temperature ({settings.temperature:g}) and all other settings"
    )


def write_message(message: Message) -> None:
    """Write a message to standard output.

    Raises:
        RuntimeError: bytes that are no plain text, on a terminal, which might take them for commands.
    """
    if isinstance(message, BitString):
        write_output(str(message).encode(), newline=True)
        return
    if sys.stdout.isatty() and not _is_plain_text(message):
        raise RuntimeError(
            f"the message is {len(message)} bytes that are no plain text, which a terminal could take for commands: "
            "give the same command again with > FILE behind it"
        )
    write_output(message, newline=not message.endswith(b"\n"))


def _is_plain_text(data: bytes) -> bool:
    """Whether `data` is UTF-8 without control characters but tab and line end."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\t\n" for character in text.replace("\r\n", "\n"))


def write_output(data: bytes, newline: bool) -> None:
    """Write `data` to standard output as it is; on a terminal, with a line end if asked to."""
    with naming(Path("standard output")):
        sys.stdout.buffer.write(data)
        if newline and sys.stdout.isatty():
            sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()
