"""Lines of progress on the standard output."""

import os
import sys


def say(line: str) -> None:
    """Print a line at once; once nobody reads any more, as after `| head`, print nothing: the run goes on."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
