"""Reading texts in processes of their own, so that one that takes too long can be ended."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from polar.serve.messages import Detection, Reading, Token
from polar.text.command_line.output import is_plain_text
from polar.text.keys.key import Key
from polar.text.schemes.robust.messages import MARKED, message_of, p_value_of, plain_forms, read_forms
from polar.text.schemes.robust.reader import Detection as Found
from polar.text.schemes.robust.reader import Receiver
from polar.text.schemes.robust.settings import RobustSettings
from wm_env.lm.tokenizer import read_text_tokenizer


@dataclass(frozen=True)
class ReaderSetup:
    """What a reading process needs.

    Attributes:
        key: the shared secret.
        folder: of the model, for its tokenizer.
        settings: as the sender's.
        nonces: those that are looked for.
    """

    key: Key
    folder: Path
    settings: RobustSettings
    nonces: range


@lru_cache(maxsize=2)
def receiver_of(setup: ReaderSetup) -> Receiver:
    """The receiver; made once in each process."""
    return Receiver(setup.key, read_text_tokenizer(setup.folder), setup.settings, setup.nonces)


def detect(setup: ReaderSetup, text: str) -> Detection:
    """Whether a text is marked, by its pilots alone."""
    form = plain_forms(text)[0]
    found = receiver_of(setup).detect(form)
    return _shown(found, form, found.p_value, found.p_value < MARKED)


def decode(setup: ReaderSetup, text: str) -> Reading:
    """The message of a text."""
    readings, forms = read_forms(receiver_of(setup), text), plain_forms(text)
    number = 0 if readings[-1].payload is None else len(readings) - 1
    found, p_value = readings[number], p_value_of(readings)
    shown = _shown(found, forms[number], p_value, found.payload is not None or p_value < MARKED)
    message = None if found.payload is None else message_of(found.payload)
    said = {
        "message_bits": None if found.payload is None else "".join(map(str, found.payload)),
        "message": message.decode() if isinstance(message, bytes) and is_plain_text(message) else None,
        "nonce": found.nonce,
    }
    return Reading.model_validate(dict(shown) | said)


def _shown(found: Found, form: str, p_value: float, is_marked: bool) -> Detection:
    tokens = [
        Token(start=start, end=end, marked=round(float(share), 4))
        for (start, end), share in zip(found.spans, found.marked, strict=True)
    ]
    parts = found.parts() if is_marked else []
    return Detection(is_marked=is_marked, p_value=p_value, score=found.score, text=form, tokens=tokens, parts=parts)
