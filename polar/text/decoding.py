"""A text in, its message out, or the word that there is none."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polar.text.canonical import canonical_forms, decoded
from polar.text.framing import Message
from polar.text.keys.derivation import message_keys, text_hash
from polar.text.keys.key import Key
from polar.text.scheme import Readers
from polar.text.settings import Settings
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.common.progress import Report, no_report

if TYPE_CHECKING:
    from polar.text.channel import Channel
    from polar.text.records import Record
    from wm_env.lm.tokenizer import TextTokenizer


@dataclass(frozen=True)
class Decoded:
    """What a text says to the owner of a key.

    Attributes:
        message: the message, None if there is none.
        nonce: its nonce, None if there is no message.
        p_value: bound on the probability that a text made without the key looks at least as much like one made with
            it, in [0, 1]. Valid for whatever texts, and conservative: at most a share x of them gets x or less.
        reason: why there is no message, empty if there is one.
        tried: number of nonces that were tried.
        form: the form of the text that was read; empty if there is no message, or if the scheme reads any part of it.
    """

    message: Message | None
    nonce: int | None
    p_value: float
    reason: str = ""
    tried: int = 0
    form: bytes = b""


@usual_torch()
def decode(channel: "Channel", text: bytes, key: Key, nonces: Iterable[int], report: Report = no_report) -> Decoded:
    """Look for a message of `key` in `text`, with one nonce after the other, in every form that the text may have.

    `report` is told the bytes that are read, from 0 with every nonce and form.
    """
    settings = channel.settings
    if not settings.scheme.needs_model:
        tokenizer = channel.source.lm.text_tokenizer
        return decode_with_tokenizer(tokenizer, text, key, nonces, settings, channel.prompt, report)
    search = Search(settings.scheme.readers(channel), settings, key, text_hash(channel.prompt), report)
    return search.decode(text_forms(text, channel.prompt, settings), nonces)


@usual_torch()
def decode_with_record(text: bytes, key: Key, record: "Record", prompt: str = "") -> Decoded:
    """Read a text without a model, with the record that `embed` made for it.

    `prompt` is only needed to recognise it in front of the text. The p-value knows no evidence but a message.
    """
    about = record.about
    readers = about.settings.scheme.answers_readers(record.answers)
    search = Search(readers, about.settings, key, about.prompt)
    return search.decode(text_forms(text, prompt, about.settings), [about.nonce])


@usual_torch()
def decode_with_tokenizer(
    tokenizer: "TextTokenizer",
    text: bytes,
    key: Key,
    nonces: Iterable[int],
    settings: Settings,
    prompt: str = "",
    report: Report = no_report,
) -> Decoded:
    """Read a text of a scheme whose receiver needs no model.

    `prompt` is only needed to recognise it in front of the text.

    Raises:
        ValueError: a setting is out of range, or the tokenizer is not a byte-level one.
    """
    settings.check()
    if settings.scheme.finds_nonces:
        return settings.scheme.find(tokenizer, text, key, settings, nonces)
    search = Search(settings.scheme.tokenizer_readers(tokenizer, settings), settings, key, "", report)
    return search.decode(text_forms(text, prompt, settings), nonces)


@dataclass(frozen=True)
class Search:
    """Reads every form of a text with every nonce until there is a message.

    Attributes:
        readers: the quickest first.
        settings: of the text.
        key: the shared key.
        prompt: SHA-256 of the prompt in canonical form, in hex; not used by schemes that need no model.
        report: is told how far the reading is.
    """

    readers: Readers
    settings: Settings
    key: Key
    prompt: str
    report: Report = no_report

    def decode(self, forms: Sequence[bytes], nonces: Iterable[int]) -> Decoded:
        """The message of a text in one of these forms."""
        walks = attempts = 0
        evidence, reason = 0.0, "there is no nonce to try"
        ways = 2 if self.settings.scheme.has_evidence else 1
        tried = list(nonces)
        if tried and not forms:
            return Decoded(None, None, 1.0, "the text is not UTF-8")
        for turn, read in enumerate(self.readers):
            for number, nonce in enumerate(tried, start=1):
                if not self.settings.scheme.needs_model:  # readers with a model say how far they are themselves
                    self.report(turn * len(tried) + number - 1, len(self.readers) * len(tried), "tries")
                keys = message_keys(self.key, nonce, self.settings, self.prompt)
                for form in forms:
                    found = read(form, keys, self.report)
                    walks, attempts = walks + 1, attempts + found.attempts
                    if found.message is not None:
                        # Each attempt succeeds by chance with 2^-check_bits.
                        p_value = min(1.0, ways * attempts * 2.0**-self.settings.check_bits)
                        return Decoded(found.message, nonce, p_value, tried=number, form=form)
                    evidence, reason = max(evidence, found.log2_evidence), found.reason
        # Nothing read is no evidence.
        return Decoded(None, None, min(1.0, ways * max(walks, 1) * 2.0**-evidence), reason, len(tried))


def text_forms(text: bytes, prompt: str, settings: Settings) -> list[bytes]:
    """What the sender may have written, if `text` is a copy of it, in the order in which the forms are tried.

    Of texts in any form: without the prompt in front, with plain line ends, or just this; and each with a space in
    front if it has no white space there, as most texts begin with one, which copying loses.
    """
    if settings.law.form == "canonical":
        return canonical_forms(text, prompt)
    forms, front = [], prompt.encode()
    for plain in (text, text.replace(b"\r\n", b"\n")):
        for start in (front, front.replace(b"\r\n", b"\n")):
            if start and plain.startswith(start):
                forms.append(plain.removeprefix(start))
        forms.append(plain)
    forms += [b" " + form for form in forms if form and not form[:1].isspace()]
    if not settings.scheme.needs_model:
        forms = [form for form in forms if decoded(form) is not None]
    return list(dict.fromkeys(forms))
