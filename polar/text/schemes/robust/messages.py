"""Between messages and payloads, and between files and texts: what the commands need of the scheme `robust`."""

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polar.text.canonical import QUOTE, TYPOGRAPHIC, canonical, check_length, decoded
from polar.text.decoding import Decoded
from polar.text.framing import BitString, Message
from polar.text.keys.key import Key
from polar.text.schemes.robust.reader import Reading, Receiver
from polar.text.schemes.robust.settings import MOST_CHARACTERS, RobustSettings
from polar.text.settings import Settings
from wm_env.lm.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from polar.text.schemes.robust import Robust

_PLAIN = TYPOGRAPHIC | str.maketrans({"\u00a0": " ", "\u00ad": None})
_EMPHASIS = re.compile(r"(?<!\w)(\*\*|__|\*|_|`)(?=\S)(.{1,500}?)(?<=\S)\1(?!\w)")
_ESCAPED = re.compile(r"\\([\\`*_{}\[\]()#+\-.!>])")
_HYPHENATED = re.compile(r"(?<=[a-z])-\n(?=[a-z])")

MARKED = 1e-3
"""A text of a smaller p-value counts as marked."""


def payload_of(message: Message, payload_bits: int) -> list[int]:
    """The bits of a message, first to last.

    Raises:
        ValueError: the message has another length.
    """
    bits = message if isinstance(message, BitString) else BitString(int.from_bytes(message, "big"), 8 * len(message))
    if bits.length != payload_bits:
        raise ValueError(
            f"the message has {bits.length} bits: every message of the scheme robust has payload_bits={payload_bits}; "
            "take such a message, or other payload_bits at both ends"
        )
    return [int(digit) for digit in str(bits)]


def message_of(payload: Sequence[int]) -> Message:
    """The message of a payload: bytes, if it is whole bytes."""
    bits = BitString(int("".join(map(str, payload)), 2), len(payload))
    return bits if bits.length % 8 else bits.to_bytes()


def plain_forms(text: str) -> list[str]:
    """A received text as it is, and with what copying adds undone: white space, quotation marks of mail, typographic
    quotes, HTML escapes, Markdown.

    Raises:
        ValueError: the text is longer than `MOST_CHARACTERS`.
    """
    check_length(text, MOST_CHARACTERS)
    plain = text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    undone = _HYPHENATED.sub("", QUOTE.sub("", html.unescape(plain))).translate(_PLAIN)
    undone = " " + canonical(_ESCAPED.sub(r"\1", _EMPHASIS.sub(r"\2", undone)))
    return [plain] if undone.strip() == plain.strip() else [undone, plain]


def robust_settings(scheme: "Robust", settings: Settings) -> RobustSettings:
    """The settings of the receiver."""
    return RobustSettings(scheme.payload_bits, settings.check_bits, scheme.clock, settings.sender)


def find(
    scheme: "Robust", tokenizer: TextTokenizer, text: bytes, key: Key, settings: Settings, nonces: Iterable[int]
) -> Decoded:
    """Look for a message in a file; between the least and the greatest of the nonces all are looked for."""
    tried = sorted(nonces)
    letters = decoded(text)
    if letters is None:
        return Decoded(None, None, 1.0, "the text is not UTF-8")
    if not tried:
        return Decoded(None, None, 1.0, "there is no nonce to try")
    receiver = Receiver(key, tokenizer, robust_settings(scheme, settings), range(tried[0], tried[-1] + 1))
    found = read_pasted(receiver, letters)
    if found.reading.payload is None:
        reason = f"no payload passes the check ({found.attempts} candidates compared)"
        return Decoded(None, None, found.p_value, reason, len(receiver.nonces))
    return Decoded(message_of(found.reading.payload), found.reading.nonce, found.p_value, tried=len(receiver.nonces))


@dataclass(frozen=True)
class PastedReading:
    """What was read of a text that may have been pasted.

    Attributes:
        form: the form of the text that the places of the reading refer to.
        reading: of that form.
        p_value: of the text, with all forms that were read.
        attempts: candidates whose check was compared, in all forms.
    """

    form: str
    reading: Reading
    p_value: float
    attempts: int

    @property
    def is_marked(self) -> bool:
        """Whether it has a message, or its p-value is below `MARKED`."""
        return self.reading.payload is not None or self.p_value < MARKED

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The ranges of characters of the form that are marked; none if it is not."""
        return self.reading.parts() if self.is_marked else []


def read_pasted(receiver: Receiver, text: str) -> PastedReading:
    """Read the forms of a text (`plain_forms`), up to the first with a message.

    The p-value is that of the best form, times their number.

    Raises:
        ValueError: the text is longer than `MOST_CHARACTERS`, or no text.
    """
    readings: list[Reading] = []
    forms = plain_forms(text)
    for form in forms:
        readings.append(receiver.decode(form))
        if readings[-1].payload is not None:
            break
    chosen = 0 if readings[-1].payload is None else len(readings) - 1
    p_value = min(1.0, len(readings) * min(reading.p_value for reading in readings))
    return PastedReading(forms[chosen], readings[chosen], p_value, sum(reading.attempts for reading in readings))
