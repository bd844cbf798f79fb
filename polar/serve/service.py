"""What the server does: it reads texts in processes that can be ended, and writes in one thread with the model.

The thread looks at the clock after each token, so that the model stays loaded when a text is given up.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from starlette.requests import Request

from polar.serve.lanes import Lane, Progress, SlowError
from polar.serve.messages import PlainRequest, Status
from polar.serve.options import ServeLimits
from polar.serve.readers import Readers
from polar.serve.reading import ReaderSetup
from polar.serve.writing import TextWriter
from wm_env.common.progress import Report

_LATE = 10.0
"""Seconds over its limit that a text may be late, as when another program holds the ledger."""

_STEP = 128
"""Nonces by which the readers' search grows: each time they begin anew."""

_Result = TypeVar("_Result")
_Request = TypeVar("_Request", bound=PlainRequest)


class Service:
    """What the paths do.

    The nonces of `setup`, that of the readers, grow with the ledger.
    """

    def __init__(self, writer: TextWriter, setup: ReaderSetup, limits: ServeLimits) -> None:
        self._writer, self._setup, self._limits = writer, setup, limits
        self._reading = Lane("read", limits.readers, limits.waiting)
        self._writing = Lane("written", 1, limits.waiting)
        self._progress = Progress(0.0)
        self._thread = ThreadPoolExecutor(1)
        self._readers = Readers(limits.readers)

    def close(self) -> None:
        """End the processes, and what they do."""
        self._progress.give_up()
        self._thread.shutdown(cancel_futures=True)
        self._readers.close()

    async def read(self, request: Request, work: Callable[[ReaderSetup, str], _Result], text: str) -> _Result:
        """Read a text in another process.

        Raises:
            ValueError: it is too long, or no text.
            SlowError, EndedError: as in `Readers`.
            BusyError, GoneError: as in `Lane`.
        """
        if len(text) > self._limits.most_characters:
            raise ValueError(f"a text of {len(text)} characters: give at most {self._limits.most_characters}")

        async def one() -> _Result:
            return await self._readers.read(work, self._setup, text, self._limits.reading_seconds)

        return await self._reading.run(request, one)

    async def write(
        self, request: Request, work: Callable[[TextWriter, _Request, Report], _Result], wanted: _Request
    ) -> _Result:
        """Write a text in the thread of the model.

        Raises:
            ValueError: it is to be too long, or the writer refuses.
            RuntimeError, OSError: as the writer raises.
            SlowError, BusyError, GoneError: as in `Lane` and `Progress`.
        """
        if wanted.tokens > self._limits.most_tokens:
            raise ValueError(f"tokens={wanted.tokens}: a text may have {self._limits.most_tokens} here")
        if len(wanted.prompt) > self._limits.most_characters:
            raise ValueError(
                f"a prompt of {len(wanted.prompt)} characters: give {self._limits.most_characters} at most"
            )

        async def one() -> _Result:
            progress = self._progress = Progress(self._limits.writing_seconds)
            running = asyncio.get_running_loop().run_in_executor(
                self._thread, work, self._writer, wanted, progress.report
            )
            try:
                return await asyncio.wait_for(running, progress.seconds + _LATE)
            except TimeoutError:
                raise SlowError(f"writing took more than {progress.seconds:g} seconds: try again later") from None
            finally:
                progress.give_up()
                self._progress = Progress(0.0)

        return await self._writing.run(request, one)

    def status(self) -> Status:
        """What is going on."""
        return Status(
            model=self._writer.lm.name,
            payload_bits=self._writer.settings.payload_bits,
            most_tokens=self._limits.most_tokens,
            most_characters=self._limits.most_characters,
            reading=self._reading.inside,
            writing=self._writing.inside,
            done=self._progress.done,
            total=self._progress.total,
        )

    def note_nonce(self, nonce: int) -> None:
        """Let the readers look for the text of this nonce too."""
        nonces = self._setup.nonces
        if nonce >= nonces.stop:
            self._setup = replace(self._setup, nonces=range(nonces.start, (nonce // _STEP + 1) * _STEP))
