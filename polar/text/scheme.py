"""The door to the message schemes: what a scheme is given, and what it gives back.

A scheme is a frozen dataclass whose fields are its settings, in a folder of `polar.text.schemes`; the table there has
its name. Options and help come from the fields. Nothing here imports torch, so that wrong settings are refused at once;
the methods of a scheme import what they need when they are called.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from polar.text.framing import Message, frame_bits
from polar.text.keys.key import NONCE_LIMIT
from wm_env.common.command import WorkFailedError
from wm_env.common.progress import Report, no_report

if TYPE_CHECKING:
    from polar.text.channel import Channel
    from polar.text.decoding import Decoded
    from polar.text.keys.derivation import MessageKeys
    from polar.text.keys.key import Key
    from polar.text.records import Answers
    from polar.text.settings import Limits, Settings
    from wm_env.common.tensors import Arrays
    from wm_env.lm.tokenizer import TextTokenizer

Tokens = tuple[int, ...]
"""The token ids of a text so far, without the prompt."""


class NoMessageError(Exception):
    """The text carries no message of this key, nonce and prompt; the argument says how that shows."""


class UnfitTextError(WorkFailedError):
    """The text that this nonce gives cannot be sent; another nonce gives another one."""


@dataclass(frozen=True)
class Attempt:
    """What one form of a text says to the keys of one nonce.

    Attributes:
        message: the message, None if there is none.
        attempts: number of check values compared.
        log2_evidence: log2 of the evidence for the key beside a message, at least 0; a key independent of the text gets
            to e or more with probability at most 1/e.
        reason: why there is no message, empty if there is one.
    """

    message: Message | None
    attempts: int = 0
    log2_evidence: float = 0.0
    reason: str = ""


Reader = Callable[[bytes, "MessageKeys", Report], Attempt]
"""Reads one form of a text with the keys of one nonce."""

Readers = tuple[Reader, ...]
"""The quickest first: where no nonce has a message with one, all are tried with the next, which looks deeper."""


@dataclass(frozen=True)
class VariationBound:
    """How the law of a text differs from a public one.

    Attributes:
        variation: a number whose mean over texts bounds the total variation between the law of the texts and
            `reference`, for any message and a random key; 0: exact.
        reference: that law, as a phrase.
        estimated: `variation` rests on random draws, and bounds that mean with 97.5 % confidence.
        given: the condition under which texts have exactly that law, as a phrase; empty if there is none.
    """

    variation: float
    reference: str
    estimated: bool = False
    given: str = ""

    def __str__(self) -> str:
        bound = f"TV to {self.reference} at most"
        if self.given:
            mean = f"the mean over texts of a number that is {self.variation:.3g} here"
            return f"exactly {self.reference} of {self.given}; {bound} {mean}"
        if self.variation == 0:
            return f"exactly {self.reference}"
        return f"{bound} {self.variation:.3g}{' (97.5 % confidence)' * self.estimated}"


@dataclass(frozen=True)
class Writing:
    """What a scheme writes a text from."""

    channel: "Channel"
    message: Message
    keys: "MessageKeys"
    limits: "Limits"
    report: Report = no_report


@dataclass(frozen=True)
class Written:
    """What a scheme wrote.

    Attributes:
        tokens: token ids of the text.
        coded_tokens: tokens until the message was in; the others end the text.
        cost: how the law of the text differs from the model's.
        read: the reader that checks the text, made anew from what a receiver has.
        answers: the answers of the model that `read` has asked for; None if the receiver needs no model.
    """

    tokens: Tokens
    coded_tokens: int
    cost: VariationBound
    read: Reader
    answers: "Answers | None" = None


@dataclass(frozen=True)
class Scheme(ABC):
    """A message scheme; its fields are the settings that both ends must agree on.

    Attributes:
        name: as `--scheme` has it.
        needs_model: whether the receiver needs the model and the prompt, or the record of a text. If not, it needs the
            model's tokenizer, and neither the prompt nor the settings of the model's law are part of the keys.
        finds_nonces: whether the receiver looks for all nonces at once, by `find`.
        nonce_limit: nonces are below it.
        has_evidence: whether a text says something for the key even if it has no message.
    """

    name: ClassVar[str]
    needs_model: ClassVar[bool] = True
    finds_nonces: ClassVar[bool] = False
    nonce_limit: ClassVar[int] = NONCE_LIMIT
    has_evidence: ClassVar[bool] = False

    @abstractmethod
    def check(self, settings: "Settings") -> None:
        """Raise ValueError for a number out of its range."""

    def longest_step(self, settings: "Settings") -> int:
        """Most masked tokens that the model sees at once."""
        return settings.law.block_length

    @abstractmethod
    def write(self, writing: Writing) -> Written:
        """Write a text.

        Raises:
            MessageTooLongError: the message needs more than the allowed blocks; says how long it may be.
            NoEntropyError: the model leaves no choice for too long.
            UnfitTextError: the text cannot be sent. Another nonce helps.
        """

    def readers(self, channel: "Channel") -> Readers:
        """Read texts with the model, if the receiver needs it."""
        raise NotImplementedError(f"the receiver of the scheme {self.name} needs no model")

    def answers(self, arrays: "Arrays", settings: "Settings") -> "Answers":
        """The answers of a model in the file of a record.

        Raises:
            ValueError: no text can have these.
        """
        raise ValueError(f"texts of the scheme {self.name} have no record")

    def answers_readers(self, answers: "Answers") -> Readers:
        """Read the one text that the recorded answers belong to."""
        raise NotImplementedError(f"texts of the scheme {self.name} have no record")

    def tokenizer_readers(self, tokenizer: "TextTokenizer", settings: "Settings") -> Readers:
        """Read texts with the tokenizer alone, if the receiver needs no model."""
        raise NotImplementedError(f"the receiver of the scheme {self.name} needs the model")

    def find(
        self, tokenizer: "TextTokenizer", text: bytes, key: "Key", settings: "Settings", nonces: Iterable[int]
    ) -> "Decoded":
        """Look for the message of a text with all nonces at once, in every form that the text may have."""
        raise NotImplementedError(f"the receiver of the scheme {self.name} takes one nonce after the other")

    def sent_bits(self, message: Message, check_bits: int) -> int:
        """How many bits a text has to say for a message: the message and what it is checked by."""
        return frame_bits(message, check_bits)

    def estimate(self, channel: "Channel", message: Message) -> str | None:
        """One line on what writing `message` costs, where that is long."""
        return None
