"""A text in, its message out, or the word that there is none."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from transformers import PreTrainedTokenizerFast

from polar.text.arithmetic import NoMessageError, Receiver
from polar.text.channel import Channel, pool_source
from polar.text.framing import CHECK_BITS, Message
from polar.text.keys import Key, MessageKeys
from polar.text.progress import Report, silence, watched
from polar.text.records import TextLaw, recorded_law, recorded_pool
from polar.text.schemes import block, stream
from polar.text.schemes.block import CandidatePool
from polar.text.schemes.evidence import log2_evidence
from polar.text.schemes.parallel import scheme as parallel
from polar.text.settings import Settings
from polar.text.sources import drive
from wm_env.lm.text import is_text, token_bytes

_KEPT_BYTES = 1 << 28
"""Laws of tokens that other forms and nonces need again are kept up to so much memory."""


@dataclass(frozen=True)
class Decoded:
    """What a text says to the owner of a key.

    Attributes:
        message: the message, None if there is none.
        nonce: its nonce, None if there is no message.
        p_value: bound on the probability that a text made without the key looks at least as much like one made with
            it, in [0, 1]. Valid for whatever texts, and conservative: at most a share x of them gets x or less.
        reason: why there is no message, empty if there is one.
    """

    message: Message | None
    nonce: int | None
    p_value: float
    reason: str = ""


def decode(channel: Channel, text: bytes, key: Key, nonces: Iterable[int], report: Report = silence) -> Decoded:
    """Look for a message of `key` in `text`, with one nonce after the other.

    The prompt in front of the text, CRLF line ends and a lost space in front are recognised: every form that the text
    may have is tried.
    `report` is told the bytes that are read, from 0 with every nonce and form.
    """
    if channel.settings.scheme == "parallel":
        return decode_parallel(channel.source.lm.tokenizer, text, key, nonces, channel.settings, channel.prompt)
    law = lru_cache(maxsize=_KEPT_BYTES // (8 * len(channel.source.lm.banned)))(channel.source.law)

    def read(keys: MessageKeys, receiver: Receiver) -> None:
        if channel.settings.scheme == "stream":
            walk = stream.walk(channel.source.vocabulary, keys, receiver)
            drive(watched(walk, partial(_bytes_read, receiver, keys.nonce), report), law)
        else:
            blocks = block.walk(keys, receiver, channel.settings.code_budget, partial(_weigh, channel, receiver))
            drive(watched(blocks, partial(_bytes_read, receiver, keys.nonce), report), pool_source(channel, keys).pool)

    return _search(read, text_forms(text, channel.prompt), key, channel.settings.scheme, nonces)


def _bytes_read(receiver: Receiver, nonce: int) -> tuple[int, int, str]:
    return receiver.position, len(receiver.text), f"nonce {nonce}, bytes"


def _weigh(channel: Channel, receiver: Receiver, pool: CandidatePool, candidate: int) -> None:
    """Tell the receiver what its last block says for the key. A top pool is public, so it says nothing."""
    if draws := channel.settings.draws:
        block_text = receiver.text[receiver.position - len(pool.text[candidate]) :]
        receiver.note_evidence(log2_evidence(channel.source.vocabulary, pool, candidate, draws, block_text))


def decode_with_law(text: bytes, key: Key, law: TextLaw, prompt: bytes = b"") -> Decoded:
    """Read a text without a model, with the law that `embed` recorded for it.

    `prompt` is only needed to recognise it in front of the text. The p-value knows no evidence but a message.
    """
    settings = law.about.settings

    def read(keys: MessageKeys, receiver: Receiver) -> None:
        if law.vocabulary is not None:
            drive(stream.walk(law.vocabulary, keys, receiver), partial(recorded_law, law.laws))
        else:
            walk = block.walk(keys, receiver, settings.code_budget)
            drive(walk, partial(recorded_pool, law.pools))

    return _search(read, text_forms(text, prompt), key, settings.scheme, [law.about.nonce])


def decode_parallel(
    tokenizer: PreTrainedTokenizerFast,
    text: bytes,
    key: Key,
    nonces: Iterable[int],
    settings: Settings,
    prompt: bytes = b"",
) -> Decoded:
    """Read a text of the scheme parallel with the tokenizer alone.

    `prompt` is only needed to recognise it in front of the text. The p-value knows no evidence but a message.

    Raises:
        ValueError: a setting is out of range, or the tokenizer is not a byte-level one.
    """
    settings.check()
    strings = token_bytes(tokenizer)
    readable = [form.decode("utf-8") for form in text_forms(text, prompt) if is_text(form)]
    forms = [parallel.tokenise(tokenizer, form) for form in readable]
    attempts, reason = 0, "there is no nonce to try"
    for nonce in nonces:
        reason = "what was read is no frame of this key" if forms else "the text is not UTF-8"
        keys = MessageKeys(key, nonce, "parallel")
        for tokens in forms:
            received = parallel.received_bits(strings, tokens, keys, settings)
            message, compared = parallel.read(received, keys, settings.parity)
            attempts += compared
            if message is not None:
                return Decoded(message, nonce, min(1.0, attempts * 2.0**-CHECK_BITS))
    return Decoded(None, None, 1.0, reason)


def _search(
    read: Callable[[MessageKeys, Receiver], None], forms: Sequence[bytes], key: Key, scheme: str, nonces: Iterable[int]
) -> Decoded:
    """Read every form of the text with every nonce until there is a message."""
    walks = attempts = 0
    evidence, reason = 0.0, "there is no nonce to try"
    for nonce in nonces:
        keys = MessageKeys(key, nonce, scheme)
        for form in forms:
            receiver = Receiver(form, keys)
            walks += 1
            try:
                read(keys, receiver)
            except NoMessageError as error:
                reason = str(error)
            attempts += receiver.attempts
            if receiver.done:
                return _found(receiver, nonce, attempts)
            evidence = max(evidence, receiver.log2_evidence)
    # Nothing read is no evidence.
    return Decoded(None, None, min(1.0, 2 * max(walks, 1) * 2.0**-evidence), reason)


def _found(receiver: Receiver, nonce: int, attempts: int) -> Decoded:
    """A message. Each attempt succeeds by chance with 2^-`CHECK_BITS`; the 2 is for the other way to a small p-value,
    matches without a message.
    """
    return Decoded(receiver.message, nonce, min(1.0, 2 * attempts * 2.0**-CHECK_BITS))


def text_forms(text: bytes, prompt: bytes) -> list[bytes]:
    """What the sender may have written: without the prompt in front, with plain line ends, or just this; and each with
    a space in front if it has no white space there, as most texts begin with one, which copying loses.
    """
    forms = []
    for plain in (text, text.replace(b"\r\n", b"\n")):
        for front in (prompt, prompt.replace(b"\r\n", b"\n")):
            if front and plain.startswith(front):
                forms.append(plain.removeprefix(front))
        forms.append(plain)
    forms += [b" " + form for form in forms if form and not form[:1].isspace()]
    return list(dict.fromkeys(forms))
