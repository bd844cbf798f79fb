"""Lines of progress on the standard output, and a bar on a terminal."""

import sys
from typing import Any

from tqdm import tqdm

from wm_env.common.command import is_terminal, silence_output


def say(line: str) -> None:
    """Print a line at once; once nobody reads any more, as after `| head`, print nothing: the run goes on.

    What the encoding of the output does not have is spelt out, as in \\u6c34.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        silence_output()


def bar(total: int, done: int, unit: str) -> "tqdm[Any]":
    """A bar on standard error that tells what is left; it is disabled where that is no terminal."""
    return tqdm(total=total, initial=done, unit=unit, disable=not is_terminal(sys.stderr))
