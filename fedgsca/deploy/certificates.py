"""Certificates and keys. The only file of the package that imports `cryptography`, which comes with the extra [flower].

authority    signs the server's certificate; hospitals trust it and nothing else
server       for the names that hospitals call; TLS of the SuperLink
hospital     an ECDSA P-384 pair in OpenSSH format, with which a SuperNode says who it is
loopback     for the port on which a SuperNode talks to its own children; its authority's key is thrown away at once
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from fedgsca.errors import DataError, MissingExtraError

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as missing:
    raise MissingExtraError(
        "todo.certificates-1",
        "certificates need the package cryptography",
        fix="pip install 'fedgsca[flower]'",
    ) from missing

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825  # the longest that common TLS clients accept
LOOPBACK = ("localhost", "127.0.0.1")
_PEM = serialization.Encoding.PEM
_PLAIN = serialization.NoEncryption()


@dataclass(frozen=True)
class Signed:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def make_authority(
    name: str, *, days: int = AUTHORITY_DAYS, now: datetime.datetime | None = None
) -> Signed:
    key = ec.generate_private_key(ec.SECP384R1())
    builder = _builder(name, name, key, days, now)
    made = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(sign=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    return Signed(made.public_bytes(_PEM), _private(key))


def make_server(
    authority: Signed,
    hosts: Sequence[str],
    *,
    days: int = SERVER_DAYS,
    now: datetime.datetime | None = None,
) -> Signed:
    """A certificate for these names and addresses; it never outlives the authority."""
    root = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    identity = x509.SubjectKeyIdentifier.from_public_key(signer.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity)
    common = root.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    builder = _builder(hosts[0], str(common), key, days, now, last=root.not_valid_after_utc)
    made = (
        builder.add_extension(
            x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(issuer, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(sign=False), critical=True)
        .sign(signer, hashes.SHA384())
    )
    return Signed(made.public_bytes(_PEM), _private(key))


def make_loopback() -> tuple[bytes, Signed]:
    """An authority's certificate and a certificate for this machine only. Nobody can sign with that authority again."""
    authority = make_authority("this machine only")
    return authority.certificate, make_server(authority, LOOPBACK, days=AUTHORITY_DAYS)


def valid_until(certificate: bytes) -> datetime.datetime:
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


@dataclass(frozen=True)
class Examined:
    """A server's certificate that fits its key and its authority."""

    hosts: tuple[str, ...]
    until: datetime.datetime
    age: float  # seconds; negative: not valid yet
    days: int  # left


def examine(certificate: bytes, key: bytes, authority: bytes) -> Examined:
    again = "make a new certificate"
    try:
        leaf, root = (
            x509.load_pem_x509_certificate(certificate),
            x509.load_pem_x509_certificate(authority),
        )
        public = serialization.load_pem_private_key(key, None).public_key()
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise DataError(
            "todo.certificates-2",
            f"server.pem, server.key or ca.crt is damaged ({error})",
            fix=again,
        ) from None
    if leaf.public_key() != public:
        raise DataError("todo.certificates-3", "server.key is not the key of server.pem", fix=again)
    try:
        leaf.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        raise DataError(
            "todo.certificates-4", "server.pem is not signed by the authority of ca.crt", fix=again
        ) from None
    now = datetime.datetime.now(datetime.UTC)
    age, left = (now - leaf.not_valid_before_utc).total_seconds(), leaf.not_valid_after_utc - now
    return Examined(
        tuple(str(name.value) for name in names), leaf.not_valid_after_utc, age, left.days
    )


def make_pair() -> tuple[bytes, bytes]:
    """Private and public half of a hospital's key, as `ssh-keygen -t ecdsa -b 384` writes them."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _PLAIN)
    return private, _ssh(key.public_key()) + b"\n"


@dataclass(frozen=True)
class NodeKey:
    """A hospital's private key, read."""

    key: ec.EllipticCurvePrivateKey

    @property
    def public(self) -> bytes:
        """The public half as the SuperLink stores it."""
        return self.key.public_key().public_bytes(
            _PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def fits(self, public: bytes) -> bool:
        """Whether this is the other half of a .pub file; comments at its end do not count."""
        return public.split()[:2] == _ssh(self.key.public_key()).split()[:2]

    def sign(self, message: bytes) -> bytes:
        return self.key.sign(message, ec.ECDSA(hashes.SHA256()))


def read_key(data: bytes) -> NodeKey:
    """A SuperNode's key, or an error that says in which way it is none."""
    wanted = "a private key of type ECDSA P-384 in OpenSSH format without passphrase"
    try:
        key = serialization.load_ssh_private_key(data, None)
    except (ValueError, TypeError) as error:
        raise DataError(
            "todo.certificates-5",
            f"not {wanted} ({error})",
            fix="take the file out of the kit again, or make a new pair",
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise DataError(
            "todo.certificates-6",
            f"not {wanted}",
            fix="ssh-keygen -t ecdsa -b 384 makes one; send the public half to the coordinator",
        )
    return NodeKey(key)


def is_public_key(data: bytes) -> bool:
    """Whether a .pub file holds a key that Flower accepts of a SuperNode."""
    try:
        key = serialization.load_ssh_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        return False
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)


def _ssh(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.TraditionalOpenSSL, _PLAIN)


def host_text(host: str) -> str:
    """A name or address as `Examined.hosts` has it: an IPv6 address can be written in several ways."""
    return str(_host(host).value)


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
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
    begin = (now or datetime.datetime.now(datetime.UTC)) - datetime.timedelta(
        hours=1
    )  # clocks differ a little
    end = begin + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(subject))
        .issuer_name(_named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(min(end, last) if last else end)
    )


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])  # X.509 allows no more


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=sign, crl_sign=sign, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
