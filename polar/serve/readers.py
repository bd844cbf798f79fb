"""The processes that read texts: each can be ended without the server, and none outlives it."""

import asyncio
import os
import signal
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TypeVar

from pebble import ProcessExpired, ProcessPool

from polar.serve.lanes import SlowError
from polar.serve.reading import ReaderSetup

_Result = TypeVar("_Result")

_LOOKS = 0.25
"""Seconds between looks whether there are readers."""


class EndedError(Exception):
    """A reader has ended before its text was read."""


class Readers:
    """A number of processes; one that has ended is replaced."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = _new_pool(count)

    async def read(
        self, work: Callable[[ReaderSetup, str], _Result], setup: ReaderSetup, text: str, seconds: float
    ) -> _Result:
        """Do the work in one of the processes.

        Raises:
            SlowError: it took longer than `seconds`; the process was ended.
            EndedError: the process has ended otherwise.
        """
        if not self._pool.active:  # the pool gives up once a process ends that had nothing to do
            self.close()
            self._pool = _new_pool(self._count)
        result = asyncio.wrap_future(self._pool.schedule(work, args=[setup, text], timeout=seconds))
        try:
            while not (await asyncio.wait({result}, timeout=_LOOKS))[0]:
                if not self._pool.active:  # a text that came while the pool gave up would wait without end
                    raise BrokenProcessPool
            return result.result()
        except TimeoutError:
            raise SlowError(f"reading took more than {seconds:g} seconds: give a part of the text") from None
        except ProcessExpired as error:
            raise EndedError(_how_it_ended(error.exitcode)) from None
        except BrokenProcessPool:
            raise EndedError("the reader ended before it got the text: try again") from None
        finally:
            result.cancel()

    def close(self) -> None:
        """End the processes, and what they do."""
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()


def _new_pool(count: int) -> ProcessPool:
    return ProcessPool(count, initializer=_end_with_server, context=get_context("spawn"))


def _end_with_server() -> None:
    """End this process once the server has ended, in the midst of a text too: who asked for it has no answer anyway."""
    Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    server = parent_process()
    assert server is not None
    server.join()
    os._exit(1)


def _how_it_ended(exit_code: int) -> str:
    """What is known of a process that ended by itself: multiprocessing gives signals as negative codes."""
    if exit_code >= 0:
        return f"the reader ended with exit code {exit_code}: try again, or give a part of the text"
    name = signal.strsignal(-exit_code) or "unknown"
    return (
        f"the reader was ended by signal {-exit_code} ({name}), perhaps for want of memory: "
        "try again, or give a part of the text"
    )
