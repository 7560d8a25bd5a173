"""Flower as the carrier between coordinator and hospitals. The only file that imports flwr.

The round loop is ours (federation.py), because it checkpoints, resumes and validates; Flower moves messages. A message is one
ArrayRecord with the floating-point weights, so that Flower's own privacy mods can be put around it, and one ConfigRecord with a
safetensors block: the header, the declared extras, and integer buffers, which those mods would spoil.

    coordinator (ServerApp)                           site (ClientApp, usually a fresh process per message)
    hello(terms)          -- query -->                checks the terms, opens its data, says its name
    train(terms, payload) -- train -->                local_update, the same function as in a simulation
    judge(terms, weights) -- evaluate -->             only where the coordinator has no test images
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # all three are read when flwr and ray are imported
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from fedgsca.config import Config
from fedgsca.engine.federation import Silent, Watcher, run, wanted
from fedgsca.engine.folder import read_config
from fedgsca.engine.local import Reply
from fedgsca.engine.remote import Kind, SiteSettings, answer, read_settings, terms_of
from fedgsca.engine.roll import Roll
from fedgsca.engine.status import Status
from fedgsca.errors import ConfigError, MissingExtraError
from fedgsca.views import prepare_coordinator
from fedgsca.wire import Arrays, Payload, Update, pack, unpack

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as missing:
    raise MissingExtraError("Flower is not installed", fix="pip install 'fedgsca[flower]'") from missing

DEADLINE = 3600.0  # seconds, where the configuration names none
_TELL_EVERY = 30.0  # seconds between lines that say who is awaited
_TYPES: Mapping[Kind, str] = {"hello": "query", "train": "train", "judge": "evaluate"}


# ---- messages ----


def to_records(header: Mapping[str, Any], weights: Arrays, extras: Arrays) -> RecordDict:
    floats = {name: np.asarray(a) for name, a in weights.items() if np.asarray(a).dtype.kind == "f"}
    buffers = {name: a for name, a in weights.items() if name not in floats}
    rest = ConfigRecord({"fedgsca": pack(header, extras=extras, buffers=buffers)})
    arrays = ArrayRecord({name: Array(a) for name, a in floats.items()})
    return RecordDict({"weights": arrays, "rest": rest})


def from_records(records: RecordDict) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Header, weights, extras. Whatever is wrong with them raises ValueError: the sender may be of another make."""
    try:
        header, (extras, buffers) = unpack(bytes(records.config_records["rest"]["fedgsca"]), ("extras", "buffers"))  # type: ignore[arg-type]
        floats = {name: array.numpy() for name, array in records.array_records["weights"].items()}
    except Exception as error:
        raise ValueError(f"the message cannot be read ({type(error).__name__})") from error
    return header, {**floats, **buffers}, extras


# ---- site ----


def client_app(place: Callable[[Context], tuple[SiteSettings, Path | None]]) -> ClientApp:
    """`place` tells from Flower's context which site this is, and its folder; None: the folder that its settings name."""
    app = ClientApp()

    def handler(kind: Kind) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            settings, folder = place(context)
            header, weights, extras = from_records(message.content)
            terms, alone = header["terms"], folder is None
            kept = folder or Path(settings.state).expanduser() / str(terms["fingerprint"])[:16]
            reply = answer(kind, terms, Payload(int(header["round"]), weights, extras), settings, kept, alone=alone)
            return Message(_reply_records(kind, int(header["round"]), reply), reply_to=message)

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
        raise ConfigError("the SuperNode does not say where site.toml is", fix="--node-config 'settings=\"/path/site.toml\"'")
    return read_settings(Path(str(path))), None


# ---- coordinator ----


