"""A server of marked texts with a small model, as `python -m polar serve` starts it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ascii_lm import LETTERS
from tiny_lm import write_lm

from polar.text.keys.key import Key, save_key

KEY = Key(bytes(range(32)))

TOKENS = (*LETTERS, b"th", b"he")
MERGES = ((b"t", b"h"), (b"h", b"e"))


def write_small_lm(folder: Path) -> Path:
    """A model that writes letters without sense, quickly; payloads of 8 bits fit into 120 tokens."""
    return write_lm(folder, TOKENS, MERGES, scale=0.2)


@contextmanager
def serving(folder: Path, arguments: Sequence[str] = ()) -> Iterator[str]:
    """The address of a server that runs within the context; Ctrl-C must end it well."""
    key = folder / "server.key"
    save_key(KEY, key)
    command = [sys.executable, "-m", "polar", "serve", "--key", str(key), "--port", "0", "--payload-bits", "8"]
    command += ["--model", str(write_small_lm(folder / "lm")), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as server:
        errors = server.stderr
        assert errors is not None
        try:
            line = errors.readline()
            assert line.startswith("serving on http://"), line + errors.read()
            yield line.split()[2]
        finally:
            os.killpg(server.pid, signal.SIGINT)  # as a terminal does: to the processes of the server too
            rest = errors.read()
    assert (server.returncode, rest) == (0, "")
