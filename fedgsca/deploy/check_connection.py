"""The way to the coordinator, step by step, without Flower: address, port, certificate, clock, key."""

from __future__ import annotations

import base64
import datetime
import email.utils
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedgsca.deploy.check_result import Finding, failed, passed, unknown

SECONDS = 10.0
AHEAD, BEHIND = (
    4.0,
    60.0,
)  # Flower refuses a signature from more than 5 s in the future; the header Date has whole seconds
SOON = 30  # days
# OpenSSL's numbers of what is wrong with a certificate
_EARLY, _EXPIRED, _NAMES = 9, 10, (62, 64)
_NOT_REGISTERED, _REGISTERED = 2004, 2003  # Flower 1.41: activation failed; heartbeat out of bounds


def reach(
    address: str, port: int, authority: Path, sign: Callable[[bytes], bytes] | None, public: bytes
) -> Iterator[Finding]:
    """Findings up to the first step that fails: the later ones depend on it. `sign` is None if there is no usable key."""
    try:
        where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        yield failed(
            "address",
            f"{address} is not known here",
            "ask your network team for the name, or the coordinator for its IP",
        )
        return
    yield passed("address", f"{address} is {where}")
    try:
        socket.create_connection((address, port), SECONDS).close()
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        yield failed("port", f"{address}:{port}: {why}", f"let this machine connect to {address}:{port} (TCP, outgoing); "
                     "ask the coordinator whether the SuperLink runs")  # fmt: skip
        return
    yield passed("port", f"{port} is open")
    found = certificate(address, port, authority)
    yield found
    if found.state != "ok":
        return
    try:
        offset, code = ask(address, port, authority, sign, public)
    except (OSError, http.client.HTTPException, ValueError) as error:
        yield failed(
            "server",
            f"it gives no proper answer ({error})",
            "ask the coordinator whether a SuperLink listens there",
        )
        return
    yield clock(offset)
    if sign is not None:
        yield registered(code)


def certificate(address: str, port: int, authority: Path) -> Finding:
    """Chain, dates and names of the server's certificate."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError):
        return failed(
            "certificate",
            f"{authority.name} is missing or damaged",
            "take ca.crt out of the kit again",
        )
    try:
        known = _peer(context, address, port)
    except ssl.SSLCertVerificationError as error:
        return _explain(error, context, address, port)
    except (ssl.SSLError, OSError) as error:
        return failed(
            "certificate",
            f"no TLS there ({error})",
            "ask the coordinator whether a SuperLink listens on this port",
        )
    end = ssl.cert_time_to_seconds(str(known["notAfter"]))
    days = int((end - time.time()) // 86400)
    text = f"signed by the consortium, for {address}, until {time.strftime('%Y-%m-%d', time.gmtime(end))}"
    if days < SOON:
        return failed(
            "certificate",
            f"{text}: {days} days left",
            "tell the coordinator to renew the server's certificate",
        )
    return passed("certificate", text)


def _peer(context: ssl.SSLContext, address: str, port: int) -> dict[str, Any]:
    with (
        socket.create_connection((address, port), SECONDS) as raw,
        context.wrap_socket(raw, server_hostname=address) as tls,
    ):
        return dict(tls.getpeercert() or {})


def _explain(
    error: ssl.SSLCertVerificationError, context: ssl.SSLContext, address: str, port: int
) -> Finding:
    if error.verify_code == _EXPIRED:
        return failed(
            "certificate",
            "expired, or this machine's clock is ahead",
            "check the date here; tell the coordinator",
        )
    if error.verify_code == _EARLY:
        return failed(
            "certificate",
            "not valid yet: this machine's clock is behind",
            "set the clock: timedatectl set-ntp true",
        )
    if error.verify_code in _NAMES:
        context.check_hostname = False  # the chain is still verified
        names = ", ".join(
            str(value) for _, value in _peer(context, address, port).get("subjectAltName", ())
        )
        return failed("certificate", f"it is not for {address}, but for: {names}",
                      "ask the coordinator for a certificate with this name, or use one of these in kit.json and start.sh")  # fmt: skip
    return failed("certificate", f"not signed by this consortium's authority ({error.verify_message})",
                  "compare ca.crt with the coordinator's; ask your network team whether a proxy opens TLS")  # fmt: skip


def ask(
    address: str, port: int, authority: Path, sign: Callable[[bytes], bytes] | None, public: bytes
) -> tuple[float | None, int | None]:
    """Seconds by which this clock is ahead, and Flower's answer to an activation that cannot succeed.

    The activation leaves out the heartbeat interval. Flower 1.41 looks for the key first and at the interval then, so the kind of
    refusal tells whether the key is registered, and the node is not activated: one that runs with this key is not disturbed.
    """
    headers, body = {"content-type": "application/protobuf", "accept": "application/protobuf"}, b""
    if sign is not None:
        stamp = datetime.datetime.now(datetime.UTC).isoformat()
        headers["flwr-public-key"] = base64.b64encode(public).decode()
        headers["flwr-timestamp"] = stamp
        headers["flwr-signature"] = base64.b64encode(sign(stamp.encode())).decode()
        body = b"\x0a" + _varint(len(public)) + public  # protobuf: field 1, bytes
    context = ssl.create_default_context(cafile=str(authority))
    link = http.client.HTTPSConnection(address, port, timeout=SECONDS, context=context)
    try:
        link.request("POST", "/v1/fleet/activate-node", body, headers)
        answer = link.getresponse()
        content, date = answer.read(), answer.getheader("date")
    finally:
        link.close()
    offset = time.time() - email.utils.parsedate_to_datetime(date).timestamp() if date else None
    return offset, _code(content)


def _code(content: bytes) -> int | None:
    """Flower's error code; its JSON is sometimes a string with JSON in it."""
    try:
        found = json.loads(content)
        found = json.loads(found) if isinstance(found, str) else found
        return int(found["code"])
    except (ValueError, KeyError, TypeError):
        return None


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def clock(offset: float | None) -> Finding:
    if offset is None:
        return unknown(
            "clock",
            "the coordinator does not tell its time",
            "compare both clocks; they must agree within seconds",
        )
    if -BEHIND <= offset <= AHEAD:
        return passed("clock", "agrees with the coordinator's")
    way = "ahead of" if offset > 0 else "behind"
    return failed(
        "clock",
        f"{abs(offset):.0f} s {way} the coordinator's",
        "timedatectl set-ntp true; if this clock is right, tell the coordinator",
    )


def registered(code: int | None) -> Finding:
    if code == _REGISTERED:
        return passed("key registered", "the coordinator knows this key")
    if code == _NOT_REGISTERED:
        return failed("key registered", "the coordinator does not know this key", "send hospital.key.pub to the coordinator, who puts it "
                      "into keys under your hospital's name and runs register-keys.sh")  # fmt: skip
    return unknown(
        "key registered",
        "the answer does not tell",
        "the coordinator sees it with `flwr supernode list`",
    )
