"""How long a client may keep a connection waiting: for the headers of a request, and for taking an answer.

uvicorn waits for both without end, so that clients that do neither take up every connection that it allows.
"""

import asyncio
from collections.abc import Callable
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from polar.serve.options import ServeLimits


class Connection(H11Protocol):
    """A connection that ends once its client is late.

    The headers of the first request are due `receiving_seconds` after the connection was made, those of a later request
    as long after their first byte; uvicorn ends connections without a next request itself. Each piece of an answer must
    have been taken `sending_seconds` after it was sent.
    """

    receiving_seconds: ClassVar[float]
    sending_seconds: ClassVar[float]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As asyncio has it."""
        self._headers, self._taking = _Clock(self.loop), _Clock(self.loop)
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # writing is paused as long as a byte of an answer is left
        self._headers.start(self.receiving_seconds, transport.close)

    def data_received(self, data: bytes) -> None:
        """As asyncio has it."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # a request has begun
            self._headers.stop()
        else:
            self._headers.start(self.receiving_seconds, self.transport.close)

    def pause_writing(self) -> None:
        """As asyncio has it."""
        super().pause_writing()
        # What is only closed still waits until the rest of the answer has been taken.
        self._taking.start(self.sending_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """As asyncio has it."""
        super().resume_writing()
        self._taking.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio has it."""
        super().connection_lost(exc)
        self._headers.stop()
        self._taking.stop()


class _Clock:
    """Does something once so many seconds have passed since its start, unless it is stopped before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float, action: Callable[[], None]) -> None:
        """Start; a clock that goes already goes on."""
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, action)

    def stop(self) -> None:
        """Stop; it can be started anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def connection_within(limits: ServeLimits) -> type[Connection]:
    """The kind of connection that keeps to `limits`, for uvicorn."""

    class Limited(Connection):
        receiving_seconds = limits.receiving_seconds
        sending_seconds = limits.sending_seconds

    return Limited
