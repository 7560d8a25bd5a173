"""The coordinator's SuperLink: Flower's server behind two doors, and whom it admits.

    hospitals --TLS--> LISTEN:PORT          NodeDoor: the eight calls of a node, nothing else
    commands  --TLS--> 127.0.0.1:CONTROL    every call: `flwr run`, and the ServerApp it starts

Flower 1.41 offers all calls on one port and asks whoever commands for neither key nor password.
Here, one process serves the same application on two sockets, so a message takes no detour.

A hospital is admitted by the file keys/NAME.pub, and shut out when the file is removed. Flower
checks that a node has the key that it names and speaks for the number of this key only, with one
gap that NodeDoor closes: the sender of an answer is a field that the node fills in.

It uses functions of flwr 1.41 that are not documented; tests/contract/test_superlink.py holds them
against the installed version.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgsca.errors import ConfigError
from fedgsca.hospital import messages  # noqa: F401
from fedgsca.hospital.certificates import public_pem

# isort: split
# after messages.py, which switches Flower's telemetry off
import uvicorn
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    ISOLATION_MODE_SUBPROCESS,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    TRANSPORT_TYPE_GRPC_RERE,
)
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.error import ApiErrorCode
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from starlette.types import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:
    from flwr.server.superlink.linkstate import LinkState

log = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
_PREFIX = "/v1/fleet/"
_ACTIVATE, _PUSH_MESSAGES = f"{_PREFIX}activate-node", f"{_PREFIX}push-messages"
_KEY_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()
_NODE_CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "pull-object",
    "confirm-message-received",
    "push-messages",
    "push-object",
)
NODE_PATHS = frozenset(_PREFIX + name for name in _NODE_CALLS)
_MAX_ANSWER = 10_000_000  # bytes of push-messages: names and digests, without arrays
_KEY_INTERVAL = 2.0  # seconds between two looks at the folder of keys
_SECONDS_TO_END = 5  # for open connections when the SuperLink ends


@dataclass(frozen=True)
class SuperLinkPlace:
    """Where the SuperLink listens, and its folder: ca.crt, server.pem, server.key and keys."""

    folder: Path
    listen: str
    port: int
    control_port: int
    database: Path | None  # None: registrations and messages are kept in memory

    def file(self, name: str) -> str:
        """The absolute path of a file in the folder."""
        return str((self.folder / name).resolve())


def serve_superlink(place: SuperLinkPlace) -> None:
    """Serve until SIGTERM or SIGINT."""
    for name in ("ca.crt", "server.pem", "server.key", "keys"):
        if not (place.folder / name).exists():
            raise ConfigError(
                "deploy.not-a-kit",
                f"{place.folder} has no {name}",
                fix="give the coordinator's folder of `fedgsca deploy init`",
            )
    with (
        _open_socket(place.listen, place.port) as nodes,
        _open_socket(LOOPBACK, place.control_port) as control,
    ):
        logging.getLogger("alembic").setLevel(logging.WARNING)
        logging.getLogger("flwr").setLevel(logging.WARNING)
        logging.getLogger("flwr").propagate = False  # it prints by itself
        app = create_app(_flower_settings(place), SuperLinkLifespan)
        admission = KeyFolder(place.folder / "keys", app.state.linkstate_factory.state())
        admission.update()
        log.info("hospitals connect to %s port %d", place.listen, place.port)
        log.info("commands are accepted on %s port %d only", LOOPBACK, place.control_port)
        asyncio.run(_serve(place, app, nodes, control, admission))


def _open_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_dual = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            (host, port), family=family, backlog=2048, dualstack_ipv6=is_dual
        )
    except OSError as error:
        raise ConfigError(
            "deploy.port-in-use",
            f"the SuperLink cannot listen on {host} port {port}: {error.strerror}",
            fix="end the program that uses the port, or correct the address in consortium.toml",
        ) from None


def _flower_settings(place: SuperLinkPlace) -> SuperLinkLifespanConfig:
    authority, server, key = (place.file(name) for name in ("ca.crt", "server.pem", "server.key"))
    certificates = (Path(authority).read_bytes(), Path(server).read_bytes(), Path(key).read_bytes())
    database = FLWR_IN_MEMORY_DB_NAME if place.database is None else str(place.database)
    return SuperLinkLifespanConfig(
        control_address="",  # of gRPC, which is off
        health_server_address=None,
        host=LOOPBACK,
        port=place.control_port,  # for the ServerApp
        insecure=False,
        certificates=certificates,
        superexec_auth_secret=None,
        authn_plugin=NoOpControlAuthnPlugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=authority,
        ssl_certfile=server,
        ssl_keyfile=key,
        database=database,
        isolation=ISOLATION_MODE_SUBPROCESS,
        runtime_dependency_install=False,
    )


async def _serve(
    place: SuperLinkPlace,
    app: ASGIApp,
    nodes: socket.socket,
    control: socket.socket,
    admission: KeyFolder,
) -> None:
    """Both doors and the list of keys, until one of them ends."""
    servers = []
    tasks = [asyncio.create_task(_watch_keys(admission))]
    for door, listener in ((app, control), (NodeDoor(app, admission), nodes)):
        settings = uvicorn.Config(
            door,
            lifespan="on" if door is app else "off",  # it starts the ServerApp's launcher once
            ssl_certfile=place.file("server.pem"),
            ssl_keyfile=place.file("server.key"),
            access_log=False,  # a line for every question of a node
            log_level="warning",
            timeout_graceful_shutdown=_SECONDS_TO_END,
        )
        servers.append(uvicorn.Server(settings))
        tasks.append(asyncio.create_task(servers[-1].serve(sockets=[listener])))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for server in servers:
        server.should_exit = True
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- the hospitals' door ----


class NodeDoor:
    """Passes on what an admitted node needs. Other calls do not exist here: 404, whoever asks.

    The application behind it authenticates the node; its own routes are matched by the same path.
    """

    def __init__(self, app: ASGIApp, admission: KeyFolder) -> None:
        self.app = app
        self.admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return  # no websockets
        path = scope["path"]
        if scope["method"] != "POST" or path not in NODE_PATHS:
            await _refuse(send, 404)
        elif not self.admission.admits(_named_key(scope["headers"])):
            await _refuse(send, 412 if path == _ACTIVATE else 401)
        elif path != _PUSH_MESSAGES:
            await self.app(scope, receive, send)
        else:
            body = await _read_body(receive)
            if body is None or not _is_own_answer(body):
                log.warning("refused: an answer in the name of another node")
                await _refuse(send, 403)
            else:
                await self.app(scope, _replay(body, receive), send)


def _named_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key (PEM) that a request names, and for which the application wants a signature."""
    for name, value in headers:
        if name == _KEY_HEADER:
            with contextlib.suppress(ValueError):
                return base64.b64decode(value, validate=True)
    return b""


