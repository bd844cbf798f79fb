"""Between messages and payloads, and between files and texts: what the commands need of the scheme `robust`."""

import html
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from polar.text.canonical import canonical, decoded
from polar.text.decoding import Decoded
from polar.text.framing import BitString, Message
from polar.text.keys.key import Key
from polar.text.schemes.robust.reader import Reading, Receiver, check_length
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.settings import Settings
from wm_env.lm.tokenizer import TextTokenizer

_TYPOGRAPHIC = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "…": "...", "‑": "-", "\u00a0": " ", "\u00ad": None}
)

if TYPE_CHECKING:
    from polar.text.schemes.robust import Robust
_QUOTE = re.compile(r"^[ \t]*(>[ \t]?)+", re.MULTILINE)
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
            "both ends must set that"
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
    check_length(text)
    plain = text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    undone = _HYPHENATED.sub("", _QUOTE.sub("", html.unescape(plain))).translate(_TYPOGRAPHIC)
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
    readings = read_forms(receiver, letters)
    p_value = p_value_of(readings)
    last = readings[-1]
    if last.payload is None:
        reason = f"no payload passes the check ({sum(reading.attempts for reading in readings)} candidates compared)"
        return Decoded(None, None, p_value, reason, len(receiver.nonces))
    return Decoded(message_of(last.payload), last.nonce, p_value, tried=len(receiver.nonces))


def read_forms(receiver: Receiver, text: str) -> list[Reading]:
    """The readings of a text's forms, up to the first with a message."""
    readings = []
    for form in plain_forms(text):
        readings.append(receiver.decode(form))
        if readings[-1].payload is not None:
            break
    return readings


def p_value_of(readings: Sequence[Reading]) -> float:
    """The p-value of a text of which several forms were read: that of the best, times their number."""
    return min(1.0, len(readings) * min(reading.p_value for reading in readings))
