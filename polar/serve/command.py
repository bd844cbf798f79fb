"""The command `serve`: load, listen, serve until Ctrl-C."""

import socket
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import uvicorn

from polar.serve.app import make_app
from polar.serve.connections import connection_within
from polar.serve.hosts import LOCAL, in_address
from polar.serve.options import Serve
from polar.serve.reading import ReaderSetup
from polar.serve.service import Service
from polar.serve.writing import TextWriter
from polar.text.keys.key import Key
from polar.text.sources import open_vocabulary
from wm_env.common.command import tell
from wm_env.common.files import naming
from wm_env.lm.models.folder import find_model
from wm_env.lm.models.load import dtype_named, load_lm

_MOST_CONNECTIONS = 512
"""More are turned away at once."""


def open_service(options: Serve, key: Key) -> Service:
    """The model, loaded, and the readers.

    Raises:
        ValueError, OSError: the model cannot be loaded, or the ledger not be written.
    """
    dtype = dtype_named(options.dtype)
    lm = load_lm(options.model, device=options.device, dtype=dtype, arithmetic=options.arithmetic)
    folder = find_model(options.model, ["*.json", "merges.txt"])
    writer = TextWriter(lm, open_vocabulary(lm), key, options.ledger_file, options.robust)
    service = Service(writer, ReaderSetup(key, folder, options.robust, range(options.search)), options.limits)
    service.note_nonce(writer.used())
    return service


def serve(options: Serve, key: Key) -> None:
    """Serve until Ctrl-C.

    Raises:
        ValueError, OSError: as `open_service` does; or nothing can be listened at there.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with naming(Path(f"{in_address(options.host)}:{options.port}")):
        listener = socket.create_server((options.host, options.port), family=family, backlog=128)
    with listener:
        host, port = listener.getsockname()[:2]
        local = ip_address(host).is_loopback
        app = make_app(open_service(options, key), options.limits, {*LOCAL, host} if local else None)
        tell(f"serving on http://{in_address(host)}:{port} (programs: /docs); Ctrl-C ends it")
        if not local:
            tell("anyone who reaches this address can write and read with the key")
        config = uvicorn.Config(
            app,
            http=connection_within(options.limits),
            ws="none",
            log_level="warning",
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=5,
        )
        with suppress(KeyboardInterrupt):  # what uvicorn raises once it has ended well
            uvicorn.Server(config).run(sockets=[listener])
