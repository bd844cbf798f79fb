"""Connections of clients that keep the server waiting, with small applications over real sockets."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest
import uvicorn

from polar.serve.connections import connection_within
from polar.serve.options import ServeLimits

HURRIED = ServeLimits(receiving_seconds=0.2, sending_seconds=0.2)
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
MUCH = 8 << 20
"""Bytes of an answer that these systems do not keep for a client that does not take them."""

LITTLE = 4096
"""Bytes that the systems of the server and of such a client are asked to keep."""


def answering(body, headers=(), seconds=0.0):
    """An application that gives this answer after so many seconds."""

    async def app(scope, receive, send):
        await asyncio.sleep(seconds)
        await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        await send({"type": "http.response.body", "body": body})

    return app


@asynccontextmanager
async def served(app, limits=HURRIED, options=()):
    """A server of `app`, with these options of its sockets, and its port. What waits for good in the context fails."""
    config = uvicorn.Config(
        app,
        http=connection_within(limits),
        log_level="warning",
        lifespan="off",
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for option, value in options:
            listener.setsockopt(socket.SOL_SOCKET, option, value)
        task = asyncio.create_task(server.serve([listener]))
        try:
            async with asyncio.timeout(60):
                yield server, listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def answer_of(reader):
    """The body of an answer with a length."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    (length,) = (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    return await reader.readexactly(length)


@pytest.mark.parametrize("sent", [b"", b"G", REQUEST[:-2]], ids=["nothing", "a letter", "a header"])
def test_who_does_not_send_the_headers_is_hung_up_on(sent):
    async def play():
        async with served(answering(b"")) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert await reader.read() == b""
            writer.close()

    asyncio.run(play())


def test_headers_letter_by_letter_do_not_keep_a_connection():
    async def play():
        async with served(answering(b"")) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST[:-2])
            while not reader.at_eof():
                writer.write(b"a")
                await asyncio.sleep(0.02)
            assert not server.server_state.connections
            writer.close()

    asyncio.run(play())


def test_the_headers_of_a_second_request_are_due_too():
    async def play():
        async with served(answering(b"done", [(b"content-length", b"4")])) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(REQUEST)
                assert await answer_of(reader) == b"done"
            writer.write(REQUEST[:-2])
            assert await reader.read() == b""
            writer.close()

    asyncio.run(play())


def test_a_request_that_has_begun_may_take_longer():
    async def play():
        app = answering(b"done", [(b"content-length", b"4")], seconds=5 * HURRIED.receiving_seconds)
        async with served(app) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(REQUEST)
                assert await answer_of(reader) == b"done"
            writer.close()

    asyncio.run(play())


@pytest.mark.parametrize("headers", [[], [(b"connection", b"close")]], ids=["kept", "to be closed"])
@pytest.mark.parametrize("size", [60_000, MUCH])
def test_who_does_not_take_the_answer_is_hung_up_on(headers, size):
    async def play():
        app = answering(bytes(size), headers)
        async with served(app, options=[(socket.SO_SNDBUF, LITTLE)]) as (server, port):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE)
                client.connect(("127.0.0.1", port))
                client.sendall(REQUEST)
                while not server.server_state.total_requests:
                    await asyncio.sleep(0.01)
                while server.server_state.connections:
                    await asyncio.sleep(0.01)

    asyncio.run(play())


def test_who_takes_a_long_answer_gets_all_of_it_and_the_next():
    limits = ServeLimits(receiving_seconds=0.2, sending_seconds=2.0)

    async def play():
        app = answering(bytes(MUCH), [(b"content-length", str(MUCH).encode())])
        async with served(app, limits) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST)
            assert await answer_of(reader) == bytes(MUCH)
            await asyncio.sleep(1.5 * limits.sending_seconds)
            writer.write(REQUEST)
            assert await answer_of(reader) == bytes(MUCH)
            writer.close()

    asyncio.run(play())
