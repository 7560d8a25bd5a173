"""Flower's messages without a network: a grid that calls the sites' app in this process.

Every message is encoded and decoded as it is on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedgsca.config import Config
from fedgsca.federation.base import RunObserver
from fedgsca.federation.records import RunResult
from fedgsca.hospital.answers import ResidentSite
from fedgsca.hospital.coordinator import coordinate
from fedgsca.hospital.messages import MESSAGE_TYPES, MessageKind
from fedgsca.hospital.node import answer_records
from fedgsca.hospital.settings import SiteSettings
from fedgsca.hospital.worker import OutdatedWorkerError

# site number, message, a function that delivers it -> reply; None: the reply is lost
Intercept = Callable[[int, Message, Callable[[], Message]], Message | None]
FindSettings = Callable[[Context], SiteSettings]


def encode_and_decode(message: Message) -> Message:
    objects = get_all_nested_objects(message)
    contents = {key: item.deflate() for key, item in objects.items()}
    return inflate_object_from_contents(message.object_id, contents)  # type: ignore[return-value]


class LocalGrid(Grid):
    """Nodes 101, 102, ... in the order of the sites."""

    def __init__(
        self,
        app: ClientApp,
        nodes: int,
        intercept: Intercept | None = None,
        names: Sequence[str] = (),
    ) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.app = app
        self.count = nodes
        # site number -> the name under which its key is registered
        names = names or [f"site-{number}" for number in range(1, nodes + 1)]
        self.names = dict(enumerate(names, start=1))
        self.intercept: Intercept = intercept or (lambda site, message, deliver: deliver())
        self.replies: dict[str, Message] = {}
        self.offline: set[int] = set()

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [100 + k for k in range(1, self.count + 1) if k not in self.offline]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=self.names[node - 100]) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        message_ids = []
        for message in messages:
            message_id = str(uuid4())
            message.metadata.__dict__["_message_id"] = message_id
            message_ids.append(message_id)
            site = message.metadata.dst_node_id - 100
            reply = self.intercept(site, message, partial(self._deliver, message))
            if reply is not None:
                self.replies[message_id] = reply
        return message_ids

    def _deliver(self, message: Message) -> Message:
        site = message.metadata.dst_node_id - 100
        context = Context(1, 100 + site, {"partition-id": site - 1}, RecordDict(), {})
        received = encode_and_decode(message)
        received.metadata.__dict__["_message_id"] = message.metadata.message_id
        try:
            return encode_and_decode(self.app(received, context))
        except Exception as error:  # as Flower does it
            return Message(Error(code=0, reason=str(error)), reply_to=received)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready_ids = [message_id for message_id in message_ids if message_id in self.replies]
        return [self.replies.pop(message_id) for message_id in ready_ids]


def make_app(answer: Callable[[MessageKind, RecordDict, Context], RecordDict]) -> ClientApp:
    """A ClientApp for all kinds of messages."""
    app = ClientApp()

    def handler(kind: MessageKind) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            return Message(answer(kind, message.content, context), reply_to=message)

        return handle

    for kind, message_type in MESSAGE_TYPES.items():
        category, _, action = message_type.partition(".")
        register = getattr(app, category)
        (register(action) if action else register())(handler(kind))
    return app


def client_app(find_settings: FindSettings) -> ClientApp:
    """Hospitals that answer in this process, each as its own site worker would."""
    sites: dict[object, ResidentSite] = {}

    def answer(kind: MessageKind, records: RecordDict, context: Context) -> RecordDict:
        def ask(request: bytes) -> bytes:
            number = context.node_config["partition-id"]
            with suppress(OutdatedWorkerError):
                if number in sites:
                    return sites[number].answer(request)
            sites[number] = ResidentSite(lambda: find_settings(context))
            return sites[number].answer(request)

        return answer_records(kind, records, ask)

    return make_app(answer)


def simulated_sites(out: Path) -> FindSettings:
    """Sites site-1, site-2, ... of a rehearsal, with their memory below the run folder."""

    def find_settings(context: Context) -> SiteSettings:
        name = f"site-{int(context.node_config['partition-id']) + 1}"
        return SiteSettings(name=name, state=str(out / "states" / name))

    return find_settings


def run_over_flower(
    config: Config, grid: LocalGrid, out: Path, observer: RunObserver | None = None
) -> RunResult:
    """The coordinator's run over this grid."""
    deadline = config.federation.deadline
    result = coordinate(grid, config, out, deadline=deadline, observer=observer, poll=0.001)
    assert result is not None
    return result
