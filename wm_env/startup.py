"""Ctrl-C while a command starts: one line and an exit code, whatever library is being imported."""

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


def _quit(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
