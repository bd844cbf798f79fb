"""The processes of the readers, real ones: how they end, and what follows."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from polar.serve.lanes import SlowError
from polar.serve.readers import EndedError, Readers

PATIENCE = 3600.0


def own_id(setup, text):
    return os.getpid()


def end_by_signal(setup, text):
    os.kill(os.getpid(), int(text))


def end_with_code(setup, text):
    os._exit(int(text))


def never_end(setup, text):
    print(text, flush=True)
    while True:
        pass


@pytest.fixture
def readers():
    with closing(Readers(1)) as readers:
        yield readers


def read(readers, work, text="", seconds=PATIENCE):
    return asyncio.run(readers.read(work, None, text, seconds))


@pytest.mark.parametrize(
    ("work", "text", "says"),
    [
        (end_by_signal, str(int(signal.SIGKILL)), r"ended by signal 9 \(Killed.*\), perhaps for want of memory"),
        (end_by_signal, str(int(signal.SIGSEGV)), r"ended by signal 11 \(Segmentation fault.*\), perhaps for want of"),
        (end_with_code, "7", "ended with exit code 7: try again"),
    ],
    ids=["killed", "crashed", "ended"],
)
def test_of_a_reader_that_ends_is_said_what_is_known_and_another_takes_its_place(readers, work, text, says):
    with pytest.raises(EndedError, match=says):
        read(readers, work, text)
    assert read(readers, own_id) != os.getpid()


def test_a_reader_that_ends_between_two_texts_is_replaced(readers):
    first = read(readers, own_id)
    os.kill(first, signal.SIGKILL)
    while True:
        try:
            second = read(readers, own_id)
        except EndedError:  # its end was seen after the text had come
            continue
        if second != first:
            break
    assert read(readers, own_id) == second


def test_a_reader_that_takes_too_long_is_ended_and_replaced(readers):
    first = read(readers, own_id)
    with pytest.raises(SlowError, match=r"more than 0\.3 seconds: give a part"):
        read(readers, never_end, seconds=0.3)
    assert read(readers, own_id) != first


def test_readers_end_with_a_server_that_is_killed():
    program = (
        "import asyncio, test_readers as test; asyncio.run(test.Readers(2).read(test.never_end, None, 'begun', 3600))"
    )
    paths = [str(Path(__file__).parent), os.environ["PYTHONPATH"]]
    command, environment = [sys.executable, "-c", program], os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == b"begun\n"
            server.kill()
            # The output ends when its last process has: all have inherited it.
            assert server.communicate(timeout=60)[0] == b""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
