"""Flower as the transport between coordinator and hospitals: the coordinator, and simulations.

The round loop is ours (rounds.py), because it saves, resumes and validates; Flower moves messages
(flower_messages.py). The files that import flwr are flower*.py in this folder, and
deploy/flower_probe.py, which checks a connection.

    coordinator (ServerApp)                      site (flower_node.py, or a ClientApp)
    hello(terms)          -- query -->           checks the terms, opens its data, tells its name
    train(terms, payload) -- train -->           local_update, the same function as in a simulation
    judge(terms, weights) -- evaluate -->        only if the coordinator has no test images
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

# read when ray is imported
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns if it is not set
if "RAY_ADDRESS" not in os.environ:
    # with this Ray stays on loopback, on Linux too
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

from fedgsca.config import Config
from fedgsca.engine.base import ObserverGroup, Reply, RunObserver
from fedgsca.engine.coordinator_errors import install_filter, report_stop
from fedgsca.engine.filters.claims import describe_aggregation
from fedgsca.engine.flower_messages import MESSAGE_TYPES, from_records, to_records
from fedgsca.engine.intake import quorum_of
from fedgsca.engine.network import NetworkEngine, SiteMessage
from fedgsca.engine.round_status import StatusObserver
from fedgsca.engine.rounds import run
from fedgsca.engine.site_node import (
    MessageKind,
    SitePlace,
    SiteSettings,
    Terms,
    answer,
    public_reason,
    read_settings,
    reply_header,
    state_folder,
    terms_of,
)
from fedgsca.engine.timeouts import SiteTimeouts
from fedgsca.errors import ConfigError, FedgscaError, MissingExtraError
from fedgsca.experiment.deployment import prepare_coordinator
from fedgsca.experiment.records import RunResult
from fedgsca.experiment.run_folder import read_config
from fedgsca.experiment.simulation import Experiment, prepare
from fedgsca.wire import Payload, Update

# isort: split
# after flower_messages.py, which reports a missing Flower and switches its telemetry off
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

log = logging.getLogger(__name__)
DEFAULT_PATIENCE = 24.0  # hours, if the configuration does not say
DEFAULT_DEADLINE = 3600.0  # seconds, if the configuration names none
_USUAL_ERRORS = {  # by Flower's code
    3: "its message expired before the answer",
    5: "its connection is lost",  # no heartbeat within twice its interval
}
_MAX_REASON = 300  # characters of a reason that Flower reports


# ---- sites in the process that answers: simulations, tests ----

# Flower's context -> the site, and its folder; None: the folder that its settings name
FindPlace: TypeAlias = Callable[[Context], tuple[SiteSettings, Path | None]]


def client_app(find_place: FindPlace) -> ClientApp:
    """Sites that answer in this process; flower_site.py is the app of a hospital."""
    app = ClientApp()

    def handler(kind: MessageKind) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            return _answer_message(kind, message, context, find_place)

        return handle

    app.query()(handler("hello"))
    app.train()(handler("train"))
    app.evaluate()(handler("judge"))
    return app


def _answer_message(
    kind: MessageKind, message: Message, context: Context, find_place: FindPlace
) -> Message:
    header, weights, extras = from_records(message.content)
    payload = Payload(int(header["round"]), weights, extras)
    terms = Terms.from_json(header["terms"])
    try:
        settings, folder = find_place(context)
        site_folder = folder or state_folder(settings, terms.fingerprint)
    except Exception as error:
        # Flower would send the text of any exception; what is in site.toml stays here
        log.error("this site's settings cannot be used: %s", error)
        reply = Reply("", None, public_reason(error))
    else:
        place = SitePlace(settings, site_folder, is_hospital=folder is None)
        reply = answer(kind, terms, payload, place)
    return Message(_reply_records(kind, payload.round, reply), reply_to=message)


def _reply_records(kind: MessageKind, round_index: int, reply: Reply) -> RecordDict:
    update = reply.update or Update(reply.site, 0, {})
    return to_records(reply_header(kind, round_index, reply), update.weights, update.extras)


def from_node_config(context: Context) -> tuple[SiteSettings, None]:
    """A SuperNode is started with --node-config 'settings="/path/site.toml"'."""
    path = context.node_config.get("settings")
    if not path:
        raise ConfigError(
            "site.no-settings",
            "the SuperNode does not say where site.toml is",
            fix="start it with --node-config 'settings=\"/path/site.toml\"'",
        )
    return read_settings(Path(str(path))), None


# ---- coordinator ----


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
        records = to_records(header, payload.weights, payload.extras)
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
        return SiteMessage(reply_to, *from_records(message.content))
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
        install_filter()
        out = Path(str(context.run_config["run"]))
        config = read_config(out)
        deadline = config.federation.deadline or DEFAULT_DEADLINE
        hours = config.federation.patience
        patience = 3600 * (DEFAULT_PATIENCE if hours is None else hours)
        observer = make_observer(config)
        coordinate(grid, config, out, deadline=deadline, observer=observer, patience=patience)
        on_finish(out)

    return app


# ---- simulation ----


def simulate(
    config: Config, out: Path, *, jobs: int = 1, observer: RunObserver | None = None
) -> RunResult | None:
    """The experiment on Flower's simulation engine.

    It uses `jobs` Ray actors on this machine, or the cluster that RAY_ADDRESS names. Without a
    cluster, Ray listens on loopback only and is stopped at the end. The machines of a cluster must
    see the data and the run folder under the same paths.
    """
    if find_spec("ray") is None:
        raise MissingExtraError(
            "extra.ray-missing",
            "Flower simulates with Ray, which is not installed",
            fix="pip install 'fedgsca[flower-sim]'",
        )
    from flwr.simulation import run_simulation

    out = out.resolve()
    experiment = prepare(config)
    names = sorted(experiment.names)
    stop = threading.Event()
    results: list[RunResult | None] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:  # in a thread of this process
        result = coordinate(
            grid,
            config,
            out,
            deadline=None,
            observer=observer,
            poll=0.05,
            stop=stop,
            strict=True,
            experiment=experiment,
        )
        results.append(result)

    def find_place(context: Context) -> tuple[SiteSettings, Path]:
        name = names[int(context.node_config["partition-id"])]
        return SiteSettings(name=name, state=str(out)), out

    with ray_settings(jobs) as settings:
        try:
            run_simulation(server, client_app(find_place), len(names), backend_config=settings)
        finally:
            # Ctrl-C ends this thread; the other one must not wait for sites that are gone
            stop.set()
    return results[0]


@contextmanager
def ray_settings(jobs: int) -> Iterator[dict[str, Any]]:
    """Ray's settings, with a short folder: paths of sockets have at most 107 characters."""
    import ray

    # silent: its errors reach us as replies, and its advice to use `flwr run` would leave a process
    # behind
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    cluster = os.environ.get("RAY_ADDRESS")
    if cluster:
        arguments: dict[str, Any] = {"address": cluster, "log_to_driver": False}
        yield {"init_args": arguments, "client_resources": resources}
        return
    folder = tempfile.mkdtemp(prefix="ray-")
    arguments = {
        "num_cpus": jobs,
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": folder,
        "log_to_driver": False,
    }
    try:
        yield {"init_args": arguments, "client_resources": resources}
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
