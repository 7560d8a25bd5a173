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
from typing import TYPE_CHECKING, Any, Protocol

from fedgsca.errors import ConfigError, MissingExtraError, RunFolderError
from fedgsca.support.files import make_private_folder, write_atomic

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from fedgsca.hospital.certificates import CertifiedKey, ServerCertificate
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

    contents = []
    for path in (files.certificate, files.key):
        try:
            contents.append(path.read_bytes())
        except OSError as error:
            raise RunFolderError(
                "review.certificate-not-found",
                f"{path} cannot be read: {error.strerror}",
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
    from fedgsca.hospital.certificates import make_authority, make_server

    make_private_folder(folder)
    own_vault = folder if (folder / "ca.key").exists() else None
    source = vault or own_vault
    if source is None:
        authority = make_authority(f"fedgsca review {page_address.host}", hosts=[page_address.host])
        write_atomic(folder / "ca.key", authority.key)
        write_atomic(folder / "ca.crt", authority.certificate)
    else:
        authority = _read_authority(source)
        write_atomic(folder / "ca.crt", authority.certificate)
    try:
        server = make_server(authority, [page_address.host])
    except ValueError as error:
        raise _unusable_authority(source or folder, error) from None
    files = TlsFiles(folder / "server.pem", folder / "server.key")
    write_atomic(files.key, server.key)
    write_atomic(files.certificate, server.certificate)
    fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority.certificate.decode()))
    return MadeCertificate(folder / "ca.crt", files, fingerprint.hexdigest().upper())


def _read_authority(folder: Path) -> CertifiedKey:
    from fedgsca.hospital.certificates import CertifiedKey

    try:
        return CertifiedKey((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes())
    except OSError as error:
        raise _unusable_authority(folder, error) from None


def _unusable_authority(folder: Path, error: Exception) -> RunFolderError:
    return RunFolderError(
        "review.unusable-authority",
        f"the authority in {folder} cannot be used: {error}",
        fix="name a folder with ca.crt and ca.key, or omit --authority to make a new one",
    )


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
