"""Lanes: a few pieces of work at once, and a few that wait; who asks for more is told to come again."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

_Result = TypeVar("_Result")

_LOOKS = 0.25
"""Seconds between looks whether who asked is still there."""


class BusyError(Exception):
    """Too many requests wait already."""


class SlowError(Exception):
    """The work took longer than the limit."""


class GoneError(Exception):
    """Who asked has hung up, or the work was given up: nobody waits for its result."""


class Lane:
    """Work that is done a few pieces at a time, first come, first served.

    Args:
        name: what is done, as in "texts are being written".
        at_once: pieces at a time.
        waiting: pieces that may wait.
    """

    def __init__(self, name: str, at_once: int, waiting: int) -> None:
        self._name, self._most = name, at_once + waiting
        self._turn = asyncio.Semaphore(at_once)
        self.inside = 0

    async def run(self, request: Request, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Wait for a turn and do the work, as long as who asked is there.

        Raises:
            BusyError: too many wait.
            GoneError: who asked has hung up, or the server ends; the work is cancelled.
        """
        if self.inside >= self._most:
            raise BusyError(f"{self.inside} texts are being {self._name} or wait to be: try again later")
        self.inside += 1
        try:
            return await _while_there(request, self._in_turn(work))
        except asyncio.CancelledError:
            raise GoneError("the server ends: try again later") from None
        finally:
            self.inside -= 1

    async def _in_turn(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        async with self._turn:
            return await work()


async def _while_there(request: Request, work: Awaitable[_Result]) -> _Result:
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=_LOOKS))[0]:
            if await request.is_disconnected():
                raise GoneError("who asked has hung up")
        return task.result()
    finally:
        task.cancel()


@dataclass
class Progress:
    """How far a piece of work in another thread is; raises there once it is given up or its time is over.

    Attributes:
        seconds: it may take.
        done, total: as reported.
    """

    seconds: float
    done: int = 0
    total: int = 0
    _given_up: threading.Event = field(default_factory=threading.Event)
    _begun: float = field(default_factory=time.monotonic)

    def report(self, done: int, total: int, counted: str) -> None:
        """Take a report.

        Raises:
            SlowError: the time is over.
            GoneError: the work was given up.
        """
        self.done, self.total = done, total
        if self._given_up.is_set():
            raise GoneError("the work was given up")
        if time.monotonic() - self._begun > self.seconds:
            raise SlowError(f"{done} of {total} {counted}, were done in {self.seconds:g} seconds: ask for fewer")

    def give_up(self) -> None:
        """Let the work end at its next report."""
        self._given_up.set()
