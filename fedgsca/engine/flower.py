"""Flower as the carrier between coordinator and hospitals. The only file that imports flwr.

The round loop is ours (federation.py), because it checkpoints, resumes and validates; Flower moves messages. A message is one
ArrayRecord with the floating-point weights, strung together, which Flower's own privacy mods can be put around, and one ConfigRecord with a
safetensors block: the header, the declared extras, and integer buffers, which those mods would spoil.

    coordinator (ServerApp)                           site (ClientApp, usually a fresh process per message)
    hello(terms)          -- query -->                checks the terms, opens its data, says its name
    train(terms, payload) -- train -->                local_update, the same function as in a simulation
    judge(terms, weights) -- evaluate -->             only where the coordinator has no test images
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr and ray are imported
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray asks for it with a warning
if "RAY_ADDRESS" not in os.environ:
    os.environ.setdefault(
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
    )  # what makes Ray stay on loopback, on Linux too

from fedgsca.config import Config
from fedgsca.engine.local import Reply
from fedgsca.engine.network import NetworkEngine, SiteMessage
from fedgsca.engine.round_status import Status
from fedgsca.engine.rounds import RunObserver, SilentObserver, run, wanted
from fedgsca.engine.site_node import (
    Kind,
    SiteSettings,
    answer,
    public_reason,
    read_settings,
    state_folder,
    terms_of,
)
from fedgsca.errors import ConfigError, MissingExtraError
from fedgsca.experiment.deployment import prepare_coordinator
from fedgsca.experiment.run_folder import read_config
from fedgsca.experiment.simulation import Experiment, prepare
from fedgsca.wire import Arrays, Payload, Update, pack, unpack

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as missing:
    raise MissingExtraError(
        "todo.flower-1", "Flower is not installed", fix="pip install 'fedgsca[flower]'"
    ) from missing

log = logging.getLogger(__name__)
DEADLINE = 3600.0  # seconds, where the configuration names none
_TYPES: Mapping[Kind, str] = {"hello": "query", "train": "train", "judge": "evaluate"}


# ---- messages ----


def to_records(header: Mapping[str, Any], weights: Arrays, extras: Arrays) -> RecordDict:
    """All floating-point weights of one type as one long array: Flower pays for each array with several calls at every hop."""
    floats = {name: np.asarray(a) for name, a in weights.items() if np.asarray(a).dtype.kind == "f"}
    buffers = {name: a for name, a in weights.items() if name not in floats}
    layout = [[name, a.dtype.name, list(a.shape)] for name, a in floats.items()]
    kinds = dict.fromkeys(a.dtype.name for a in floats.values())
    flat = {
        kind: np.concatenate([a.ravel() for a in floats.values() if a.dtype.name == kind])
        for kind in kinds
    }
    rest = ConfigRecord(
        {"fedgsca": pack({**header, "layout": layout}, extras=extras, buffers=buffers)}
    )
    return RecordDict(
        {"weights": ArrayRecord({kind: Array(a) for kind, a in flat.items()}), "rest": rest}
    )


def from_records(
    records: RecordDict,
) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Header, weights, extras. Whatever is wrong with them raises ValueError: the sender may be of another make."""
    try:
        packed = bytes(records.config_records["rest"]["fedgsca"])  # type: ignore[arg-type]
        header, (extras, buffers) = unpack(packed, ("extras", "buffers"))
        flat = {dtype: array.numpy() for dtype, array in records.array_records["weights"].items()}
        floats = _parted(flat, header.pop("layout"))
    except Exception as error:
        raise ValueError(f"the message cannot be read ({type(error).__name__})") from error
    return header, {**floats, **buffers}, extras


def _parted(flat: Mapping[str, np.ndarray], layout: Any) -> dict[str, np.ndarray]:
    """The arrays that were strung together. They must use up exactly what came, in the type that they claim."""
    parts, used = dict[str, np.ndarray](), dict.fromkeys(flat, 0)
    for name, dtype, shape in layout:
        size = math.prod(shape)
        part = flat[dtype][used[dtype] : used[dtype] + size]
        if min(shape, default=0) < 0 or part.dtype.name != dtype or name in parts:
            raise ValueError(name)
        parts[name], used[dtype] = part.reshape(shape), used[dtype] + size
    if any(a.shape != (used[dtype],) for dtype, a in flat.items()):
        raise ValueError("layout")
    return parts


# ---- site ----


def client_app(place: Callable[[Context], tuple[SiteSettings, Path | None]]) -> ClientApp:
    """`place` tells from Flower's context which site this is, and its folder; None: the folder that its settings name."""
    app = ClientApp()

    def handler(kind: Kind) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            header, weights, extras = from_records(message.content)
            round, terms = int(header["round"]), header["terms"]
            try:
                settings, folder = place(context)
                kept = folder or state_folder(settings, str(terms["fingerprint"]))
            except Exception as error:  # site.toml; what is in it stays here, whereas Flower would send the text of any exception
                log.error("this site's settings cannot be used: %s", error)
                return Message(
                    _reply_records(kind, round, Reply("", None, public_reason(error))),
                    reply_to=message,
                )
            reply = answer(
                kind, terms, Payload(round, weights, extras), settings, kept, alone=folder is None
            )
            return Message(_reply_records(kind, round, reply), reply_to=message)

        return handle

    app.query()(handler("hello"))
    app.train()(handler("train"))
    app.evaluate()(handler("judge"))
    return app


