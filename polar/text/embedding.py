"""A message in, a text out.

    channel = open_channel(load_lm("mini"), "The mayor said on Monday", Settings())
    sent = embed(channel, b"user 4711", key, nonce=0)
    decode(channel, sent.text.encode(), key, nonces=[0]).message

Both ends open a channel (`polar.text.channel`) with the same model, prompt and settings; `decode` is in
`polar.text.decoding`.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from polar.text.arithmetic import NoEntropyError
from polar.text.canonical import is_own_form
from polar.text.channel import Channel
from polar.text.decoding import text_forms
from polar.text.framing import Message, payload_bits
from polar.text.keys.derivation import message_keys, text_hash
from polar.text.keys.key import Key
from polar.text.records import About, Record
from polar.text.scheme import Tokens, UnfitTextError, VariationBound, Writing
from polar.text.settings import Limits
from wm_env.common.command import WorkFailedError
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.common.progress import Report, no_report


@dataclass(frozen=True)
class Embedded:
    """A text with a message in it.

    Attributes:
        text: the text, to be put behind the prompt as it is.
        tokens: its token ids.
        nonce: the nonce of the message.
        coded_tokens: tokens until the message was in; the others end the text.
        payload_bits: bits of the message.
        sent_bits: the same with what checks them, such as header and check value.
        cost: how the law of the text differs from the model's.
        record: everything but the key that a receiver needs; None if the receiver needs no model.
        rejected: nonces before this one whose texts could not be sent. If a share q of all texts is rejected, that
            takes the law of those that are sent at most q further away from the model's (total variation).
    """

    text: str
    tokens: Tokens
    nonce: int
    coded_tokens: int
    payload_bits: int
    sent_bits: int
    cost: VariationBound
    record: Record | None
    rejected: int = 0

    def summary(self) -> str:
        """One line: how long the text is, what it carries, and how it differs from the model's own."""
        bits = self.sent_bits / self.coded_tokens
        rejected = f"; {self.rejected} discarded before it, which could not be sent" if self.rejected else ""
        return (
            f"nonce {self.nonce}: {self.payload_bits} bits, {self.sent_bits} with the check, in {self.coded_tokens} "
            f"of {len(self.tokens)} tokens ({bits:.2f} bits per token); {self.cost}{rejected}"
        )


@usual_torch()
def embed(
    channel: Channel,
    message: Message,
    key: Key,
    nonce: int,
    limits: Limits | None = None,
    report: Report = no_report,
) -> Embedded:
    """Write a text that carries `message`, and check that it decodes: from its bytes, as a receiver reads them.

    `report` is told the bits that are in, and then the tokens that end the text.

    Raises:
        MessageTooLongError: the message needs more than the allowed blocks; says how long it may be.
        NoEntropyError: the model leaves no choice for too long.
        UnfitTextError: the text is not UTF-8, or failed the check. Another nonce helps.
    """
    settings, limits = channel.settings, limits or Limits()
    limits.check()
    keys = message_keys(key, nonce, settings, text_hash(channel.prompt))
    written = settings.scheme.write(Writing(channel, message, keys, limits, report))
    raw = channel.source.vocabulary.text(written.tokens)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise UnfitTextError(f"with nonce {nonce} the model wrote bytes that are no UTF-8") from None
    if settings.law.form == "canonical" and not is_own_form(text):
        raise UnfitTextError(f"with nonce {nonce} the text is not in canonical form")
    attempt = written.read(raw, keys, no_report)
    if attempt.message != message or raw not in text_forms(raw, "", settings):
        raise UnfitTextError(f"with nonce {nonce} the text does not decode: {attempt.reason or 'another message'}")
    record = None
    if written.answers is not None:
        fingerprint, prompt = channel.source.lm.fingerprint, text_hash(channel.prompt)
        record = Record(About(settings, nonce, fingerprint, prompt, hashlib.sha256(raw).hexdigest()), written.answers)
    return Embedded(
        text=text,
        tokens=written.tokens,
        nonce=nonce,
        coded_tokens=written.coded_tokens,
        payload_bits=payload_bits(message),
        sent_bits=settings.scheme.sent_bits(message, settings.check_bits),
        cost=written.cost,
        record=record,
    )


@usual_torch()
def embed_with_retries(
    channel: Channel,
    message: Message,
    key: Key,
    nonces: Iterable[int],
    limits: Limits | None = None,
    report: Report = no_report,
) -> Embedded:
    """`embed` with the first of the nonces whose text can be sent.

    Raises:
        MessageTooLongError: as `embed` does, at once.
        NoEntropyError, UnfitTextError: of the last nonce.
    """
    failure: WorkFailedError = UnfitTextError("there is no nonce to try")
    rejected = 0
    for rejected, nonce in enumerate(nonces):
        try:
            return replace(embed(channel, message, key, nonce, limits, report), rejected=rejected)
        except (NoEntropyError, UnfitTextError) as error:
            failure = error
    if rejected:
        raise type(failure)(f"{failure}; {rejected + 1} nonces were tried")
    raise failure
