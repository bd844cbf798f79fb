"""What the commands write to standard output: texts, and messages that a terminal may be shown."""

import sys
import unicodedata
from pathlib import Path

from polar.text.framing import BitString, Message
from wm_env.common.command import WorkFailedError
from wm_env.common.files import naming

_CONTROLS = ("Cc", "Cs", "Co", "Cn", "Zl", "Zp")
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Letters that turn the direction of others, so that a line can look like another. The marks of Hebrew and Arabic text
(U+200E, U+200F, U+061C) only say on which side a full stop stands.
"""


def write_message(message: Message) -> None:
    """Write a message to standard output.

    Raises:
        WorkFailedError: bytes that are no plain text, on a terminal, which might take them for commands.
    """
    if isinstance(message, BitString):
        write_output(str(message).encode(), newline=True)
        return
    if sys.stdout.isatty() and not is_plain_text(message):
        raise WorkFailedError(
            f"the message is {len(message)} bytes that are no plain text, which a terminal could take for commands: "
            "give the same command again with > FILE behind it"
        )
    write_output(message, newline=not message.endswith(b"\n"))


def is_plain_text(data: bytes) -> bool:
    """Whether `data` is UTF-8 that a terminal only shows: no control characters but tab and line end, no letters that
    turn the direction of writing. Spaces of all kinds, joiners and soft hyphens are text.
    """
    try:
        text = data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return False
    return all(
        letter in "\t\n" or (unicodedata.category(letter) not in _CONTROLS and letter not in _DIRECTIONS)
        for letter in text
    )


def write_output(data: bytes, newline: bool) -> None:
    """Write `data` to standard output as it is; on a terminal, with a line end if asked to."""
    with naming(Path("standard output")):
        sys.stdout.buffer.write(data)
        if newline and sys.stdout.isatty():
            sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()
