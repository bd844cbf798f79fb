"""The sender of the scheme `robust` in the commands: a text of so many tokens, then to the end of the sentence."""

from typing import TYPE_CHECKING

import numpy as np

from polar.text.keys.derivation import MessageKeys
from polar.text.scheme import Attempt, Reader, Tokens, VariationBound, Writing, Written
from polar.text.schemes.robust.messages import payload_of, robust_settings
from polar.text.schemes.robust.reader import Receiver
from polar.text.schemes.robust.words import as_letters
from polar.text.schemes.robust.writer import Writer
from polar.text.schemes.sending import MODEL_LAW, KeptLaws, given
from polar.text.tail import LONGEST_REST, LONGEST_TAIL, ends_sentence, may_end
from wm_env.common.progress import Report
from wm_env.lm.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from polar.text.schemes.robust import Robust


def write_robust_text(scheme: "Robust", writing: Writing) -> Written:
    """As in `Scheme`. Where the text stops depends on the text alone."""
    source, keys = writing.channel.source, writing.keys
    payload = payload_of(writing.message, scheme.payload_bits)
    settings = robust_settings(scheme, writing.channel.settings)
    writer = Writer(keys.key, payload, keys.nonce, settings, as_letters(writing.channel.strings))
    laws = KeptLaws(source)
    tail = LONGEST_TAIL if writing.limits.ending == "sentence" else 0
    tokens: Tokens = ()
    text = b""
    while not _is_over(text, len(tokens) - scheme.tokens, tail):
        writing.report(len(tokens), scheme.tokens + tail, "tokens, at most")
        marks = laws.law(tokens).at(np.arange(len(source.vocabulary.ids) + 1))
        law = np.zeros(len(source.lm.banned))
        law[source.vocabulary.ids] = np.diff(marks)
        tokens += (writer.choose(law),)
        text = source.vocabulary.text(tokens)
    return Written(
        tokens=tokens,
        coded_tokens=len(tokens),
        cost=VariationBound(laws.variation(tokens), MODEL_LAW, given=given(writing.channel.settings.law)),
        read=_reader(writing, scheme),
    )


def _is_over(text: bytes, beyond: int, tail: int) -> bool:
    """Whether the text stops, `beyond` tokens after those that it was to have."""
    if beyond < 0 or not may_end(text):
        return beyond >= tail + LONGEST_REST
    return beyond >= tail or ends_sentence(text)


def _reader(writing: Writing, scheme: "Robust") -> Reader:
    """Reads the text that was written, with its own nonce alone."""
    tokenizer = TextTokenizer(writing.channel.source.lm.text_tokenizer.content)
    settings = robust_settings(scheme, writing.channel.settings)

    def read(form: bytes, keys: MessageKeys, report: Report) -> Attempt:
        receiver = Receiver(keys.key, tokenizer, settings, range(keys.nonce, keys.nonce + 1))
        found = receiver.decode(form.decode("utf-8"))
        if found.payload != tuple(payload_of(writing.message, scheme.payload_bits)):
            reason = f"{found.check_log2:.0f} bits of evidence at check places; ask for more tokens"
            return Attempt(None, found.attempts, reason=reason)
        return Attempt(writing.message, found.attempts)

    return read
