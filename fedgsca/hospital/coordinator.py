"""The coordinator's side of a deployment: the round loop over Flower.

The round loop is ours (rounds.py), because it saves, resumes and validates; Flower moves messages
(messages.py). node.py is the hospital's side.

    coordinator (ServerApp)                      site
    hello(terms)          -- query -->           checks the terms, opens its data, tells its name
    train(terms, payload) -- train -->           local_update, the same function as in a simulation
    test(terms, weights)  -- evaluate -->        only if the coordinator has no test images
    model(terms, payload) -- query.model -->     after the last round: keeps the final model
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedgsca.config import Config, to_toml
from fedgsca.errors import ConfigError, FedgscaError
from fedgsca.federation.base import ObserverGroup, RunObserver
from fedgsca.federation.deployment import prepare_coordinator
from fedgsca.federation.filters.claims import describe_aggregation
from fedgsca.federation.intake import quorum_of
from fedgsca.federation.records import RunResult
from fedgsca.federation.round_status import StatusObserver
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import RunFolder, read_config
from fedgsca.hospital.delivery import pack_model, read_delivered, record_delivery
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
from fedgsca.hospital.network import NetworkEngine, notify
from fedgsca.hospital.site_contacts import SiteTimeouts
from fedgsca.support.files import write_atomic
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
        """node -> the name under which its key is registered."""
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
        is_absent = message.error.code in _USUAL_ERRORS
        return SiteMessage(reply_to, error=_describe_error(message.error), is_absent=is_absent)
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
    patience: float = 0.0,
    first_pause: float = 60.0,
    send_model: bool = False,
) -> RunResult | None:
    """The coordinator's run over a grid, or its continuation; parameters as in NetworkEngine.

    With `send_model`, the final model goes to every site that has not confirmed it yet.
    """
    status = StatusObserver(out)
    observers = ObserverGroup(status, observer)
    try:
        experiment = prepare_coordinator(config)
        engine = NetworkEngine(
            FlowerTransport(grid, terms_of(experiment)),
            experiment.names,
            quorum=partial(quorum_of, config),
            deadline=deadline,
            observer=observers,
            poll=poll,
            patience=patience,
            first_pause=first_pause,
            staleness=config.federation.staleness,
            timeouts=SiteTimeouts(deadline, config.federation.timeout_factor),
        )
        if config.federation.sites is not None:  # a deployment, no simulation
            observers.on_message(describe_aggregation(config, experiment.names))
        result = run(config, out, engine=engine, experiment=experiment, observer=observers)
        status.finish(None)
        if send_model and result is not None:
            deliver_model(engine, out, observers)
    except BaseException as error:
        if isinstance(error, FedgscaError):
            report_stop(error)
        status.finish(error)
        raise
    return result


def deliver_model(engine: NetworkEngine, out: Path, observer: RunObserver) -> None:
    """Send the final model of a run to the sites that do not have it, and name the absent ones."""
    supplied_sites = read_delivered(out)
    missing_sites = [site for site in engine.registry.sites if site not in supplied_sites]
    if not missing_sites:
        return
    for reply in engine.deliver(pack_model(out), missing_sites):
        if reply.update is not None:
            record_delivery(out, reply.site)
            observer.on_message(f"{reply.site} has received the final model")
        else:
            observer.on_message(
                f"{reply.site} has not received the final model: {reply.error};"
                f" {_RUN_SCRIPT} sends it when the hospital is connected"
            )


# ---- the app of `flwr run` ----
# Flower packs this folder and sends it to the sites, so it contains no logic: what runs in a
# hospital is the fedgsca that the hospital installed (node.py).


_PROJECT = """\
[project]
name = "fedgsca-run"
version = "1.0.0"
description = "Starts the installed fedgsca at the coordinator and at the sites"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41,<1.42"]

[tool.flwr.app]
publisher = "fedgsca"
fab-format-version = 1
flwr-version-target = "1.41.0"
fab-include = ["LICENSE", "fedgsca_run/*.py"]

[tool.flwr.app.components]
serverapp = "fedgsca_run.server:app"
clientapp = "fedgsca_run.client:app"

[tool.flwr.app.config]
run = {run}
"""
_FILES = {
    "LICENSE": (
        "Generated by fedgsca. Licensed under the Apache License, Version 2.0, like fedgsca"
        " itself.\n"
    ),
    "fedgsca_run/__init__.py": "",
    "fedgsca_run/server.py": (
        "from fedgsca.hospital.coordinator import coordinator_app\n\napp = coordinator_app()\n"
    ),
    "fedgsca_run/client.py": (
        "from flwr.clientapp import ClientApp\n\napp = ClientApp()  # hospitals run none of it\n"
    ),
}


def write_app(config: Config, out: Path) -> Path:
    """Make `out` the run folder of this experiment and write the app for `flwr run` into it.

    Returns the folder of the app. An app that is there is replaced.
    """
    out = out.resolve()
    if "'" in str(out):
        raise ConfigError(
            "deploy.quote-in-path",
            f"the path {out} contains a quote, which Flower cannot handle",
            fix="choose another folder",
        )
    with RunFolder(out, config):
        write_atomic(out / "config.toml", to_toml(config).encode())
        app = out / "app"
        write_atomic(app / "pyproject.toml", _PROJECT.format(run=json.dumps(str(out))).encode())
        for name, text in _FILES.items():
            write_atomic(app / name, text.encode())
    return app


def coordinator_app() -> ServerApp:
    """The ServerApp that the app names; the app's configuration names the run folder.

    Progress goes to the log as lines; a report is written at the end.
    """
    from fedgsca.federation.progress import LineDisplay
    from fedgsca.lab.report.html_page import write_report

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        logging.getLogger("flwr").addFilter(TracebackFilter())
        out = Path(str(context.run_config["run"]))
        config = read_config(out)
        hours = config.federation.patience
        coordinate(
            grid,
            config,
            out,
            deadline=config.federation.deadline or DEFAULT_DEADLINE,
            patience=3600 * (DEFAULT_PATIENCE if hours is None else hours),
            observer=LineDisplay(runs=1).observe(f"{config.method} over Flower"),
            send_model=True,
        )
        write_report(out)

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
