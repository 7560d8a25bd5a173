"""The connection to the coordinator, step by step: address, port, certificate, clock, key.

Also what a check is: a function that returns what it has seen, or raises CheckError.

The last step asks the SuperLink whether it knows the key. tests/contract/test_superlink.py asks a
real one.
"""

from __future__ import annotations

import base64
import email.utils
import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, ParamSpec

from fedgsca.errors import FedgscaError

TIMEOUT = 10.0  # seconds
# Flower refuses a signature from more than 5 s in the future; the header Date has whole seconds.
MAX_SECONDS_AHEAD = 4.0
MAX_SECONDS_BEHIND = 60.0
MIN_DAYS_LEFT = 30
# OpenSSL's verification errors
_NOT_YET_VALID = 9
_HAS_EXPIRED = 10
_WRONG_NAME = (62, 64)
CheckState = Literal["ok", "FAIL", "unknown"]
P = ParamSpec("P")


@dataclass(frozen=True)
class CheckResult:
    """One line of `fedgsca deploy check`. A result that is not ok has a fix."""

    topic: str
    state: CheckState
    text: str
    fix: str = ""

    @property
    def ok(self) -> bool:
        """Whether the check passed."""
        return self.state == "ok"

    def to_json(self) -> dict[str, str]:
        """The result as `--json` prints it."""
        return {"what": self.topic, "state": self.state, "text": self.text, "fix": self.fix}


class CheckError(Exception):
    """The training would not work like this; or, `unknown`: a person has to look."""

    def __init__(self, text: str, fix: str, state: CheckState = "FAIL") -> None:
        super().__init__(text)
        self.text = text
        self.fix = fix
        self.state = state


def check(topic: str, inspect: Callable[P, str], *args: P.args, **kwargs: P.kwargs) -> CheckResult:
    """The result of one check; `inspect` returns what it has seen, or raises an error."""
    try:
        return CheckResult(topic, "ok", inspect(*args, **kwargs))
    except CheckError as error:
        return CheckResult(topic, error.state, error.text, error.fix)
    except FedgscaError as error:
        return CheckResult(topic, "FAIL", error.message, error.fix)


# ---- the connection ----


def check_connection(
    address: str, port: int, authority: Path, public_key: bytes
) -> Iterator[CheckResult]:
    """Results up to the first step that fails, because the later ones depend on it.

    `public_key` (PEM) is empty if the hospital has no usable one; then it is not checked.
    """
    result = check("address", _resolve, address, port)
    yield result
    if result.ok:
        result = check("port", _connect, address, port)
        yield result
    if result.ok:
        result = check("certificate", inspect_certificate_of, address, port, authority)
        yield result
    if not result.ok:
        return
    try:
        answer = probe_superlink(address, port, authority, public_key)
    except (OSError, http.client.HTTPException, ValueError) as error:
        text = f"the server does not answer properly ({error})"
        fix = "ask the coordinator whether a SuperLink is listening there"
        yield CheckResult("server", "FAIL", text, fix)
        return
    yield check("clock", _compare_clocks, answer.seconds_ahead)
    if public_key:
        yield check("key registered", _read_registration, answer.is_registered)


def _resolve(address: str, port: int) -> str:
    try:
        ip_address = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        raise CheckError(
            f"the name {address} cannot be resolved",
            "ask your network team for the name, or the coordinator for its IP address",
        ) from None
    return f"{address} is {ip_address}"


def _connect(address: str, port: int) -> str:
    try:
        socket.create_connection((address, port), TIMEOUT).close()
    except OSError as error:
        is_silent = isinstance(error, TimeoutError)
        reason = "no answer" if is_silent else error.strerror or str(error)
        raise CheckError(
            f"{address}:{port}: {reason}",
            f"allow outgoing TCP connections from this machine to {address}:{port};"
            " ask the coordinator whether the SuperLink is running",
        ) from None
    return f"{port} is open"


def inspect_certificate_of(address: str, port: int, authority: Path) -> str:
    """Chain, dates and names of the certificate of a server."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError):
        raise CheckError(
            f"{authority.name} is missing or damaged", "take ca.crt out of the kit again"
        ) from None
    try:
        end, _ = _fetch_certificate(context, address, port)
    except ssl.SSLCertVerificationError as error:
        raise _explain_refusal(error, context, address, port) from None
    except (ssl.SSLError, OSError) as error:
        raise CheckError(
            f"the server does not use TLS ({error})",
            "ask the coordinator whether a SuperLink is listening on this port",
        ) from None
    days = int((end - time.time()) // 86400)
    date = time.strftime("%Y-%m-%d", time.gmtime(end))
    text = f"signed by the consortium, for {address}, until {date}"
    if days < MIN_DAYS_LEFT:
        fix = "ask the coordinator to renew the server's certificate"
        raise CheckError(f"{text}: {days} days left", fix)
    return text


def _fetch_certificate(context: ssl.SSLContext, address: str, port: int) -> tuple[float, list[str]]:
    """When the server's certificate expires (seconds since 1970), and its names."""
    with (
        socket.create_connection((address, port), TIMEOUT) as raw,
        context.wrap_socket(raw, server_hostname=address) as tls,
    ):
        fields = tls.getpeercert() or {}
    names = fields.get("subjectAltName", ())
    assert isinstance(names, tuple)
    end = ssl.cert_time_to_seconds(str(fields["notAfter"]))
    return end, [str(name[1]) for name in names]