class FlowerEngine:
    """Carries payloads over a Flower grid, with a deadline, and names every site that did not answer in time.

    A round goes to the sites that are connected when it begins. The first one waits for all sites, later ones for a quorum; a site
    that returns during a round takes part in the next.
    """

    def __init__(
        self,
        grid: Grid,
        terms: Mapping[str, Any],
        sites: Sequence[str],
        *,
        quorum: int = 1,
        deadline: float | None = None,
        watcher: Watcher | None = None,
        poll: float = 0.5,
    ) -> None:
        self.grid, self.terms, self.deadline, self.poll = grid, terms, deadline, poll
        self.quorum, self.watcher = quorum, watcher or Silent()
        self.roll = Roll(tuple(sorted(sites)))
        self.asked: dict[str, int] = {}  # hello message -> node
        self.late: dict[str, str] = {}  # message of an earlier round -> site
        self.names: dict[int, str] = {}  # node -> the name of its key
        self.gathered = False

    def exchange(self, payload: Payload) -> Iterator[Reply]:
        return self._visit("train", payload)

    def judge(self, payload: Payload) -> Iterator[Reply]:
        return self._visit("judge", payload)

    def close(self) -> None:
        pass

    def _visit(self, kind: Kind, payload: Payload) -> Iterator[Reply]:
        self._gather(self._end())
        end = self._end()
        sent = self._send(kind, payload, self.roll.nodes.values(), end)
        site_of = {node: site for site, node in self.roll.nodes.items()}
        waiting = {message: site_of[node] for message, node in sent.items()}
        sites, ready = set(waiting.values()), dict[str, Reply]()
        watch = _Watch(self.watcher, f"round {payload.round}: {'update' if kind == 'train' else 'test result'}", sites)
        for site in self.roll.expected:
            while site in sites and site not in ready:
                for message in self._pull([*waiting, *self.late]):
                    self._receive(message, kind, payload.round, waiting, ready)
                if site in ready or time.monotonic() >= end:  # looked once more after the deadline: what is there counts
                    break
                watch.tell(set(waiting.values()))
                time.sleep(self.poll)
            if site in ready:
                yield ready.pop(site)
            else:
                yield Reply(site, None, f"no answer within {self.deadline} s" if site in sites else self.roll.why_absent(site))
        self.late |= waiting

    def _end(self) -> float:
        return time.monotonic() + self.deadline if self.deadline is not None else float("inf")

    def _receive(self, message: Message, kind: Kind, round: int, waiting: dict[str, str], ready: dict[str, Reply]) -> None:
        to = message.metadata.reply_to_message_id  # not the sender: errors come from the SuperLink in the name of a dead node
        if to in self.late:
            self.watcher.said(f"{self.late.pop(to)} answered too late for its round; the answer is dropped")
        elif to in waiting:
            site = waiting.pop(to)
            ready[site] = _reply(message, site, kind, round)

    def _gather(self, end: float) -> None:
        """Learn who is connected. Wait for all sites the first time, afterwards for a quorum."""
        self.roll.pardon()
        watch = _Watch(self.watcher, "connection", self.roll.expected)
        while True:
            self._ask()
            enough = not self.roll.missing() if not self.gathered else len(self.roll.nodes) >= self.quorum
            if enough or time.monotonic() >= end:
                break
            watch.tell(set(self.roll.missing()))
            time.sleep(self.poll)
        self.gathered = True

    def _ask(self) -> None:
        self.names = {int(node.node_id): str(node.name or "") for node in self.grid.get_nodes()}
        self.roll.forget_absent(self.names)
        strangers = [node for node in self.roll.strangers(self.names) if node not in self.asked.values()]
        self.asked |= self._send("hello", Payload(0, {}), strangers, float("inf"))
        for message in self._pull(list(self.asked)):
            node = self.asked.pop(message.metadata.reply_to_message_id, None)
            if node is not None and node in self.names:
                reply = _reply(message, self.names[node], "hello", 0)
                site = reply.update.site if reply.update is not None else reply.site
                why = self.roll.enter(node, site, self.names[node], reply.error)
                if why is not None:
                    self.watcher.said(f"{site or 'a node'} cannot take part: {why}")

    def _send(self, kind: Kind, payload: Payload, nodes: Any, end: float) -> dict[str, int]:
        """Message number -> node. A message that was not picked up by the end of its round is not delivered afterwards."""
        records = to_records({"terms": self.terms, "round": payload.round}, payload.weights, payload.extras)
        ttl = None if end == float("inf") else max(1.0, end - time.monotonic())
        to = list(nodes)
        messages = [Message(records, node, _TYPES[kind], ttl=ttl, group_id=str(payload.round)) for node in to]
        numbers = list(self.grid.push_messages(messages)) if messages else []
        return {number: node for number, node in zip(numbers, to, strict=False) if number}

    def _pull(self, numbers: list[str]) -> list[Message]:
        return list(self.grid.pull_messages(numbers)) if numbers else []


def _reply(message: Message, site: str, kind: Kind, round: int) -> Reply:
    """What a message of a site says; anything odd about it becomes the reason for leaving it out."""
    if message.has_error():
        return Reply(site, None, f"Flower reports error {message.error.code}: {message.error.reason}")
    try:
        header, weights, extras = from_records(message.content)
        if (header["kind"], header["round"]) != (kind, round):
            return Reply(site, None, f"it answered {header['kind']} of round {header['round']}")
        name, error = str(header["site"]), header["error"]
        if error is not None:
            return Reply(site or name, None, str(error))
        update = Update(name, int(header["num_samples"]), weights, extras)
        return Reply(site, update, None, dict(header["observed"]), float(header["seconds"]))
    except Exception as problem:
        return Reply(site, None, f"its message cannot be used ({problem})")


class _Watch:
    """Says now and then who is awaited and since when."""

    def __init__(self, watcher: Watcher, what: str, names: Any) -> None:
        self.watcher, self.what = watcher, what
        self.since, self.told = time.strftime("%H:%M:%S"), time.monotonic()
        if isinstance(watcher, Status):
            watcher.awaits(sorted(names), what)

    def tell(self, names: set[str]) -> None:
        if names and time.monotonic() - self.told >= _TELL_EVERY:
            self.told = time.monotonic()
            self.watcher.said(f"{self.what}: waiting for {', '.join(sorted(names))} since {self.since}")


def coordinate(
    grid: Grid, config: Config, out: Path, *, deadline: float | None, watcher: Watcher | None = None, poll: float = 0.5
) -> dict[str, Any]:
    """The coordinator's whole run over a grid, or its continuation."""
    experiment = prepare_coordinator(config)
    status = Status(out, watcher or Silent())
    quorum = wanted(config, len(experiment.names))
    engine = FlowerEngine(
        grid, terms_of(experiment), experiment.names, quorum=quorum, deadline=deadline, watcher=status, poll=poll
    )
    try:
        result = run(config, out, engine=engine, experiment=experiment, watcher=status)
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
        from fedgsca.cli.progress import Lines
        from fedgsca.report.html import write_report

        out = Path(str(context.run_config["run"]))
        config = read_config(out)
        watcher = Lines(1).watch(f"{config.method} over Flower")
        coordinate(grid, config, out, deadline=config.federation.deadline or DEADLINE, watcher=watcher)
        write_report(out)

    return app
