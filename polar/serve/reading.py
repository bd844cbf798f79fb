"""Reading texts in processes of their own, so that one that takes too long can be ended."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from polar.serve.messages import DetectionBody, ReadingBody, Token
from polar.text.command_line.output import is_plain_text
from polar.text.keys.key import Key
from polar.text.schemes.robust.messages import MARKED, message_of, plain_forms, read_pasted
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


def detect(setup: ReaderSetup, text: str) -> DetectionBody:
    """Whether a text is marked, by its pilots alone."""
    form = plain_forms(text)[0]
    found = receiver_of(setup).detect(form)
    is_marked = found.p_value < MARKED
    return DetectionBody(
        is_marked=is_marked,
        p_value=found.p_value,
        score=found.score,
        text=form,
        tokens=_tokens(found),
        parts=found.parts() if is_marked else [],
    )


def read_message(setup: ReaderSetup, text: str) -> ReadingBody:
    """The message of a text."""
    found = read_pasted(receiver_of(setup), text)
    payload = found.reading.payload
    message = None if payload is None else message_of(payload)
    return ReadingBody(
        is_marked=found.is_marked,
        p_value=found.p_value,
        score=found.reading.score,
        text=found.form,
        tokens=_tokens(found.reading),
        parts=found.parts,
        message_bits=None if payload is None else "".join(map(str, payload)),
        message=message.decode() if isinstance(message, bytes) and is_plain_text(message) else None,
        nonce=found.reading.nonce,
    )


def _tokens(found: Found) -> list[Token]:
    return [
        Token(start=start, end=end, marked=round(float(share), 4))
        for (start, end), share in zip(found.spans, found.marked, strict=True)
    ]
