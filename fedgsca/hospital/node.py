"""A hospital's connection to the coordinator: a SuperNode that starts no process per message.

Flower's own `flower-supernode` asks for messages every three seconds, and starts a Python process
for each, which imports Flower (more than a second of processor time) and runs the program that the
coordinator sent. This node speaks the same protocol, with Flower's own code for connection, keys
and messages, but hands each message to the site worker (worker.py). It opens no port, not even on
this machine, and runs no program of the coordinator. `fedgsca/hospital/__init__.py` shows the whole
way of a message.

It uses functions of flwr 1.41 that are not documented; pyproject.toml admits no other version, and
tests/contract/test_node.py holds them against it.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fedgsca.federation.base import Reply
from fedgsca.hospital.ledger import Gate
from fedgsca.hospital.messages import (
    EncodedMessage,
    MessageKind,
    encode_reply,
    from_records,
    kind_of,
    public_reason,
    to_records,
)
from fedgsca.hospital.settings import read_settings
from fedgsca.hospital.worker import client_of

# isort: split
# after messages.py, which switches Flower's telemetry off
from flwr.app import Error, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response
from httpx import TransportError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

log = logging.getLogger(__name__)
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 3.0  # seconds between two questions for messages
_PAUSE_SHARE = 0.15  # of the time since the last message
_UNKNOWN_ERROR = 0  # Flower's code
_EXPLANATIONS = {  # what Flower prints when it gives up -> what a person should know
    "code: 2004": (
        "the coordinator does not admit this node: its last connection is less than a minute old,"
        " or its key is not in the coordinator's folder `keys`\nFix: wait a minute, the service"
        " tries again; if it is still refused, send hospital.key.pub to the coordinator"
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        "the server's certificate is not signed by the authority of this consortium, or not valid"
        " now\nFix: run ./check.sh, which says which of them; a network that opens TLS must not do"
        " so for this address"
    ),
}


@dataclass(frozen=True)
class NodeAddress:
    """Where the SuperLink is, and how the two prove who they are."""

    superlink: str  # host:port
    root_certificates: Path
    key: EllipticCurvePrivateKey


@dataclass(frozen=True)
class Fleet:
    """The functions of Flower's connection to the SuperLink."""

    node: int
    receive: Callable[[], tuple[Message, Any] | None]
    send: Callable[[Message, Any, float], tuple[set[str], str]]
    pull_object: Callable[[int, str], bytes]
    push_object: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]


def run_node(address: NodeAddress, site: Path) -> None:
    """Connect and answer messages until SIGTERM, SIGINT or a connection that cannot be kept.

    `site` is the hospital's site.toml.
    """
    read_settings(site)  # a wrong site.toml is reported before anything is connected
    worker = client_of(site)
    gate = Gate(site, worker.ask)
    flower_log = logging.getLogger("flwr")
    flower_log.propagate = False  # it prints by itself
    flower_log.addFilter(explain_exit)

    def end(number: int, frame: object) -> NoReturn:
        log.info("stopping (signal %d)", number)
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        worker.start()
        with _open_connection(address) as functions:
            node, receive, send, _, _, pull_object, push_object, confirm = functions
            log.info("connected to %s as node %d", address.superlink, node)
            fleet = Fleet(node, receive, send, pull_object, push_object, confirm)
            answer_messages(fleet, gate.ask)
    finally:
        worker.stop()


def explain_exit(record: logging.LogRecord) -> bool:
    """Turn Flower's last words about a connection into a sentence; a filter for its logger."""
    text = record.getMessage()
    if text.startswith("Exit Code: "):
        lines = text.splitlines()
        for mark, explanation in _EXPLANATIONS.items():
            if mark in text:
                lines = [explanation]
        record.msg, record.args = "\n".join(lines[:3]), ()
    return True


def _open_connection(address: NodeAddress) -> AbstractContextManager[tuple[Any, ...]]:
    return http_request_response(
        address.superlink,
        insecure=False,
        root_certificates=address.root_certificates.read_bytes(),
        authentication_keys=(address.key, address.key.public_key()),
    )


