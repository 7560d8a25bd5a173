"""Certificates and keys. The only file that imports `cryptography` (extras [flower], [review]).

authority    signs the server's certificate; hospitals trust it and nothing else
server       for the names that hospitals call; TLS of the SuperLink
hospital     an ECDSA P-384 pair in OpenSSH format, which identifies a SuperNode
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgsca.errors import DataError, MissingExtraError

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise MissingExtraError(
        "extra.flower-missing",
        "certificates and keys need the package cryptography, which is not installed",
        fix="pip install 'fedgsca[flower]' or, for the review page, 'fedgsca[review]'",
    ) from error

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825  # the longest that common TLS clients accept
_PEM = serialization.Encoding.PEM
_NO_ENCRYPTION = serialization.NoEncryption()


@dataclass(frozen=True)
class CertifiedKey:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def make_authority(
    name: str,
    *,
    days: int = AUTHORITY_DAYS,
    now: datetime.datetime | None = None,
    hosts: Sequence[str] = (),
) -> CertifiedKey:
    """A certificate that signs itself and others.

    With `hosts` it can sign for these names and addresses only. An authority that is imported into
    browsers needs this limit: with its stolen key, nobody can pretend to be another server.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    builder = _builder(name, name, key, days, now)
    if hosts:
        limits = x509.NameConstraints([_name_constraint(host) for host in hosts], None)
        builder = builder.add_extension(limits, critical=True)
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(sign=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    return CertifiedKey(certificate.public_bytes(_PEM), _private_bytes(key))


def make_server(
    authority: CertifiedKey,
    hosts: Sequence[str],
    *,
    days: int = SERVER_DAYS,
    now: datetime.datetime | None = None,
) -> CertifiedKey:
    """A certificate for these names and addresses; it never outlives the authority.

    Raises ValueError if the authority is damaged or may not sign for one of them.
    """
    root = x509.load_pem_x509_certificate(authority.certificate)
    _check_constraints(root, hosts)
    signer = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    identity = x509.SubjectKeyIdentifier.from_public_key(signer.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity)
    common = root.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    builder = _builder(hosts[0], str(common), key, days, now, last=root.not_valid_after_utc)
    certificate = (
        builder.add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(issuer, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(sign=False), critical=True)
        .sign(signer, hashes.SHA384())
    )
    return CertifiedKey(certificate.public_bytes(_PEM), _private_bytes(key))


def end_of_validity(certificate: bytes) -> datetime.datetime:
    """When a certificate (PEM) expires."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


@dataclass(frozen=True)
class ServerCertificate:
    """A server's certificate that fits its key and its authority."""

    hosts: tuple[str, ...]
    end: datetime.datetime
    age: float  # seconds; negative: not valid yet
    days_left: int


def inspect_certificate(certificate: bytes, key: bytes) -> ServerCertificate:
    """Read a server's certificate (PEM, perhaps with its chain); an error if the key is another."""
    try:
        leaf = x509.load_pem_x509_certificates(certificate)[0]
        public = serialization.load_pem_private_key(key, None).public_key()
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, x509.ExtensionNotFound, UnsupportedAlgorithm) as error:
        raise DataError(
            "deploy.unusable-certificate",
            f"the certificate or its key cannot be used ({error})",
            fix="give PEM files: a certificate with subject alternative names, and its key without"
            " a passphrase",
        ) from None
    if leaf.public_key() != public:
        raise DataError(
            "deploy.wrong-certificate-key",
            "the key does not belong to the certificate",
            fix="give the key with which the certificate was requested",
        )
    now = datetime.datetime.now(datetime.UTC)
    return ServerCertificate(
        hosts=tuple(str(name.value) for name in names),
        end=leaf.not_valid_after_utc,
        age=(now - leaf.not_valid_before_utc).total_seconds(),
        days_left=(leaf.not_valid_after_utc - now).days,
    )


def check_issuer(certificate: bytes, authority: bytes) -> None:
    """An error if the authority (both PEM) did not sign the certificate."""
    try:
        root = x509.load_pem_x509_certificate(authority)
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        raise DataError(
            "deploy.wrong-authority",
            "server.pem is not signed by the authority of ca.crt",
            fix="make a new certificate with --renew-server",
        ) from None