def _explain_refusal(
    error: ssl.SSLCertVerificationError, context: ssl.SSLContext, address: str, port: int
) -> CheckError:
    if error.verify_code == _HAS_EXPIRED:
        return CheckError(
            "it has expired, or the clock of this machine is ahead",
            "check the date of this machine; if it is right, tell the coordinator",
        )
    if error.verify_code == _NOT_YET_VALID:
        return CheckError(
            "not valid yet: the clock of this machine is behind",
            "set the clock: timedatectl set-ntp true",
        )
    if error.verify_code in _WRONG_NAME:
        context.check_hostname = False  # the chain is still verified
        _, hosts = _fetch_certificate(context, address, port)
        return CheckError(
            f"it is not for {address}, but for: {', '.join(hosts)}",
            "ask the coordinator for a certificate with this name,"
            " or use one of these names in kit.json and start.sh",
        )
    return CheckError(
        f"it is not signed by this consortium's authority ({error.verify_message})",
        "compare ca.crt with the coordinator's; ask your network team whether a proxy opens TLS",
    )


def _compare_clocks(seconds_ahead: float | None) -> str:
    """This machine's clock must agree with the coordinator's well enough for Flower."""
    if seconds_ahead is None:
        raise CheckError(
            "the coordinator does not send its time",
            "compare the two clocks: they must agree within seconds",
            "unknown",
        )
    if -MAX_SECONDS_BEHIND <= seconds_ahead <= MAX_SECONDS_AHEAD:
        return "agrees with the coordinator's"
    direction = "ahead of" if seconds_ahead > 0 else "behind"
    raise CheckError(
        f"{abs(seconds_ahead):.0f} s {direction} the coordinator's",
        "timedatectl set-ntp true; if this clock is right, tell the coordinator",
    )


def _read_registration(is_registered: bool | None) -> str:
    if is_registered:
        return "the coordinator knows this key"
    if is_registered is None:
        raise CheckError(
            "the server's answer does not show it",
            "ask the coordinator whether the SuperLink's log says `admitted` with your name",
            "unknown",
        )
    raise CheckError(
        "the coordinator does not know this key",
        "send hospital.key.pub to the coordinator, who saves it in the folder keys under your"
        " hospital's name",
    )


# ---- the question to the SuperLink ----


ENDPOINT = "/v1/fleet/activate-node"
# The hospitals' door (superlink.py) refuses a key that it does not admit before anybody looks for a
# signature, which this request has not: a node that runs with this key is not disturbed.
_NOT_ADMITTED, _NOT_SIGNED = 412, 401


@dataclass(frozen=True)
class ProbeAnswer:
    """What can be concluded from the SuperLink's answer."""

    seconds_ahead: float | None  # of this clock; None if the server does not send its time
    is_registered: bool | None  # None: cannot be concluded


def probe_superlink(address: str, port: int, authority: Path, public_key: bytes) -> ProbeAnswer:
    """Ask for a node with this key (PEM, may be empty), without proving that it is ours.

    Raises OSError, HTTPException or ValueError if the server does not answer properly.
    """
    headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    headers["flwr-public-key"] = base64.b64encode(public_key).decode()
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection(address, port, timeout=TIMEOUT, context=context)
    try:
        connection.connect()
        begin = time.time()
        connection.request("POST", ENDPOINT, b"", headers)
        response = connection.getresponse()
        end = time.time()
        date = response.getheader("date")
    finally:
        connection.close()
    seconds_ahead = None
    if date:
        server_time = email.utils.parsedate_to_datetime(date).timestamp()
        seconds_ahead = clock_difference(begin, end, server_time)
    is_registered = {_NOT_SIGNED: True, _NOT_ADMITTED: False}.get(response.status)
    return ProbeAnswer(seconds_ahead, is_registered)


def clock_difference(begin: float, end: float, server_time: float) -> float:
    """How far this clock is ahead for certain, in seconds; negative if it is behind.

    The server read its clock at some moment between `begin` and `end` of this one: an answer that
    takes long is no difference of the clocks.
    """
    if begin > server_time:
        return begin - server_time
    return min(end - server_time, 0.0)
