"""The application: paths, refusals, and the page."""

import sys
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from polar.serve import reading
from polar.serve.bodies import BodyLimits
from polar.serve.hosts import KnownHosts
from polar.serve.lanes import BusyError, GoneError, SlowError
from polar.serve.messages import (
    DetectionBody,
    EmbedRequest,
    MarkedText,
    PlainRequest,
    PlainText,
    ProblemBody,
    ReadingBody,
    Status,
    TextRequest,
)
from polar.serve.options import ServeLimits
from polar.serve.readers import EndedError
from polar.serve.service import Service
from polar.serve.writing import TextWriter
from wm_env.common.command import reason_of

PAGE = Path(__file__).with_name("page")
"""The page for people: files without anything from elsewhere."""

_PAGE_HEADERS = {"Content-Security-Policy": "default-src 'self'", "X-Content-Type-Options": "nosniff"}

_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemBody} for status in (400, 408, 413, 422, 429, 500, 503)
}

_AGAIN = {"Retry-After": "5"}


def make_app(service: Service, limits: ServeLimits, hosts: Collection[str] | None = None) -> FastAPI:
    """The application of a service.

    The service is closed with the application, which answers to the names in `hosts`; None is every one.
    """

    @asynccontextmanager
    async def closing(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPIOffline(
        title="covert-watermark",
        version=version("covert-watermark"),
        summary="Marked texts: written with a model and a key, read with the key alone",
        redoc_url=None,
        redirect_slashes=False,
        lifespan=closing,
        responses=_REFUSALS,
    )
    _add_paths(app, service)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    _add_refusals(app)
    if hosts is not None:
        app.add_middleware(KnownHosts, names=hosts)
    app.add_middleware(BodyLimits, most_bytes=limits.most_bytes, seconds=limits.receiving_seconds)
    return app


def _add_paths(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html", headers=_PAGE_HEADERS)

    @app.get("/status")
    async def status() -> Status:
        """What the server does, and what it takes."""
        return service.status()

    @app.post("/embed")
    async def embed(request: Request, wanted: EmbedRequest) -> MarkedText:
        """Write a text with a message."""
        written = await service.write(request, TextWriter.marked, wanted)
        service.note_nonce(written.nonce)
        return written

    @app.post("/plain")
    async def plain(request: Request, wanted: PlainRequest) -> PlainText:
        """Write a text of the same law without a message, to compare."""
        return await service.write(request, TextWriter.plain, wanted)

    @app.post("/decode")
    async def decode(request: Request, wanted: TextRequest) -> ReadingBody:
        """Read the message of a text."""
        return await service.read(request, reading.read_message, wanted.text)

    @app.post("/detect")
    async def detect(request: Request, wanted: TextRequest) -> DetectionBody:
        """Say whether a text is marked, and where. Quicker than to decode it, and only for the mark."""
        return await service.read(request, reading.detect, wanted.text)


def _add_refusals(app: FastAPI) -> None:
    """Every refusal is one line of JSON."""

    def refuse(kind: type[Exception], status: int, line: Callable[[Any], str], headers: dict[str, str]) -> None:
        async def answer(request: Request, error: Exception) -> Response:
            return JSONResponse({"error": line(error)}, status, headers)

        app.add_exception_handler(kind, answer)

    async def named(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        line = _why_unreadable(error.__cause__) or _one_line(error.detail)
        return JSONResponse({"error": line}, error.status_code, error.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        status, line = _what_is_invalid(error)
        return JSONResponse({"error": line}, status)

    app.add_exception_handler(HTTPException, named)
    app.add_exception_handler(RequestValidationError, invalid)
    refuse(ValueError, 422, _one_line, {})
    refuse(BusyError, 429, str, _AGAIN)
    refuse(SlowError, 503, str, _AGAIN)
    refuse(GoneError, 503, str, {})
    refuse(EndedError, 503, str, _AGAIN)
    refuse(RuntimeError, 422, _one_line, {})
    refuse(OSError, 500, reason_of, {})
    refuse(Exception, 500, lambda error: "the server failed at this request: its terminal says why", {})


def _why_unreadable(cause: BaseException | None) -> str | None:
    """Why FastAPI, which does not say so, could not read the JSON of a request; None if it was something else."""
    if isinstance(cause, UnicodeDecodeError):
        return f"the request is no JSON that can be read: its byte {cause.start + 1} is no UTF-8; send UTF-8"
    if isinstance(cause, RecursionError):
        return "the request is no JSON that can be read: it is nested too deeply; send one object of texts and numbers"
    if isinstance(cause, ValueError):  # all that Python's parser refuses otherwise
        most = sys.get_int_max_str_digits()
        return f"the request is no JSON that can be read: a number has more than {most} digits; send a smaller one"
    return None


def _what_is_invalid(error: RequestValidationError) -> tuple[int, str]:
    """The status of a request that is not as it should be, and what is wrong with it first."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return 400, f"the request is no JSON: {_one_line(first['ctx']['error'])}"
    place = ".".join(str(part) for part in first["loc"][1:]) or "the request"
    if first["type"] == "model_attributes_type":
        return 422, "the request must be a JSON object, sent as application/json"
    return 422, _one_line(f"{place}: {first['msg']}")


def _one_line(said: object) -> str:
    return " ".join(str(said).split())