def _reply_records(kind: Kind, round: int, reply: Reply) -> RecordDict:
    update = reply.update or Update(reply.site, 0, {})
    header: dict[str, Any] = {
        "kind": kind,
        "round": round,
        "site": update.site,
        "num_samples": update.num_samples,
        "error": reply.error,
    }
    header |= {"observed": dict(reply.observed), "seconds": reply.seconds}
    return to_records(header, update.weights, update.extras)


def from_node_config(context: Context) -> tuple[SiteSettings, None]:
    """A SuperNode is started with --node-config 'settings="/path/site.toml"'."""
    path = context.node_config.get("settings")
    if not path:
        raise ConfigError(
            "todo.flower-2",
            "the SuperNode does not say where site.toml is",
            fix="--node-config 'settings=\"/path/site.toml\"'",
        )
    return read_settings(Path(str(path))), None


# ---- coordinator ----


class FlowerTransport:
    """Messages over a Flower grid. The same terms go with each of them."""

    def __init__(self, grid: Grid, terms: Mapping[str, Any]) -> None:
        self.grid, self.terms = grid, terms

    def online(self) -> dict[int, str]:
        return {int(node.node_id): str(node.name or "") for node in self.grid.get_nodes()}

    def send(
        self, kind: Kind, payload: Payload, nodes: Sequence[int], seconds: float | None
    ) -> dict[str, int]:
        """A message that was not picked up in time is not delivered afterwards. The content is shared: Flower stores it once."""
        if not nodes:
            return {}
        records = to_records(
            {"terms": self.terms, "round": payload.round}, payload.weights, payload.extras
        )
        messages = [
            Message(records, node, _TYPES[kind], ttl=seconds, group_id=str(payload.round))
            for node in nodes
        ]
        numbers = list(self.grid.push_messages(messages))
        return {number: node for number, node in zip(numbers, nodes, strict=True) if number}

    def collect(self, numbers: Sequence[str]) -> list[SiteMessage]:
        return (
            [_read_message(message) for message in self.grid.pull_messages(list(numbers))]
            if numbers
            else []
        )


def _read_message(message: Message) -> SiteMessage:
    # not the sender counts: the SuperLink answers in the name of a node that died
    to = message.metadata.reply_to_message_id
    if message.has_error():
        reason = (str(message.error.reason).splitlines() or ["no reason"])[0]
        return SiteMessage(to, error=f"Flower reports error {message.error.code}: {reason[:300]}")
    try:
        return SiteMessage(to, *from_records(message.content))
    except ValueError as error:
        return SiteMessage(to, error=str(error))


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
    experiment: Experiment | None = None,
) -> dict[str, Any]:
    """The coordinator's whole run over a grid, or its continuation."""
    status = Status(out, observer or SilentObserver())
    try:
        experiment = experiment or prepare_coordinator(config)
        post, quorum = (
            FlowerTransport(grid, terms_of(experiment)),
            wanted(config, len(experiment.names)),
        )
        engine = NetworkEngine(
            post,
            experiment.names,
            quorum=quorum,
            deadline=deadline,
            observer=status,
            poll=poll,
            stop=stop,
            strict=strict,
        )
        result = run(config, out, engine=engine, experiment=experiment, observer=status)
    except BaseException as error:
        status.ended(error)
        raise
    status.ended(None)
    return result


def server_app() -> ServerApp:
    """The coordinator under `flwr run`: everything it needs is in the run folder that write_app made."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from fedgsca.engine.progress import Lines
        from fedgsca.report.html_page import write_report

        out = Path(str(context.run_config["run"]))
        config = read_config(out)
        observer = Lines(1).watch(f"{config.method} over Flower")
        coordinate(
            grid, config, out, deadline=config.federation.deadline or DEADLINE, observer=observer
        )
        write_report(out)

    return app


# ---- simulation ----


def simulate(
    config: Config, out: Path, *, jobs: int = 1, observer: RunObserver | None = None
) -> dict[str, Any]:
    """The experiment on Flower's simulation engine: `jobs` Ray actors on this machine, or the cluster that RAY_ADDRESS names.

    Without a cluster, Ray listens on loopback only and is gone at the end. A cluster's machines must see the data and the run
    folder under the same paths.
    """
    if find_spec("ray") is None:
        raise MissingExtraError(
            "todo.flower-3",
            "Flower simulates with Ray, which is not installed",
            fix="pip install 'fedgsca[flower-sim]'",
        )
    from flwr.simulation import run_simulation

    out = out.resolve()
    experiment, stop = prepare(config), threading.Event()
    names, found = sorted(experiment.names), list[dict[str, Any]]()
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
        found.append(result)

    def place(context: Context) -> tuple[SiteSettings, Path]:
        return SiteSettings(
            name=names[int(context.node_config["partition-id"])], state=str(out)
        ), out

    with ray_settings(jobs) as settings:
        try:
            run_simulation(server, client_app(place), len(names), backend_config=settings)
        finally:
            stop.set()  # Ctrl-C ends this thread; the other one must not wait for sites that are gone
    return found[0]


@contextmanager
def ray_settings(jobs: int) -> Iterator[dict[str, Any]]:
    """Ray's settings, in a short folder of its own: the paths of its sockets may have 107 characters."""
    import ray

    # silent: its errors reach us as replies, and its advice to use `flwr run` would leave a process behind
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    cluster = os.environ.get("RAY_ADDRESS")
    if cluster:
        yield {
            "init_args": {"address": cluster, "log_to_driver": False},
            "client_resources": resources,
        }
        return
    folder = tempfile.mkdtemp(prefix="ray-")
    local = {
        "num_cpus": jobs,
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": folder,
        "log_to_driver": False,
    }
    try:
        yield {"init_args": local, "client_resources": resources}
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
