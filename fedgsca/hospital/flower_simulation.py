"""A federation over Flower on one machine: coordinator and sites in Flower's simulation engine."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from fedgsca.errors import MissingExtraError
from fedgsca.federation.base import Reply, RunObserver
from fedgsca.federation.records import RunResult
from fedgsca.federation.simulation import prepare
from fedgsca.hospital.flower import coordinate
from fedgsca.hospital.messages import (
    MESSAGE_TYPES,
    MessageKind,
    Terms,
    decode,
    encode_reply,
    from_records,
    public_reason,
    to_records,
)
from fedgsca.hospital.site_answers import SitePlace, answer
from fedgsca.hospital.site_settings import SiteSettings, state_folder
from fedgsca.wire import Payload

# isort: split
# after messages.py, which switches Flower's telemetry off
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

log = logging.getLogger(__name__)
# Flower's context -> the site, and its folder; None: the folder that its settings name
FindPlace: TypeAlias = Callable[[Context], tuple[SiteSettings, Path | None]]


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


def client_app(find_place: FindPlace) -> ClientApp:
    """Sites that answer in this process."""

    def answer_here(kind: MessageKind, records: RecordDict, context: Context) -> RecordDict:
        header, weights, extras = decode(from_records(kind, records))
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
        return to_records(encode_reply(kind, payload.round, reply))

    return make_app(answer_here)


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
    experiment = prepare(config, folder=out)
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
