"""`fedgsca review --serve`: the review page on a hospital's network, with TLS.

The address is always named: there is no "all interfaces by default". Beyond this machine the page
is served over TLS only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgsca.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn

    from fedgsca.review.network_app import SharedReview

DEFAULT_PORT = 8443
MAX_CONNECTIONS = 400  # of all clients together; a browser opens six
HANDSHAKE_SECONDS = 10.0
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2, the oldest version that Python accepts
_HOST_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)


@dataclass(frozen=True)
class PageAddress:
    """The name and port by which browsers call the page."""

    host: str
    port: int

    @property
    def is_local(self) -> bool:
        """Whether only this machine can call it."""
        return self.host == "localhost" or _is_loopback(self.host)

    def url(self, *, has_tls: bool) -> str:
        """The address of the page, without a secret."""
        scheme = "https" if has_tls else "http"
        return f"{scheme}://{self._bracket_host()}:{self.port}"

    def host_headers(self, *, has_tls: bool) -> tuple[str, ...]:
        """What browsers send as Host; they leave out the usual port."""
        host = self._bracket_host()
        headers = [f"{host}:{self.port}"]
        if self.port == (443 if has_tls else 80):
            headers.append(host)
        return tuple(headers)

    def _bracket_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a server."""

    certificate: Path
    key: Path


def parse_address(text: str) -> PageAddress:
    """HOST or HOST:PORT; IPv6 in brackets if there is a port."""
    host, port_text = _split_port(text.strip().lower())
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        is_valid = _HOST_NAME.fullmatch(host) is not None and not _looks_like_number(host)
    else:
        is_valid = True
        host = str(address)
        if address.is_unspecified:
            raise ConfigError(
                "review.unspecified-address",
                f"{text} is not an address that a browser can open",
                fix="give --serve the name or address by which reviewers call this machine; to"
                f" accept connections on all its addresses, add --listen {host}",
            )
    is_port = port_text.isdecimal() and len(port_text) < 6 and 1 <= int(port_text) <= 65535
    if not is_valid or not is_port:
        raise ConfigError(
            "review.invalid-address",
            f"{text!r} is not an address to serve the page at",
            fix=f"write HOST or HOST:PORT, for example review.hospital.example:{DEFAULT_PORT}",
        )
    return PageAddress(host, int(port_text))


def _split_port(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port.removeprefix(":") or str(DEFAULT_PORT)
    if text.count(":") > 1:  # IPv6 without a port
        return text, str(DEFAULT_PORT)
    host, colon, port = text.partition(":")
    return host, port if colon else str(DEFAULT_PORT)


def _looks_like_number(host: str) -> bool:
    """Names such as 1.2.3 or 0x7f: browsers read them as addresses, but not always the same."""
    last = host.rpartition(".")[2]
    return last.isdecimal() or last.startswith("0x")


def choose_listen_address(page_address: PageAddress, listen: str | None) -> str:
    """The IP address to listen on: `listen`, or that of the served name."""
    if listen is not None:
        try:
            return str(ipaddress.ip_address(listen.strip("[]")))
        except ValueError:
            raise ConfigError(
                "review.invalid-listen",
                f"--listen {listen} is not an IP address of this machine",
                fix="write one address of this machine in numbers, not its name",
            ) from None
    try:
        places = socket.getaddrinfo(page_address.host, page_address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            "review.unknown-host",
            f"the name {page_address.host} is not known on this machine: {error.strerror or error}",
            fix="correct --serve, or add --listen with the IP address of this machine",
        ) from None
    address = str(places[0][4][0]).partition("%")[0]
    if _is_loopback(address) and not page_address.is_local:
        raise ConfigError(
            "review.listens-locally",
            f"on this machine {page_address.host} means {address}, which no other computer can"
            " reach",
            fix="add --listen with the IP address of this machine on the hospital's network",
        )
    return address


def require_tls(page_address: PageAddress, listen: str, tls: TlsFiles | None) -> None:
    """Refuse to send images over a network without encryption."""
    if tls is None and not (page_address.is_local and _is_loopback(listen)):
        raise ConfigError(
            "review.tls-required",
            f"{page_address.host} is reached over a network, where images must be encrypted",
            fix="add --certificate and --key; `fedgsca reviewers certificate` makes them",
        )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def bind_address(address: str, port: int) -> socket.socket:
    """A listening socket on one address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(
            "review.address-unavailable",
            f"{address} port {port} cannot be used: {error.strerror or error}",
            fix="choose another port in --serve, or an address of this machine in --listen; ports"
            " below 1024 need special rights",
        ) from None
    return listener


class HandshakeTimer(asyncio.SelectorEventLoop):
    """An event loop whose TLS handshakes take ten seconds at most, instead of sixty."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        """As in the base class."""
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", HANDSHAKE_SECONDS)
        return await super().create_server(*args, **options)


def build_network_server(
    review: SharedReview, page_address: PageAddress, tls: TlsFiles | None, person: str = ""
) -> uvicorn.Server:
    """The server, for a socket that listens already. It notes its own end in the trail."""
    import uvicorn

    from fedgsca.review.network_app import build_network_app
    from fedgsca.review.serve import server_config
    from fedgsca.review.timed_protocol import NetworkProtocol

    has_tls = tls is not None
    app = build_network_app(
        review,
        hosts=page_address.host_headers(has_tls=has_tls),
        scheme="https" if has_tls else "http",
        port=page_address.port,
    )
    config = server_config(
        app,
        http=NetworkProtocol,
        limit_concurrency=MAX_CONNECTIONS,
        loop="fedgsca.review.network_server:HandshakeTimer",
        ssl_ciphers=CIPHERS,
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
