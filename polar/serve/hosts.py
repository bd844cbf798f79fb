"""The names by which a server for this machine alone may be asked.

A page elsewhere can let its own name lead to this machine, and so make a browser ask the server. The request then has
that name in its header Host.
"""

import re
from collections.abc import Collection
from ipaddress import ip_address

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names of the machine itself."""

_HOST = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:]*))(?::[0-9]*)?")


def in_address(host: str) -> str:
    """A host as it stands in http://[::1]:8000: brackets keep the colons of IPv6 from the port's."""
    return f"[{host}]" if ":" in host else host


class KnownHosts:
    """Lets requests for one of `names` through to `app`, and refuses others."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app, self._names = app, {_shortest(name) for name in names}
        known = ", ".join(sorted(map(in_address, names)))
        self._line = f"the server answers to other names: write one of {known} in the address"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        app = self._app
        if scope["type"] == "http" and _host_of(scope) not in self._names:
            app = JSONResponse({"error": self._line}, 400)
        await app(scope, receive, send)


def _host_of(scope: Scope) -> str | None:
    """Whom a request asks, without the port; None if it does not say so as HTTP has it."""
    found = _HOST.fullmatch(dict(scope["headers"]).get(b"host", b"").decode("latin-1"))
    return None if found is None else _shortest(found["v6"] or found["name"] or "")


def _shortest(name: str) -> str:
    """A name as it can be compared: addresses have several spellings, as ::1 and 0:0:0:0:0:0:0:1."""
    try:
        return ip_address(name).compressed
    except ValueError:
        return name.lower()
