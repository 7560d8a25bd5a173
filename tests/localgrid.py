"""Flower's messages without a network: a grid that calls the sites' app in this process, with every message taken apart and put
together again as it is on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from fedgsca.engine.flower import coordinate
from fedgsca.engine.rounds import RunObserver
from fedgsca.engine.site_node import SiteSettings

Meddle = Callable[
    [int, Message, Callable[[], Message]], Message | None
]  # site number, message, do it -> reply; None: lost


def through_the_wire(message: Message) -> Message:
    objects = get_all_nested_objects(message)
    contents = {number: thing.deflate() for number, thing in objects.items()}
    return inflate_object_from_contents(message.object_id, contents)  # type: ignore[return-value]


class LocalGrid(Grid):
    """Nodes 101, 102, ... in the order of the sites."""

    def __init__(
        self,
        app: ClientApp,
        nodes: int,
        meddle: Meddle | None = None,
        names: dict[int, str] | None = None,
    ) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.app, self.count, self.names = app, nodes, names or {}
        self.meddle: Meddle = meddle or (lambda site, message, do: do())
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
        return [
            NodeInfo(node_id=node, name=self.names.get(node - 100, ""))
            for node in self.get_node_ids()
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = number = str(uuid4())
            numbers.append(number)
            reply = self.meddle(
                message.metadata.dst_node_id - 100,
                message,
                lambda message=message: self._work(message),
            )
            if reply is not None:
                self.replies[number] = reply
        return numbers

    def _work(self, message: Message) -> Message:
        site = message.metadata.dst_node_id - 100
        context = Context(1, 100 + site, {"partition-id": site - 1}, RecordDict(), {})
        arrived = through_the_wire(message)
        arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
        try:
            return through_the_wire(self.app(arrived, context))
        except Exception as error:  # as Flower does it
            return Message(Error(code=0, reason=str(error)), reply_to=arrived)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(number) for number in list(message_ids) if number in self.replies]


Place = Callable[[Context], tuple[SiteSettings, Path | None]]


def simulated(out: Path) -> Place:
    """Sites site-1, site-2, ... with their memory in the run folder, as in a simulation."""

    def place(context: Context) -> tuple[SiteSettings, Path]:
        return SiteSettings(
            name=f"site-{int(context.node_config['partition-id']) + 1}", state=str(out)
        ), out

    return place


def over_flower(
    config: Config, grid: LocalGrid, out: Path, observer: RunObserver | None = None
) -> dict[str, Any]:
    return coordinate(
        grid, config, out, deadline=config.federation.deadline, observer=observer, poll=0.001
    )