def sign_as_authority(key: bytes, data: bytes) -> bytes:
    """The signature of the authority (its key, PEM), as `openssl dgst -sha384 -verify` reads it."""
    signer = serialization.load_pem_private_key(key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    return signer.sign(data, ec.ECDSA(hashes.SHA384()))


def is_signed_by(certificate: bytes, data: bytes, signature: bytes) -> bool:
    """Whether the authority with this certificate (PEM) has signed the data."""
    public = x509.load_pem_x509_certificate(certificate).public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    try:
        public.verify(signature, data, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


def make_key_pair() -> tuple[bytes, bytes]:
    """Private and public half of a hospital's key, as `ssh-keygen -t ecdsa -b 384` writes them."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _NO_ENCRYPTION)
    return private, _ssh_bytes(key.public_key()) + b"\n"


@dataclass(frozen=True)
class NodeKey:
    """A hospital's private key."""

    key: ec.EllipticCurvePrivateKey

    @property
    def public(self) -> bytes:
        """The public half as the SuperLink stores it."""
        return _pem_bytes(self.key.public_key())

    def fits(self, public: bytes) -> bool:
        """Whether this is the other half of a .pub file; comments at its end do not count."""
        return public.split()[:2] == _ssh_bytes(self.key.public_key()).split()[:2]

    def sign(self, message: bytes) -> bytes:
        """The signature that Flower expects of a SuperNode."""
        return self.key.sign(message, ec.ECDSA(hashes.SHA256()))


def read_node_key(data: bytes) -> NodeKey:
    """A SuperNode's key, or an error that says why it cannot be used."""
    requirement = "a private key of type ECDSA P-384 in OpenSSH format without passphrase"
    try:
        key = serialization.load_ssh_private_key(data, None)
    except (ValueError, TypeError) as error:
        raise DataError(
            "deploy.unusable-key",
            f"this is not {requirement} ({error})",
            fix="take the file out of the kit again, or make a new pair of keys",
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise DataError(
            "deploy.wrong-key-type",
            f"this is not {requirement}",
            fix="make one with ssh-keygen -t ecdsa -b 384, and send the public half to the"
            " coordinator",
        )
    return NodeKey(key)


def read_key_file(path: Path) -> NodeKey:
    """The key in a SuperNode's file, or an error that says why it cannot be used."""
    try:
        return read_node_key(path.read_bytes())
    except OSError as error:
        raise DataError(
            "deploy.unusable-key",
            f"the key {path} cannot be read: {error.strerror}",
            fix="take the file out of the kit again, or correct --key",
        ) from None


def public_pem(data: bytes) -> bytes | None:
    """A .pub file's key as the SuperLink stores it; None if no node can have such a key."""
    try:
        key = serialization.load_ssh_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        return None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        return None
    return _pem_bytes(key)


def _pem_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _ssh_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def _private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.TraditionalOpenSSL, _NO_ENCRYPTION)


def host_text(host: str) -> str:
    """A name or address in the form of `ServerCertificate.hosts`: IPv6 has several spellings."""
    return str(_general_name(host).value)


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _check_constraints(root: x509.Certificate, hosts: Sequence[str]) -> None:
    try:
        limits = root.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return
    for host in hosts:
        if _name_constraint(host) not in (limits.permitted_subtrees or ()):
            raise ValueError(f"it can sign for other hosts only, not for {host}")


def _name_constraint(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_network(text))
    except ValueError:
        return x509.DNSName(text)


def _builder(
    subject: str,
    issuer: str,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    now: datetime.datetime | None,
    *,
    last: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    tolerance = datetime.timedelta(hours=1)  # clocks differ a little
    begin = (now or datetime.datetime.now(datetime.UTC)) - tolerance
    end = begin + datetime.timedelta(days=days)
    if last is not None:
        end = min(end, last)
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(subject))
        .issuer_name(_common_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])  # X.509 allows no more


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=sign,
        crl_sign=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
