"""What the commands write to standard output: texts, and messages that a terminal may be shown."""

import codecs
import sys
from pathlib import Path

from polar.text.framing import BitString, Message
from wm_env.common.command import WorkFailedError
from wm_env.common.files import naming
from wm_env.common.foreign.visible import is_shown, visible


def write_message(message: Message) -> None:
    """Write a message to standard output.

    Raises:
        WorkFailedError: bytes that are no plain text, on a terminal, which might take them for commands.
    """
    if isinstance(message, BitString):
        write_output(str(message).encode(), newline=True)
        return
    if not _is_only_shown(message):
        what = f"that are no {sys.stdout.encoding}" if is_plain_text(message) else "that are no plain text"
        raise WorkFailedError(
            f"the message is {len(message)} bytes {what}, which a terminal could take for commands: "
            "give the same command again with > FILE behind it"
        )
    write_output(message, newline=not message.endswith(b"\n"))


def write_text_sent(text: str) -> None:
    """Write a text that carries a message to standard output, letter by letter as the receiver needs it.

    Raises:
        WorkFailedError: a model wrote what a terminal might take for commands, and standard output is one.
    """
    data = text.encode()
    if not _is_only_shown(data):
        raise WorkFailedError("the text has letters that a terminal could take for commands: add > FILE")
    write_output(data, newline=True)


def write_passage(start: int, end: int, passage: str) -> None:
    """Write where a passage of a document stands, and the passage in one line; a terminal is shown what is in it."""
    line = " ".join(passage.split())
    write_output(f"{start}-{end}\t{visible(line) if sys.stdout.isatty() else line}\n".encode(), newline=False)


def is_plain_text(data: bytes) -> bool:
    """Whether `data` is UTF-8 that a terminal only shows (`is_shown`), tabs and line ends included."""
    try:
        text = data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return False
    return all(letter in "\t\n" or is_shown(letter) for letter in text)


def _is_only_shown(data: bytes) -> bool:
    """Whether standard output, if it is a terminal, takes nothing of `data` for a command.

    UTF-8 must be what the terminal reads: in Latin-1 some of its bytes are controls.
    """
    if not sys.stdout.isatty():
        return True
    return is_plain_text(data) and (data.isascii() or codecs.lookup(sys.stdout.encoding).name == "utf-8")


def write_output(data: bytes, newline: bool) -> None:
    """Write `data` to standard output as it is; on a terminal, with a line end if asked to."""
    with naming(Path("standard output")):
        sys.stdout.buffer.write(data)
        if newline and sys.stdout.isatty():
            sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()
