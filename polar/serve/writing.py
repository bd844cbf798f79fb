"""Writing texts with the model, one at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from polar.serve.messages import EmbedRequest, MarkedText, PlainRequest, PlainText
from polar.text.channel import Channel, open_channel
from polar.text.command_line.commands import ATTEMPTS
from polar.text.embedding import embed_with_retries
from polar.text.framing import BitString, Message, parse_bits
from polar.text.keys.derivation import message_keys, text_hash
from polar.text.keys.key import Key, new_key
from polar.text.keys.ledger import open_ledger
from polar.text.scheme import Writing
from polar.text.schemes.robust import Robust
from polar.text.schemes.robust.messages import message_of, payload_of
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.settings import LawSettings, Limits, Settings
from polar.text.vocabulary import Vocabulary
from wm_env.common.command import tell
from wm_env.common.progress import Report
from wm_env.lm.models.masked_lm import MaskedLM


@dataclass(frozen=True)
class TextWriter:
    """A model, and the key that marks its texts.

    Attributes:
        lm: the model.
        vocabulary: the tokens that it may say.
        key: the shared secret.
        ledger: the file that notes used nonces.
        settings: what both ends agree on.
    """

    lm: MaskedLM
    vocabulary: Vocabulary
    key: Key
    ledger: Path
    settings: RobustSettings

    def marked(self, request: EmbedRequest, report: Report) -> MarkedText:
        """A text with a message.

        Raises:
            ValueError: the message has another length, or the prompt cannot be one.
            RuntimeError: no text carries the message.
            OSError: the ledger cannot be written.
        """
        message = self._message(request)
        channel = self._channel(request)
        sent = embed_with_retries(channel, message, self.key, self._reserved(), report=report)
        return MarkedText(
            text=sent.text,
            tokens=len(sent.tokens),
            nonce=sent.nonce,
            message_bits="".join(map(str, payload_of(message, self.settings.payload_bits))),
            discarded=sent.rejected,
            law=str(sent.cost),
        )

    def plain(self, request: PlainRequest, report: Report) -> PlainText:
        """A text of the same law without a message: marked with a key that is thrown away.

        Over its key a marked text has exactly the model's law, whatever the payload is.

        Raises:
            ValueError: the prompt cannot be one.
            RuntimeError: the model leaves no choice.
        """
        channel = self._channel(request)
        keys = message_keys(new_key(), 0, channel.settings, text_hash(channel.prompt))
        nothing = message_of([0] * self.settings.payload_bits)
        tokens = channel.settings.scheme.write(Writing(channel, nothing, keys, Limits(), report)).tokens
        return PlainText(text=self.vocabulary.text(tokens).decode("utf-8", "replace"), tokens=len(tokens))

    def used(self) -> int:
        """The first nonce that the ledger does not have."""
        with open_ledger(self.ledger, tell) as ledger:
            return ledger.first_free()

    def _reserved(self) -> Iterator[int]:
        """Free nonces, each noted as used before its text is begun: the ledger is locked for a moment only."""
        for _ in range(ATTEMPTS):
            with open_ledger(self.ledger, tell) as ledger:
                nonce = ledger.first_free()
                ledger.record(nonce)
            yield nonce

    def _channel(self, request: PlainRequest) -> Channel:
        robust = Robust(payload_bits=self.settings.payload_bits, tokens=request.tokens)
        law = LawSettings(temperature=request.temperature, top_p=request.top_p)
        settings = Settings(robust, law, self.settings.use, self.settings.check_bits)
        return open_channel(self.lm, request.prompt, settings, self.vocabulary)

    def _message(self, request: EmbedRequest) -> Message:
        if (request.message is None) == (request.message_bits is None):
            raise ValueError("give either message or message_bits")
        message: Message | BitString = (
            request.message.encode() if request.message is not None else parse_bits(request.message_bits or "")
        )
        return message_of(payload_of(message, self.settings.payload_bits))
