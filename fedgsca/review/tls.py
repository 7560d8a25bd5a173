"""The certificate of the review page: made here, or checked before the server starts."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path

from fedgsca.deploy.certificates import (
    CertifiedKey,
    ServerCertificate,
    host_text,
    inspect_own_certificate,
    make_authority,
    make_server,
)
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.review.network_server import PageAddress, TlsFiles
from fedgsca.support.files import PRIVATE, make_private_folder, write_atomic


@dataclass(frozen=True)
class MadeCertificate:
    """The files that `make_certificate` wrote, and the fingerprint to compare when importing."""

    authority: Path
    files: TlsFiles
    # sha256 of the authority's certificate, as browsers show it
    fingerprint: str


def check_certificate(files: TlsFiles, page_address: PageAddress) -> ServerCertificate:
    """Refuse files that a browser would refuse: another name, another key, an expired one."""
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
    certificate = inspect_own_certificate(*contents)
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
    make_private_folder(folder)
    own_vault = folder if (folder / "ca.key").exists() else None
    source = vault or own_vault
    if source is None:
        authority = make_authority(f"fedgsca review {page_address.host}", hosts=[page_address.host])
        write_atomic(folder / "ca.key", authority.key, mode=PRIVATE)
        write_atomic(folder / "ca.crt", authority.certificate)
    else:
        authority = _read_authority(source)
        write_atomic(folder / "ca.crt", authority.certificate)
    try:
        server = make_server(authority, [page_address.host])
    except ValueError as error:
        raise _unusable_authority(source or folder, error) from None
    files = TlsFiles(folder / "server.pem", folder / "server.key")
    write_atomic(files.key, server.key, mode=PRIVATE)
    write_atomic(files.certificate, server.certificate)
    fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority.certificate.decode()))
    return MadeCertificate(folder / "ca.crt", files, fingerprint.hexdigest().upper())


def _read_authority(folder: Path) -> CertifiedKey:
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
