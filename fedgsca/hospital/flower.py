"""Flower as the transport of a deployment: the coordinator's side.

The round loop is ours (rounds.py), because it saves, resumes and validates; Flower moves messages
(messages.py). flower_node.py is the hospital's side, and shows the way of a message;
flower_simulation.py has both in one process.

    coordinator (ServerApp)                      site
    hello(terms)          -- query -->           checks the terms, opens its data, tells its name
    train(terms, payload) -- train -->           local_update, the same function as in a simulation
    test(terms, weights)  -- evaluate -->        only if the coordinator has no test images
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from fedgsca.config import Config
from fedgsca.errors import FedgscaError
from fedgsca.federation.base import ObserverGroup, RunObserver
from fedgsca.federation.deployment import prepare_coordinator
from fedgsca.federation.filters.claims import describe_aggregation
from fedgsca.federation.intake import quorum_of
from fedgsca.federation.records import RunResult
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_config
from fedgsca.federation.simulation import Experiment
from fedgsca.hospital.messages import (
    MESSAGE_TYPES,
    MessageKind,
    SiteMessage,
    Terms,
    decode,
    encode,
    from_records,
    kind_of,
    terms_of,
    to_records,
)
from fedgsca.hospital.network import NetworkEngine
from fedgsca.hospital.notify import notify
from fedgsca.hospital.run_status import StatusObserver
from fedgsca.hospital.site_contacts import SiteTimeouts
from fedgsca.wire import Payload

# isort: split
# after messages.py, which switches Flower's telemetry off
from flwr.app import Context, Error, Message
from flwr.serverapp import Grid, ServerApp

DEFAULT_PATIENCE = 24.0  # hours, if the configuration does not say
DEFAULT_DEADLINE = 3600.0  # seconds, if the configuration names none
_USUAL_ERRORS = {  # by Flower's code
    3: "its message expired before the answer",
    5: "its connection is lost",  # no heartbeat within twice its interval
}
_MAX_REASON = 300  # characters of a reason that Flower reports
_RESUME = re.compile(r"`fedgsca resume[^`]*`")
_RUN_SCRIPT = "`./run.sh` of the coordinator's kit"
_EXIT_LINE = "Exit Code: "  # how Flower's last message begins


class FlowerTransport:
    """Messages over a Flower grid. The terms are part of every message."""

    def __init__(self, grid: Grid, terms: Terms) -> None:
        self.grid = grid
        self.terms = terms

    def online(self) -> dict[int, str]:
        """node -> the name under which its key is registered, or an empty text."""
        return {int(node.node_id): str(node.name or "") for node in self.grid.get_nodes()}

    def send(
        self, kind: MessageKind, payload: Payload, nodes: Sequence[int], seconds: float | None
    ) -> dict[str, int]:
        """Send to these nodes; returns message id -> node.

        A message that is not picked up in time is not delivered afterwards. The content is shared:
        Flower stores it once.
        """
        if not nodes:
            return {}
        header = {"terms": self.terms.to_json(), "round": payload.round}
        records = to_records(encode(kind, header, payload.weights, payload.extras))
        group, message_type = str(payload.round), MESSAGE_TYPES[kind]
        messages = [
            Message(records, node, message_type, ttl=seconds, group_id=group) for node in nodes
        ]
        message_ids = self.grid.push_messages(messages)
        pairs = zip(message_ids, nodes, strict=True)
        return {message_id: node for message_id, node in pairs if message_id}

    def collect(self, message_ids: Sequence[str]) -> list[SiteMessage]:
        """The answers to these messages that have arrived so far."""
        if not message_ids:
            return []
        messages = self.grid.pull_messages(list(message_ids))
        return [_read_site_message(message) for message in messages]


def _read_site_message(message: Message) -> SiteMessage:
    # the sender does not count: the SuperLink answers in the name of a node that died
    reply_to = message.metadata.reply_to_message_id
    if message.has_error():
        return SiteMessage(reply_to, error=_describe_error(message.error))
    try:
        kind = kind_of(message.metadata.message_type) or "hello"
        return SiteMessage(reply_to, *decode(from_records(kind, message.content)))
    except ValueError as error:
        return SiteMessage(reply_to, error=str(error), is_malformed=True)


def _describe_error(error: Error) -> str:
    """Flower's error in one sentence; the usual ones in our words."""
    if error.code in _USUAL_ERRORS:
        return f"{_USUAL_ERRORS[error.code]} (error {error.code} of Flower)"
    lines = str(error.reason).splitlines() or ["no reason"]
    return f"Flower reports error {error.code}: {lines[0][:_MAX_REASON]}"


