"""Asks a SuperLink whether it knows a key, without activating a node.

This is the second file that imports flwr, beside engine/flower.py: the check must run where the
training cannot start yet, and needs Flower's message format only. tests/unit/test_deploy.py holds
the request against the bytes and the endpoint of the version that the package pins.
"""

from __future__ import annotations

import base64
import datetime
import email.utils
import http.client
import json
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ENDPOINT = "/v1/fleet/activate-node"
# Flower 1.41: the activation failed because the key is unknown; the heartbeat is out of bounds.
UNKNOWN_KEY, WRONG_HEARTBEAT = 2004, 2003


@dataclass(frozen=True)
class SiteIdentity:
    """A site's key as the probe needs it: the public half in PEM, and a function that signs."""

    public_key: bytes
    sign: Callable[[bytes], bytes]


@dataclass(frozen=True)
class ProbeAnswer:
    """What can be concluded from the SuperLink's answer."""

    seconds_ahead: float | None  # of this clock; None if the server does not send its time
    is_registered: bool | None  # None: cannot be concluded


def activation_request(public_key: bytes) -> bytes:
    """A request that cannot succeed: it lacks the heartbeat interval.

    Flower 1.41 checks the key before the interval, so the error code shows whether the key is
    registered, and a node that runs with this key is not disturbed.
    """
    from flwr.proto.fleet_pb2 import ActivateNodeRequest

    return bytes(ActivateNodeRequest(public_key=public_key).SerializeToString())


def probe_superlink(
    address: str, port: int, authority: Path, identity: SiteIdentity | None, timeout: float
) -> ProbeAnswer:
    """Send the request, signed if there is an identity. Without flwr the key stays unchecked.

    Raises OSError, HTTPException or ValueError if the server does not answer properly.
    """
    headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    body = b""
    if identity is not None:
        headers |= _signature_headers(identity)
        try:
            body = activation_request(identity.public_key)
        except ImportError:
            body = b""
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection(address, port, timeout=timeout, context=context)
    try:
        connection.connect()
        begin = time.time()
        connection.request("POST", ENDPOINT, body, headers)
        response = connection.getresponse()
        end = time.time()
        content = response.read()
        date = response.getheader("date")
    finally:
        connection.close()
    seconds_ahead = None
    if date:
        server_time = email.utils.parsedate_to_datetime(date).timestamp()
        seconds_ahead = clock_difference(begin, end, server_time)
    is_registered = {WRONG_HEARTBEAT: True, UNKNOWN_KEY: False}.get(_error_code(content) or 0)
    return ProbeAnswer(seconds_ahead, is_registered if body else None)


def clock_difference(begin: float, end: float, server_time: float) -> float:
    """How far this clock is ahead for certain, in seconds; negative if it is behind.

    The server read its clock at some moment between `begin` and `end` of this one: an answer that
    takes long is no difference of the clocks.
    """
    if begin > server_time:
        return begin - server_time
    return min(end - server_time, 0.0)


def _signature_headers(identity: SiteIdentity) -> dict[str, str]:
    timestamp = datetime.datetime.now(datetime.UTC).isoformat()
    return {
        "flwr-public-key": base64.b64encode(identity.public_key).decode(),
        "flwr-timestamp": timestamp,
        "flwr-signature": base64.b64encode(identity.sign(timestamp.encode())).decode(),
    }


def _error_code(content: bytes) -> int | None:
    """Flower's error code; its JSON is sometimes a string with JSON in it."""
    try:
        answer = json.loads(content)
        if isinstance(answer, str):
            answer = json.loads(answer)
        return int(answer["code"])
    except (ValueError, KeyError, TypeError):
        return None
