"""How commands end: exit codes, and one line for Ctrl-C while they start, whatever library is being imported."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
"""Exit code of a command that Ctrl-C ended, as a shell expects it."""


def silence_output() -> None:
    """Let what is printed from now on vanish, once who read it has gone, as `| head` does.

    Python would write the rest at exit, and complain once more.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def quitting_on_interrupt(module: str) -> Iterator[None]:
    """Within the context Ctrl-C ends the process at once, if `module`, the caller's `__name__`, is run as a command.

    Made for imports, where there is nothing to clean up: Python's KeyboardInterrupt comes out of the middle of an
    import as a long traceback, or as another error of the library. Where Ctrl-C is ignored, it stays so. A help that
    nobody reads to its end is no error.
    """
    if module != "__main__":
        yield
        return
    quits = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if quits:
        signal.signal(signal.SIGINT, _quit)
    try:
        yield
    except BrokenPipeError:
        # The help is printed within the context.
        silence_output()
        sys.exit(0)
    finally:
        if quits:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def tell_failure(error: Exception) -> int:
    """Print what ended a command as one line on standard error; returns the exit code: 1 failed, 2 bad input."""
    print(f"error: {error}", file=sys.stderr)
    return 1 if is_system_failure(error) else 2


def is_system_failure(error: Exception) -> bool:
    """Whether `error` is neither bad input nor our own refusal of it, but a full disk, a closed pipe or the like.

    What the operating system says has a number (errno); a path that is wrong has a class of its own.
    """
    wrong_path = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
    return isinstance(error, OSError) and error.errno is not None and not isinstance(error, wrong_path)


def _quit(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
