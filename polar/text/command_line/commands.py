"""What the commands `embed` and `decode` of `python -m polar` do once their input has been read."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING

from polar.text.canonical import canonical, canonical_prompt, decoded
from polar.text.command_line.options import FIRST_NONCES, Decode, Detect, Embed, Model
from polar.text.command_line.output import write_message, write_passage, write_text_sent
from polar.text.decoding import Decoded, decode_with_record, decode_with_tokenizer, text_forms
from polar.text.decoding import decode as decode_with_model
from polar.text.framing import Message
from polar.text.keys.derivation import message_keys, text_hash
from polar.text.keys.key import Key
from polar.text.keys.ledger import NonceLedger, open_ledger
from polar.text.keys.received import Seen, nonces_to_try, note_seen, read_seen, what_was_seen
from polar.text.settings import Settings
from wm_env.common.command import WorkFailedError, reason_of, tell
from wm_env.common.progress import ProgressBar

if TYPE_CHECKING:
    from polar.text.channel import Channel
    from wm_env.lm.tokenizer import TextTokenizer

ATTEMPTS = 4
"""Nonces that are tried when a text cannot be sent."""


def _digest(text: bytes) -> str:
    """SHA-256 of a received text, in hex; copies that differ in white space, line ends or encoding are one text."""
    plain = decoded(text)
    return hashlib.sha256(text if plain is None else canonical(plain).encode()).hexdigest()


def import_models() -> None:
    """Import what models need, which takes seconds, at a moment when it may be interrupted."""
    import wm_env.lm.models.load  # noqa: F401


def run_embed(options: Embed, key: Key, message: Message, prompt: str) -> None:
    """Write a text; its nonce is noted before anything of the text gets out, and not if there is no text.

    Raises:
        ValueError, OSError: bad input, one line that says what to do.
        WorkFailedError: no text could be written, its nonce may be another's, or it got lost on the way out.
    """
    from polar.text.embedding import embed_with_retries
    from polar.text.records import save_record
    from wm_env.lm.models.stack import stack_of

    channel = _open(options.model, prompt, options.agreement.settings)
    is_new = not options.ledger_file.exists()
    with open_ledger(options.ledger_file, tell) as ledger:
        nonces = _nonces_to_use(options, ledger)
        if line := channel.settings.scheme.estimate(channel, message):
            tell(line)
        with ProgressBar() as bar:
            sent = embed_with_retries(channel, message, key, nonces, options.limits, bar.update)
        ledger.record(sent.nonce)
    try:
        if options.record is not None and sent.record is not None:  # the scheme without a record takes no --record
            save_record(sent.record, options.record)
            tell(f"{options.record}: the record of the text, fingerprint {sent.record.fingerprint[:16]}")
        tell(sent.summary())
        if is_new:
            whose = f" who is called {channel.settings.sender}" if channel.settings.sender else ""
            tell(
                f"{options.ledger_file}: a new list of nonces; another holder of the key{whose} may use the same ones: "
                "give each holder a --sender of its own"
            )
        if sent.nonce >= FIRST_NONCES:
            otherwise = "" if options.record is None else " or the record"
            needed = f"--search {sent.nonce + 1}" if channel.settings.scheme.finds_nonces else f"--nonce {sent.nonce}"
            tell(
                f"a receiver that has read none of this key's messages tries nonces 0 to {FIRST_NONCES - 1}: it needs "
                f"{needed}{otherwise}"
            )
        if sent.record is not None:
            tell(f"written with {stack_of(channel.source.lm)}: {_what_receivers_need(channel)}")
        write_text_sent(sent.text)
    except (OSError, WorkFailedError, KeyboardInterrupt) as stop:
        reason = "" if isinstance(stop, KeyboardInterrupt) else f"{reason_of(stop)}; "
        kind = KeyboardInterrupt if isinstance(stop, KeyboardInterrupt) else WorkFailedError
        raise kind(f"{reason}nonce {sent.nonce} counts as used, as part of its text may be out") from None


def _open(model: Model, prompt: str, settings: Settings) -> "Channel":
    """The channel to write or read texts on."""
    from polar.text.channel import open_channel
    from wm_env.lm.models.load import dtype_named, load_lm

    lm = load_lm(model.model, device=model.device, dtype=dtype_named(model.dtype), arithmetic=model.arithmetic)
    return open_channel(lm, prompt, settings)


def _what_receivers_need(channel: "Channel") -> str:
    if channel.source.lm.is_exact:
        return "a receiver needs the same on any machine, or the record"
    if channel.source.lm.is_guarded:
        return "rounded float64, which other machines nearly always compute too; the record makes it sure"
    return "computed in floats, so a receiver without the record needs the same machine and software"


def _nonces_to_use(options: Embed, ledger: NonceLedger) -> Iterator[int]:
    """The nonce that was asked for, or the first few that are free; ValueError if the nonce was used before."""
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


def run_decode(options: Decode, key: Key, text: bytes, prompt: str | None) -> bool:
    """Print the message of a text; False if there is none.

    Raises:
        ValueError, OSError: bad input, one line that says what to do.
        WorkFailedError: the message is not one for a terminal.
    """
    settings = options.agreement.settings
    seen = read_seen(options.ledger_file)
    if options.nonce is None:
        count, limit = options.search or FIRST_NONCES, settings.scheme.nonce_limit
        # A scheme that finds nonces by itself looks for all of them at once, in whatever order.
        forms = text_forms(text, prompt or "", settings) if seen and not settings.scheme.finds_nonces else []
        nonces = nonces_to_try(seen, settings.sender, count, set(map(_digest, forms)), limit)
    else:
        nonces = [options.nonce]
    start, stack = process_time(), None
    with ProgressBar() as bar:
        if options.record is not None:
            found, settings, front = _decode_by_record(options.record, options.nonce, key, text, prompt)
        elif not options.needs_model:
            front = ""
            found = decode_with_tokenizer(
                _tokenizer(options.model.model), text, key, nonces, settings, prompt or "", bar.update
            )
        else:
            from wm_env.lm.models.stack import stack_of

            channel = _open(options.model, prompt or "", settings)
            front, stack = text_hash(channel.prompt), stack_of(channel.source.lm)
            found = decode_with_model(channel, text, key, nonces, bar.update)
    if options.record is None and options.nonce is None:
        tell(f"{found.tried} of {len(nonces)} nonces tried in {process_time() - start:.1f} s of processor time")
    if found.message is None:
        tell(f"no message: {found.reason} (p-value {found.p_value:.3g})")
        tell(_what_must_agree(options, nonces))
        if stack is not None:
            tell(f"read with {stack}; if the sender's differs, ask for the record of embed --record")
        return False
    tell(f"nonce {found.nonce}, p-value {found.p_value:.3g}")
    assert found.nonce is not None
    keys = message_keys(key, found.nonce, settings, front)
    message = keys.derive("message that was read", repr(found.message).encode()).hex()
    new = Seen(settings.sender, found.nonce, keys.use.hex(), _digest(found.form or text), message)
    try:
        seen = note_seen(options.ledger_file, new, tell)
    except (OSError, ValueError) as error:
        tell(f"{reason_of(error)}; that this message was read is not noted")
    if line := what_was_seen(seen, new):
        tell(line)
    write_message(found.message)
    return True


def run_detect(options: Detect, key: Key, text: bytes) -> bool:
    """Print the score of a text and its marked parts; False if its p-value is `MARKED` or more.

    Raises:
        ValueError: the text is not UTF-8 or too long, or a setting is out of range.
        OSError: the tokenizer is missing.
    """
    from polar.text.schemes.robust.messages import MARKED, plain_forms
    from polar.text.schemes.robust.reader import Receiver
    from polar.text.schemes.robust.settings import RobustSettings

    letters = decoded(text)
    if letters is None:
        raise ValueError(f"{options.text_file} is not UTF-8: give a text")
    settings = RobustSettings(options.payload_bits, clock=options.clock, use=options.sender)
    receiver = Receiver(key, _tokenizer(options.model), settings, range(options.search))
    form = plain_forms(letters)[0]
    found = receiver.detect(form)
    tell(f"evidence {found.score:.1f} bits, p-value {found.p_value:.3g}")
    if found.p_value >= MARKED:
        tell("not marked with this key, as far as this text says")
        return False
    for start, end in found.parts():
        write_passage(start, end, form[start:end])
    return True


def _tokenizer(model: str) -> "TextTokenizer":
    """The tokenizer of a model, without its weights."""
    from wm_env.lm.models.folder import find_model
    from wm_env.lm.tokenizer import read_text_tokenizer

    return read_text_tokenizer(find_model(model, ["*.json", "merges.txt"]))


def _decode_by_record(
    path: Path, nonce: int | None, key: Key, text: bytes, prompt: str | None
) -> tuple[Decoded, Settings, str]:
    """Read the text with the record that was written beside it; `nonce` and `prompt` are None where they are not given.

    ValueError if the record belongs to another prompt or nonce.
    """
    from polar.text.records import load_record

    record = load_record(path)
    about, name = record.about, f"{path} (fingerprint {record.fingerprint[:16]})"
    if prompt is not None and about.settings.law.form == "canonical":
        prompt = canonical_prompt(prompt)
    if prompt is not None and text_hash(prompt) != about.prompt:
        raise ValueError(f"{name} was made for another prompt: ask the sender for the record of this text")
    if nonce not in (None, about.nonce):
        raise ValueError(f"{name} was made for nonce {about.nonce}, not {nonce}")
    found = decode_with_record(text, key, record, prompt or "")
    if found.message is None and hashlib.sha256(text).hexdigest() != about.text:
        tell(f"{name} was made for another text")
    return found, about.settings, about.prompt


def _what_must_agree(options: Decode, tried: list[int]) -> str:
    """One line on what makes a text look as if it had no message."""
    if options.record is not None:
        return "the key and the text must be the sender's; the record says all else"
    nonces = f"{tried[0]}" if len(tried) == 1 else f"{min(tried)} to {max(tried)}"
    others = "" if options.nonce is not None else "; --nonce N or --search COUNT tries others"
    agreement = options.agreement
    sender = f", sender ({agreement.sender})" if agreement.sender else ""
    known = f"key, nonce (tried: {nonces}{others}), scheme ({agreement.scheme}){sender}"
    if not options.needs_model:
        return (
            f"{known} and all but a few words of the text must be the sender's, and so must the tokenizer "
            f"({options.model.model}) and all other settings"
        )
    return (
        f"{known} and every word of the text must be the sender's, and so must prompt, model ({options.model.model}), "
        f"temperature ({agreement.law.temperature:g}) and all other settings"
    )
