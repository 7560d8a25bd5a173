"""Start the watch page on 127.0.0.1, and on no other address."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedgsca.review.serve import HOST, MAX_CONNECTIONS, bind
from fedgsca.watch.snapshot import WatchList

if TYPE_CHECKING:
    import uvicorn


def build_watch_server(watches: WatchList, listener: socket.socket) -> tuple[uvicorn.Server, str]:
    """The server for a listening socket, and the address that opens the page."""
    import uvicorn

    from fedgsca.review.timed_protocol import TimedProtocol
    from fedgsca.watch.watch_app import build_watch_app

    port = int(listener.getsockname()[1])
    token = secrets.token_urlsafe(32)
    config = uvicorn.Config(
        build_watch_app(watches, port=port, token=token),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        ws="none",
        http=TimedProtocol,
        limit_concurrency=MAX_CONNECTIONS,
        loop="asyncio",
    )
    return uvicorn.Server(config), f"http://{HOST}:{port}/?token={token}"


def serve_watch(watches: WatchList, port: int | None, announce: Callable[[str], None]) -> None:
    """Answer requests until Ctrl-C. `announce` gets the address as soon as the port is ours."""
    with contextlib.suppress(KeyboardInterrupt), bind(port) as listener:
        server, address = build_watch_server(watches, listener)
        announce(address)
        server.run(sockets=[listener])
