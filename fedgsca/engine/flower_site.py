"""A hospital's side of Flower: hands messages to the site worker.

`hospital_app` is the ClientApp of the small app that `flwr run` transfers, for hospitals that
start Flower's own `flower-supernode`: Flower then starts a process per message. The kits start
flower_node.py instead, which needs none. Neither process imports torch or MONAI.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgsca.engine.flower_messages import MESSAGE_TYPES, from_records, to_records
from fedgsca.engine.worker_client import client_of, parent_process
from fedgsca.errors import ConfigError
from fedgsca.wire import pack, unpack

# isort: split
# after flower_messages.py, which reports a missing Flower and switches its telemetry off
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

if TYPE_CHECKING:
    from fedgsca.engine.site_node import MessageKind

log = logging.getLogger(__name__)


def hospital_app() -> ClientApp:
    """The app of a SuperNode that was started with --node-config 'settings="/path/site.toml"'."""
    app = ClientApp()

    def handler(kind: MessageKind) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            def ask(request: bytes) -> bytes:
                settings = Path(str(context.node_config.get("settings") or ""))
                return client_of(_checked(settings), parent_process()).ask(request)

            return Message(answer_records(kind, message.content, ask), reply_to=message)

        return handle

    app.query()(handler("hello"))
    app.train()(handler("train"))
    app.evaluate()(handler("judge"))
    return app


def _checked(settings: Path) -> Path:
    if settings == Path():
        raise ConfigError(
            "site.no-settings",
            "the SuperNode does not say where site.toml is",
            fix="start it with --node-config 'settings=\"/path/site.toml\"'",
        )
    return settings


def kind_of(message_type: str) -> MessageKind | None:
    """The kind of a message of this type of Flower's; None if no site answers it."""
    for kind, name in MESSAGE_TYPES.items():
        if name == message_type:
            return kind
    return None


def answer_records(
    kind: MessageKind, records: RecordDict, ask: Callable[[bytes], bytes]
) -> RecordDict:
    """The site's answer to the content of a message. `ask` reaches the site worker.

    What goes to the worker and back is what travels between the parties, encoded in the same way.
    """
    header, weights, extras = from_records(records)
    request = pack({**header, "kind": kind}, weights=weights, extras=extras)
    try:
        reply_tree, (weights, extras) = unpack(ask(request), ("weights", "extras"))
    except Exception as error:
        # Flower would send the text of any exception; what is in site.toml stays here
        from fedgsca.engine.site_node import public_reason

        log.error("this site cannot answer: %s", error)
        return to_records(_refusal(kind, header, public_reason(error)), {}, {})
    return to_records(reply_tree, weights, extras)


def _refusal(kind: MessageKind, header: dict[str, Any], reason: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "round": int(header["round"]),
        "site": "",
        "num_samples": 0,
        "error": reason,
        "observed": {},
        "seconds": 0.0,
    }
