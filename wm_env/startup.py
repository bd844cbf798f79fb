"""How commands end: exit codes, and one line for Ctrl-C while they start, whatever library is being imported."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
"""Exit code of a command that Ctrl-C ended, as a shell expects it."""


@contextmanager
def quitting_on_interrupt(module: str) -> Iterator[None]:
    """Within the context Ctrl-C ends the process at once, if `module`, the caller's `__name__`, is run as a command.

    Made for imports, where there is nothing to clean up: Python's KeyboardInterrupt comes out of the middle of an
    import as a long traceback, or as another error of the library. Where Ctrl-C is ignored, it stays so.
    """
    if module != "__main__" or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _quit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_system_failure(error: Exception) -> bool:
    """Whether `error` is neither bad input nor our own refusal of it, but a full disk, a closed pipe or the like.

    What the operating system says has a number (errno); a path that is wrong has a class of its own.
    """
    wrong_path = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
    return isinstance(error, OSError) and error.errno is not None and not isinstance(error, wrong_path)


def _quit(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
