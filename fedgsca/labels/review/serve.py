"""Start a page: on 127.0.0.1 and on no other address, or with TLS on a hospital's network."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from fedgsca.errors import ConfigError, MissingExtraError
from fedgsca.labels.review.address import PageAddress, TlsFiles, require_tls

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from fedgsca.labels.review.web_app import SharedReview

HOST = "127.0.0.1"
FIRST_PORT = 8765
LAST_PORT = 8784
MAX_CONNECTIONS = 200  # a browser opens six
MAX_NETWORK_CONNECTIONS = 400  # of all clients together


def bind(port: int | None) -> socket.socket:
    """A listening socket of this machine only: on `port`, or on the first free one from 8765 on."""
    if port is not None:
        try:
            return _listen(HOST, port)
        except OSError as error:
            raise ConfigError(
                "review.port-unavailable",
                f"port {port} cannot be used: {error.strerror or error}",
                fix="choose another --port, or omit the option",
            ) from None
    for candidate in range(FIRST_PORT, LAST_PORT + 1):
        with contextlib.suppress(OSError):
            return _listen(HOST, candidate)
    raise ConfigError(
        "review.no-free-port",
        f"all ports from {FIRST_PORT} to {LAST_PORT} are in use",
        fix="stop a review that is still running, or choose a --port",
    )


def bind_address(address: str, port: int) -> socket.socket:
    """A listening socket on one address of this machine."""
    try:
        return _listen(address, port)
    except OSError as error:
        raise ConfigError(
            "review.address-unavailable",
            f"{address} port {port} cannot be used: {error.strerror or error}",
            fix="choose another port in --serve, or an address of this machine in --listen; ports"
            " below 1024 need special rights",
        ) from None


def _listen(address: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        # allows a port that was just released, never one in use
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()  # already here, so that a second server finds the port in use
    except OSError:
        listener.close()
        raise
    return listener


def require_server_packages() -> None:
    """Raise MissingExtraError if starlette or uvicorn is not installed."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            "extra.review-missing",
            f"the review page needs packages that are not installed: {', '.join(missing)}",
            fix="pip install 'fedgsca[review]'",
        )


class MakeApp(Protocol):
    """Makes the application of a page behind its access control."""

    def __call__(self, *, port: int, token: str) -> ASGIApp: ...


def server_config(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """What every page of ours is served with: nothing is logged, announced or trusted.

    `options` are those in which a server differs.
    """
    import uvicorn

    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        ws="none",
        **options,
    )


def build_page_server(make_app: MakeApp, listener: socket.socket) -> tuple[uvicorn.Server, str]:
    """A server of this machine only, for a listening socket, and the address of its page."""
    import uvicorn

    from fedgsca.labels.review.security import TimedProtocol

    port = int(listener.getsockname()[1])
    token = secrets.token_urlsafe(32)
    config = server_config(
        make_app(port=port, token=token),
        http=TimedProtocol,
        limit_concurrency=MAX_CONNECTIONS,
        loop="asyncio",
    )
    return uvicorn.Server(config), f"http://{HOST}:{port}/?token={token}"


def serve_page(make_app: MakeApp, port: int | None, announce: Callable[[str], None]) -> None:
    """Answer requests until Ctrl-C. `announce` gets the address as soon as the port is ours."""
    with contextlib.suppress(KeyboardInterrupt), bind(port) as listener:
        server, address = build_page_server(make_app, listener)
        announce(address)
        server.run(sockets=[listener])


# ---- on a network ----


def build_network_server(
    review: SharedReview, page_address: PageAddress, tls: TlsFiles | None, person: str = ""
) -> uvicorn.Server:
    """The server, for a socket that listens already. It notes its own end in the trail."""
    import uvicorn

    from fedgsca.labels.review import security
    from fedgsca.labels.review.web_app import build_network_app

    has_tls = tls is not None
    app = build_network_app(
        review,
        hosts=page_address.host_headers(has_tls=has_tls),
        scheme="https" if has_tls else "http",
        port=page_address.port,
    )
    config = server_config(
        app,
        http=security.NetworkProtocol,
        limit_concurrency=MAX_NETWORK_CONNECTIONS,
        loop=f"{security.__name__}:HandshakeTimer",
        ssl_ciphers=security.CIPHERS,
        ssl_certfile=None if tls is None else str(tls.certificate),
        ssl_keyfile=None if tls is None else str(tls.key),
    )

    class NotedServer(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """End, by Ctrl-C or by the service manager: uvicorn repeats the signal after this."""
            await super().shutdown(sockets)
            review.trail.write("server-stopped", person, address=page_address.url(has_tls=has_tls))

    return NotedServer(config)


def serve_network(
    review: SharedReview,
    page_address: PageAddress,
    *,
    listen: str,
    tls: TlsFiles | None,
    person: str,
    announce: Callable[[str], None],
) -> None:
    """Answer requests until Ctrl-C. `person` starts it, for the trail."""
    require_tls(page_address, listen, tls)
    url = page_address.url(has_tls=tls is not None)
    with (
        contextlib.suppress(KeyboardInterrupt),
        bind_address(listen, page_address.port) as listener,
    ):
        server = build_network_server(review, page_address, tls, person)
        review.trail.write("server-started", person, address=url)
        announce(url)
        server.run(sockets=[listener])
