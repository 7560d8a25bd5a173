"""Where a page is served: on 127.0.0.1 only, or with TLS at one named address of a hospital.

The address on a network is always named: there is no "all interfaces by default". Beyond this
machine the page is served over TLS only.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import re
import secrets
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fedgsca.errors import ConfigError, MissingExtraError, RunFolderError
from fedgsca.support.files import make_private_folder, write_atomic

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from fedgsca.hospital.certificates import ServerCertificate
    from fedgsca.labels.review.session import Session
    from fedgsca.labels.review.web_app import SharedReview

DEFAULT_PORT = 8443
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
    address = text.strip().lower()
    if address.count(":") > 1 and not address.startswith("["):  # IPv6 without a port
        address = f"[{address}]"
    host, port = "", 0
    with contextlib.suppress(ValueError):
        parts = urlsplit(f"//{address}")
        if parts.netloc == address and "@" not in address:
            host = parts.hostname or ""
            port = DEFAULT_PORT if parts.port is None else parts.port
    ip = _ip_address(host)
    if port < 1 or (ip is None and not _is_host_name(host)):
        raise ConfigError(
            "review.invalid-address",
            f"{text!r} is not an address to serve the page at",
            fix=f"write HOST or HOST:PORT, for example review.hospital.example:{DEFAULT_PORT}",
        )
    if ip is not None and ip.is_unspecified:
        raise ConfigError(
            "review.unspecified-address",
            f"{text} is not an address that a browser can open",
            fix="give --serve the name or address by which reviewers call this machine; to accept"
            f" connections on all its addresses, add --listen {ip}",
        )
    return PageAddress(host if ip is None else str(ip), port)


def _ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_host_name(host: str) -> bool:
    """Whether this is a name, and not one such as 1.2.3 or 0x7f, which browsers read as numbers."""
    last = host.rpartition(".")[2]
    looks_like_number = last.isdecimal() or last.startswith("0x")
    return _HOST_NAME.fullmatch(host) is not None and not looks_like_number


def _is_loopback(address: str) -> bool:
    ip = _ip_address(address)
    return ip is not None and ip.is_loopback


def choose_listen_address(page_address: PageAddress, listen: str | None) -> str:
    """The IP address to listen on: `listen`, or that of the served name."""
    if listen is not None:
        ip = _ip_address(listen.strip("[]"))
        if ip is None:
            raise ConfigError(
                "review.invalid-listen",
                f"--listen {listen} is not an IP address of this machine",
                fix="write one address of this machine in numbers, not its name",
            )
        return str(ip)
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


# ---- the certificate ----


@dataclass(frozen=True)
class MadeCertificate:
    """The files that `make_certificate` wrote, and the fingerprint to compare when importing."""

    authority: Path
    files: TlsFiles
    # sha256 of the authority's certificate, as browsers show it
    fingerprint: str


def check_certificate(files: TlsFiles, page_address: PageAddress) -> ServerCertificate:
    """Refuse files that a browser would refuse: another name, another key, an expired one."""
    from fedgsca.hospital.certificates import inspect_certificate

    try:
        contents = [path.read_bytes() for path in (files.certificate, files.key)]
    except OSError as error:
        raise RunFolderError(
            "review.certificate-not-found",
            f"{error.filename} cannot be read: {error.strerror}",
            fix="correct --certificate and --key; `fedgsca reviewers certificate` makes both",
        ) from None
    certificate = inspect_certificate(*contents)
    if not any(_fits(name, page_address.host) for name in certificate.hosts):
        raise ConfigError(
            "review.certificate-for-another-host",
            f"the certificate is for {', '.join(certificate.hosts)}, not for {page_address.host}",
            fix="use one of these names in --serve, or get a certificate for this one",
        )
    if certificate.age < 0 or certificate.days_left < 0:
        raise ConfigError(
            "review.certificate-expired",
            f"the certificate is not valid now; it ends on {certificate.end:%Y-%m-%d}",
            fix="get a new one, or correct the clock of this machine",
        )
    return certificate


def _fits(pattern: str, host: str) -> bool:
    """Whether a name in a certificate is this host; *.example.org stands for one more label."""
    from fedgsca.hospital.certificates import host_text

    pattern = pattern.lower()
    if pattern.startswith("*."):
        first, dot, domain = host.partition(".")
        return bool(first and dot) and domain == pattern[2:]
    return pattern == host_text(host).lower()


def make_certificate(
    page_address: PageAddress, folder: Path, vault: Path | None
) -> MadeCertificate:
    """Write server.pem, server.key and ca.crt for this host to a folder.

    The authority is that of `vault`, a folder with ca.crt and ca.key such as `authority` of the
    kits, else that of `folder`, else a new one which can sign for this host only.
    """
    from fedgsca.hospital.certificates import CertifiedKey, make_authority, make_server

    make_private_folder(folder)
    source = vault or (folder if (folder / "ca.key").exists() else None)
    host = page_address.host
    try:
        if source is None:
            authority = make_authority(f"fedgsca review {host}", hosts=[host])
            write_atomic(folder / "ca.key", authority.key)
        else:
            contents = [(source / name).read_bytes() for name in ("ca.crt", "ca.key")]
            authority = CertifiedKey(*contents)
        write_atomic(folder / "ca.crt", authority.certificate)
        server = make_server(authority, [host])
    except (OSError, ValueError) as error:
        raise RunFolderError(
            "review.unusable-authority",
            f"the authority in {source or folder} cannot be used: {error}",
            fix="name a folder with ca.crt and ca.key, or omit --authority to make a new one",
        ) from None
    files = TlsFiles(folder / "server.pem", folder / "server.key")
    write_atomic(files.key, server.key)
    write_atomic(files.certificate, server.certificate)
    fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority.certificate.decode()))
    return MadeCertificate(folder / "ca.crt", files, fingerprint.hexdigest().upper())


# ---- sockets ----

HOST = "127.0.0.1"
FIRST_PORT = 8765
LAST_PORT = 8784
MAX_CONNECTIONS = 400  # of all clients together


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


def server_config(app: ASGIApp, tls: TlsFiles | None = None) -> uvicorn.Config:
    """What both pages are served with: nothing is logged, announced or trusted."""
    import uvicorn

    from fedgsca.labels.review import security

    return uvicorn.Config(
        app,
        http=security.TimedProtocol,
        loop=f"{security.__name__}:HandshakeTimer",
        limit_concurrency=MAX_CONNECTIONS,
        ssl_ciphers=security.CIPHERS,
        ssl_certfile=None if tls is None else str(tls.certificate),
        ssl_keyfile=None if tls is None else str(tls.key),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        ws="none",
    )


# ---- on this machine ----


def build_page_server(session: Session, listener: socket.socket) -> tuple[uvicorn.Server, str]:
    """A server of this machine only, for a listening socket, and the address of its page."""
    import uvicorn

    from fedgsca.labels.review.web_app import build_app

    port = int(listener.getsockname()[1])
    token = secrets.token_urlsafe(32)
    config = server_config(build_app(session, port=port, token=token))
    return uvicorn.Server(config), f"http://{HOST}:{port}/?token={token}"


def serve_page(session: Session, port: int | None, announce: Callable[[str], None]) -> None:
    """Answer requests until Ctrl-C. `announce` gets the address as soon as the port is ours."""
    with contextlib.suppress(KeyboardInterrupt), bind(port) as listener:
        server, address = build_page_server(session, listener)
        announce(address)
        server.run(sockets=[listener])


# ---- on a network ----


def build_network_server(
    review: SharedReview, page_address: PageAddress, tls: TlsFiles | None, person: str = ""
) -> uvicorn.Server:
    """The server, for a socket that listens already. It notes its own end in the trail."""
    import uvicorn

    from fedgsca.labels.review.web_app import build_network_app

    url = page_address.url(has_tls=tls is not None)
    app = build_network_app(
        review,
        hosts=page_address.host_headers(has_tls=tls is not None),
        scheme="http" if tls is None else "https",
        port=page_address.port,
    )

    class NotedServer(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """End, by Ctrl-C or by the service manager: uvicorn repeats the signal after this."""
            await super().shutdown(sockets)
            review.trail.write("server-stopped", person, address=url)

    return NotedServer(server_config(app, tls))


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