def _is_own_answer(body: bytes) -> bool:
    """Whether the senders of all messages are the node that authenticates itself."""
    try:
        request = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    senders = {message.metadata.src_node_id for message in request.messages_list}
    return senders == {request.node.node_id}


async def _read_body(receive: Receive) -> bytes | None:
    """The body of a request; None if it is too long or the client is gone."""
    body = b""
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return None
        body += bytes(event.get("body", b""))
        if len(body) > _MAX_ANSWER:
            return None
        if not event.get("more_body"):
            return body


def _replay(body: bytes, receive: Receive) -> Receive:
    events: Iterator[Any] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def read() -> Any:
        event = next(events, None)
        return event if event is not None else await receive()

    return read


async def _refuse(send: Send, status: int) -> None:
    """An answer without the application; that to an unknown key is in Flower's form."""
    body = b""
    if status == 412:
        code = int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
        body = json.dumps({"code": code, "detail": "this key is not admitted"}).encode()
    headers = [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send(
        {"type": "http.response.start", "status": status, "headers": headers, "trailers": False}
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})


# ---- who is admitted ----


class KeyFolder:
    """keys/NAME.pub: the key of each hospital that may connect, and the name under which.

    Flower's own list of keys only grows: a key has the name under which it was first admitted.
    """

    def __init__(self, folder: Path, state: LinkState) -> None:
        self.folder = folder
        self.state = state
        self.names: dict[bytes, str] = {}  # key as Flower stores it -> name

    def admits(self, key: bytes) -> bool:
        """Whether a node with this key may ask for anything."""
        return key in self.names

    def update(self) -> None:
        """Read the folder again: admit new keys, and shut out those whose file is gone."""
        names = self._read()
        for key, name in names.items() - self.names.items():
            with contextlib.suppress(ValueError):  # Flower knows it
                self.state.create_node(
                    NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, HEARTBEAT_DEFAULT_INTERVAL, name=name
                )
            if self.state.get_node_id_by_public_key(key) is None:
                log.warning("%s needs a new key: somebody has unregistered this one", name)
            else:
                log.info("admitted: %s", name)
        for _, name in self.names.items() - names.items():
            log.info("shut out: %s", name)
        self.names = names

    def _read(self) -> dict[bytes, str]:
        names: dict[bytes, str] = {}
        first_names = {node.public_key: node.name for node in self.state.get_node_info()}
        for path in sorted(self.folder.glob("*.pub")):
            name = path.stem
            key = public_pem(path.read_bytes())
            if key is None:
                log.warning("%s is not admitted: not a public key of type ECDSA P-384", name)
            elif key in names or first_names.get(key, name) != name:
                owner = names.get(key) or first_names[key]
                log.warning("%s is not admitted: it is the key of %s; make a new one", name, owner)
            else:
                names[key] = name
        return names


async def _watch_keys(admission: KeyFolder) -> None:
    """Look at the folder from time to time; an unreadable file or a busy database is no end."""
    last_stamp = _stamp(admission.folder)
    while True:
        await asyncio.sleep(_KEY_INTERVAL)
        stamp = _stamp(admission.folder)
        if stamp == last_stamp:
            continue
        try:
            await asyncio.to_thread(admission.update)
            last_stamp = stamp
        except Exception as error:
            log.warning("the keys cannot be read now: %s", error)


def _stamp(folder: Path) -> Mapping[str, int]:
    stamp = {}
    for path in folder.glob("*.pub"):
        with contextlib.suppress(OSError):
            stamp[path.name] = path.stat().st_mtime_ns
    return stamp
