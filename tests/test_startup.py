"""Ctrl-C before a command has begun its work."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from polar.secrets import Key, save_key
from wm_env.startup import is_system_failure, quitting_on_interrupt

ROOT = Path(__file__).parent.parent

COMMANDS = {
    "train": ["train.py"],
    "evaluate": ["evaluate.py"],
    "frontier": ["-m", "agents.frontier", "never"],
    "pretrain": ["-m", "wm_env.lm.pretrain", "--texts", "never", "--out", "never"],
    "polar": ["-m", "polar", "embed", "--key", "KEY", "--prompt", "a", "--message", "x"],
    "quality": ["-m", "wm_env.lm.quality", "mini"],
    "build": ["-m", "wm_env.lm.build", "--out", "never.safetensors"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_an_import_is_interrupted_with_one_line(tmp_path, command):
    # An import of torch that tells when it is under way, and takes long.
    (tmp_path / "torch.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(120)\n")
    save_key(Key(bytes(range(32))), tmp_path / "KEY")
    given = [str(tmp_path / word) if word == "KEY" else word for word in command]
    with subprocess.Popen(
        [sys.executable, *given],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate()
    assert (process.returncode, out, errors) == (130, "", "interrupted\n")


@pytest.mark.parametrize("command", [["train.py"], ["evaluate.py"], ["-m", "agents.frontier"]])
def test_a_help_that_nobody_reads_is_no_error(command):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, *command, "--help"], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("error", [None, ImportError("a library is missing")])
def test_the_usual_handler_comes_back(error):
    with contextlib.suppress(ImportError), quitting_on_interrupt("__main__"):
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        if error is not None:
            raise error
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_imports_a_module_keeps_the_handler():
    with quitting_on_interrupt("wm_env.lm.build"):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_interrupt_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with quitting_on_interrupt("__main__"):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_failures_of_the_system_are_told_from_refusals(tmp_path):
    for number in (errno.ENOSPC, errno.EPIPE, errno.EIO, errno.ENOMEM):
        assert is_system_failure(OSError(number, os.strerror(number)))
    with pytest.raises(OSError) as caught:  # noqa: PT011
        (tmp_path / "none").read_bytes()
    for error in (caught.value, OSError("a refusal"), PermissionError(errno.EACCES, "x"), ValueError("x")):
        assert not is_system_failure(error)
