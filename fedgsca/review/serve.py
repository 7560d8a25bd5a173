"""Starts the review server on 127.0.0.1, and nowhere else."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fedgsca.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import uvicorn

    from fedgsca.review.session import Session

HOST, PORT, TRIES = "127.0.0.1", 8765, 20


def bind(port: int | None) -> socket.socket:
    """A listening place on this machine only: the port asked for, or the first free one from 8765 on."""
    for candidate in [port] if port is not None else range(PORT, PORT + TRIES):
        place = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        place.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # a port that was just given back, never one in use
        try:
            place.bind((HOST, candidate))
            place.listen()  # now, so that a second server finds the port taken
            return place
        except OSError as error:
            place.close()
            if port is not None:
                why = error.strerror or str(error)
                raise ConfigError(
                    "todo.serve-1",
                    f"port {port} cannot be used: {why}",
                    fix="choose another --port, or leave it out",
                ) from None
    last = PORT + TRIES - 1
    raise ConfigError(
        "todo.serve-2",
        f"ports {PORT} to {last} are all in use",
        fix="stop a review that is still running, or choose a --port",
    )


def need_server() -> None:
    """starlette and uvicorn, or the line that installs them."""
    lacking = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if lacking:
        raise MissingExtraError(
            "todo.serve-3",
            f"the review page needs packages that are not installed: {', '.join(lacking)}",
            fix="pip install -c constraints.txt 'fedgsca[review]'",
        )


def make_server(session: Session, place: socket.socket) -> tuple[uvicorn.Server, str]:
    """The server for a place that is bound, and the address that opens the page."""
    import uvicorn

    from fedgsca.review.web_app import make_app

    number, token = int(place.getsockname()[1]), secrets.token_urlsafe(32)
    config = uvicorn.Config(
        make_app(session, port=number, token=token), log_level="warning", access_log=False, lifespan="off",
        server_header=False, proxy_headers=False, timeout_graceful_shutdown=1, ws="none", http="h11", loop="asyncio",
    )  # fmt: skip
    return uvicorn.Server(config), f"http://{HOST}:{number}/?token={token}"


def serve(session: Session, port: int | None, tell: Callable[[str], None]) -> None:
    """Answer until Ctrl-C. `tell` gets the address once the port is ours."""
    with contextlib.suppress(KeyboardInterrupt), bind(port) as place:
        server, address = make_server(session, place)
        tell(address)
        server.run(sockets=[place])
