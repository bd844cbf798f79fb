"""What every request must keep to before anything of it is looked at: its size, and the time that it takes to come."""

import asyncio
from collections.abc import Iterator

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
                messages = await self._read(scope, receive)
        except TimeoutError:
            await _refuse(408, f"the request did not arrive within {self._seconds:g} seconds", scope, receive, send)
            return
        if messages is None:
            line = f"a request may have {self._most_bytes} bytes: give a part of the text"
            await _refuse(413, line, scope, receive, send)
            return
        await self._app(scope, _replay(messages, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> list[Message] | None:
        """The parts of the body; None if it is too long."""
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self._most_bytes:
            return None
        messages: list[Message] = []
        size, more = 0, True
        while more:
            message = await receive()
            messages.append(message)
            size += len(message.get("body", b""))
            more = message["type"] == "http.request" and message.get("more_body", False)
            if size > self._most_bytes:
                return None
        return messages


def _replay(messages: list[Message], receive: Receive) -> Receive:
    rest: Iterator[Message] = iter(messages)

    async def replayed() -> Message:
        for message in rest:
            return message
        return await receive()

    return replayed


async def _refuse(status: int, line: str, scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse({"error": line}, status, {"connection": "close"})(scope, receive, send)