# ---- messages ----


def answer_messages(fleet: Fleet, ask: Callable[[bytes], bytes]) -> NoReturn:
    """Answer one message after the other."""
    last_message = time.monotonic()
    while True:
        if answer_next(fleet, ask):
            last_message = time.monotonic()
        else:
            time.sleep(pause_after(time.monotonic() - last_message))


def pause_after(idle_seconds: float) -> float:
    """Seconds until the next question: short while rounds are short, longer when nothing comes."""
    return min(max(_PAUSE_SHARE * idle_seconds, _SHORTEST_PAUSE), _LONGEST_PAUSE)


def answer_next(fleet: Fleet, ask: Callable[[bytes], bytes]) -> bool:
    """Fetch a message and send its answer; False if there was none.

    A message whose content or answer is lost is logged: the coordinator has a deadline. An error of
    the connection itself is raised.
    """
    try:
        envelope = fleet.receive()
    except RunNotRunningException:
        envelope = None
    if envelope is None:
        return False
    start = time.monotonic()
    try:
        message = _fetch_content(fleet, *envelope)
        reply = _make_reply(message, ask)
        _send_reply(fleet, reply, time.monotonic() - start)
    except RunNotRunningException:
        log.info("the run has ended; its message is dropped")
    except Exception as error:
        bug = None if isinstance(error, OSError | TransportError) else error
        log.error("a message was lost: %s", error, exc_info=bug)
    else:
        kind, group = message.metadata.message_type, message.metadata.group_id
        log.info("answered %s, round index %s, %.2f s", kind, group, time.monotonic() - start)
    return True


def _fetch_content(fleet: Fleet, message: Message, tree: Any) -> Message:
    """The message with its content, which travels in pieces."""
    run_id, message_id = message.metadata.run_id, message.metadata.message_id
    object_ids = [part.object_id for part in iterate_object_tree(tree)]
    contents = pull_objects(object_ids, partial(fleet.pull_object, run_id))
    fleet.confirm(run_id, message_id)
    content = inflate_object_from_contents(message_id, contents)
    assert isinstance(content, Message)
    content.metadata.__dict__["_message_id"] = message_id  # it cannot contain its own digest
    return content


def _make_reply(message: Message, ask: Callable[[bytes], bytes]) -> Message:
    kind = kind_of(message.metadata.message_type)
    if kind is None:
        log.warning("a message of type %r was refused", message.metadata.message_type)
        reason = "this site does not answer messages of this type"
        return Message(Error(_UNKNOWN_ERROR, reason), reply_to=message)
    try:
        return Message(answer_records(kind, message.content, ask), reply_to=message)
    except ValueError as error:
        log.error("a message was refused: %s", error)
        return Message(Error(_UNKNOWN_ERROR, "the message cannot be read"), reply_to=message)


def _send_reply(fleet: Fleet, reply: Message, seconds: float) -> None:
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        tree = get_object_tree(reply)
        object_ids, session = fleet.send(reply, tree, seconds)
        push = partial(fleet.push_object, reply.metadata.run_id, session)
        push_objects(get_all_nested_objects(reply), push, object_ids_to_push=object_ids)


def answer_records(
    kind: MessageKind, records: RecordDict, ask: Callable[[bytes], bytes]
) -> RecordDict:
    """The site's answer to the content of a message. `ask` reaches gate and site worker.

    What goes to the worker and back is what travels between the parties. Raises ValueError for a
    message that is none of ours.
    """
    message = from_records(kind, records)
    try:
        return to_records(EncodedMessage.from_bytes(ask(message.to_bytes())))
    except Exception as error:
        # Flower would send the text of any exception; what is in site.toml stays here
        log.error("this site cannot answer: %s", error)
        refusal = Reply("", None, public_reason(error))
        return to_records(encode_reply(kind, int(message.header["round"]), refusal))
