"""What every request must keep to before anything of it is looked at: its size, and the time that it takes to come."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CLOSE = {"connection": "close"}
_LINGER_SECONDS = 5.0
"""How long a client may go on sending a body that was refused."""


class BodyLimits:
    """Takes in the whole body of a request for `app`, at most `most_bytes` within so many `seconds`, or refuses it."""

    def __init__(self, app: ASGIApp, most_bytes: int, seconds: float) -> None:
        self._app, self._most_bytes, self._seconds = app, most_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._seconds):
                messages, more = await self._read(scope, receive)
        except TimeoutError:
            line = f"the request did not arrive within {self._seconds:g} seconds"
            await JSONResponse({"error": line}, 408, _CLOSE)(scope, receive, send)
            return
        if messages is None:
            await _refuse(f"a request may have {self._most_bytes} bytes: give a part of the text", more, receive, send)
            return
        await self._app(scope, _replay(messages, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> tuple[list[Message] | None, bool]:
        """The parts of the body, None if it is too long; and whether there is more of it."""
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self._most_bytes:
            return None, True
        messages: list[Message] = []
        size, more = 0, True
        while more:
            message = await receive()
            messages.append(message)
            size += len(message.get("body", b""))
            more = _goes_on(message)
            if size > self._most_bytes:
                return None, more
        return messages, False


def _goes_on(message: Message) -> bool:
    return message["type"] == "http.request" and bool(message.get("more_body", False))


def _replay(messages: list[Message], receive: Receive) -> Receive:
    rest: Iterator[Message] = iter(messages)

    async def replayed() -> Message:
        for message in rest:
            return message
        return await receive()

    return replayed


async def _refuse(line: str, more: bool, receive: Receive, send: Send) -> None:
    """Answer that a body is too long, and take in what is still on its way before the connection is closed.

    A client that still sends when the connection is closed sees it reset, and may lose the answer with it.
    """
    answer = JSONResponse({"error": line}, 413, _CLOSE)
    await send({"type": "http.response.start", "status": 413, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            while more:
                more = _goes_on(await receive())
    await send({"type": "http.response.body", "body": b""})