def coordinate(
    grid: Grid,
    config: Config,
    out: Path,
    *,
    deadline: float | None,
    observer: RunObserver | None = None,
    poll: float = 0.5,
    stop: threading.Event | None = None,
    strict: bool = False,
    patience: float = 0.0,
    first_pause: float = 60.0,
    experiment: Experiment | None = None,
) -> RunResult | None:
    """The coordinator's run over a grid, or its continuation; parameters as in NetworkEngine."""
    status = StatusObserver(out)
    observers = ObserverGroup(status, observer)
    try:
        experiment = experiment or prepare_coordinator(config)
        engine = NetworkEngine(
            FlowerTransport(grid, terms_of(experiment)),
            experiment.names,
            quorum=partial(quorum_of, config),
            deadline=deadline,
            observer=observers,
            poll=poll,
            stop=stop,
            strict=strict,
            patience=patience,
            first_pause=first_pause,
            staleness=config.federation.staleness,
            timeouts=SiteTimeouts(deadline, config.federation.timeout_factor),
        )
        if config.federation.sites is not None:  # a deployment, no simulation
            observers.on_message(describe_aggregation(config, experiment.names))
        result = run(config, out, engine=engine, experiment=experiment, observer=observers)
    except BaseException as error:
        if isinstance(error, FedgscaError) and not strict:
            report_stop(error)
        status.finish(error)
        raise
    status.finish(None)
    return result


FlowerServerApp: TypeAlias = ServerApp


def server_app(
    make_observer: Callable[[Config], RunObserver], on_finish: Callable[[Path], object]
) -> FlowerServerApp:
    """The coordinator under `flwr run`. The app's configuration names its run folder.

    `on_finish` is called with the run folder after the last round.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        logging.getLogger("flwr").addFilter(TracebackFilter())
        out = Path(str(context.run_config["run"]))
        config = read_config(out)
        deadline = config.federation.deadline or DEFAULT_DEADLINE
        hours = config.federation.patience
        patience = 3600 * (DEFAULT_PATIENCE if hours is None else hours)
        observer = make_observer(config)
        coordinate(grid, config, out, deadline=deadline, observer=observer, patience=patience)
        on_finish(out)

    return app


# ---- errors of a deployment ----


def report_stop(error: FedgscaError) -> None:
    """Name the command that continues a deployment in the fix, and notify somebody.

    A fix says `fedgsca resume`, which is right for a run on one machine only.
    """
    error.fix = _RESUME.sub(_RUN_SCRIPT, error.fix)
    notify(f"the run has stopped: {error.message}\nFix: {error.fix}")


class TracebackFilter(logging.Filter):
    """For Flower's logger: an error of ours becomes two lines, and Flower's remark on it none.

    Flower prints every exception of its app as a traceback and "an unhandled exception occurred".
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_seen_error = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record of an error of ours; False drops a record."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, FedgscaError):
            self.has_seen_error = True
            record.msg = f"Error [{error.code}]: {error.message}\nFix: {error.fix}"
            record.args = ()
            record.exc_info = None
            return True
        return not (self.has_seen_error and str(record.msg).startswith(_EXIT_LINE))
