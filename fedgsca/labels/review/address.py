"""Where the review page is served on a hospital's network, and the certificate for that name.

The address is always named: there is no "all interfaces by default". Beyond this machine the page
is served over TLS only.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.support.files import make_private_folder, write_atomic

if TYPE_CHECKING:
    from fedgsca.hospital.certificates import CertifiedKey, ServerCertificate

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
