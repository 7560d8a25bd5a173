"""The engine of a deployment: payloads go to sites that may be late, absent, of another version, or not who they say they are.

It knows deadlines, quorum and names, and leaves the carrying to a Transport (flower.py has one).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedgsca.engine.local import Reply
from fedgsca.engine.node_registry import NodeRegistry
from fedgsca.engine.round_status import Status
from fedgsca.engine.rounds import RunObserver, SilentObserver
from fedgsca.engine.simulation_metrics import believed
from fedgsca.engine.site_node import Kind
from fedgsca.errors import FedgscaError
from fedgsca.wire import Payload, Update

_TELL_EVERY = 30.0  # seconds between lines that say who is awaited


@dataclass(frozen=True)
class SiteMessage:
    """What came back for one message: its content, or the carrier's reason why there is none."""

    to: str  # the number of the message that this answers
    header: dict[str, Any] | None = None
    weights: dict[str, np.ndarray] | None = None
    extras: dict[str, np.ndarray] | None = None
    error: str | None = None


class Transport(Protocol):
    """Carries messages to numbered nodes."""

    def online(
        self,
    ) -> dict[int, str]: ...  # node -> the name under which its key is registered, or ""
    def send(
        self, kind: Kind, payload: Payload, nodes: Sequence[int], seconds: float | None
    ) -> dict[str, int]: ...  # message -> node
    def collect(self, numbers: Sequence[str]) -> list[SiteMessage]: ...  # what has arrived so far


class NetworkEngine:
    """Carries payloads with a deadline, and names every site that did not answer in time.

    A round goes to the sites that are connected when it begins. The first one waits for all sites, later ones for a quorum; a site
    that returns during a round takes part in the next.
    """

    def __init__(
        self,
        post: Transport,
        sites: Sequence[str],
        *,
        quorum: int = 1,
        deadline: float | None = None,
        observer: RunObserver | None = None,
        poll: float = 0.5,
        stop: threading.Event | None = None,
        strict: bool = False,
    ) -> None:
        """`strict`, for simulations: a message that got lost is an error, not a site to be left out."""
        self.post, self.deadline, self.poll = post, deadline, poll
        self.quorum, self.observer, self.stop = (
            quorum,
            observer or SilentObserver(),
            stop or threading.Event(),
        )
        self.roll = NodeRegistry(tuple(sorted(sites)))
        self.asked: dict[str, int] = {}  # hello message -> node
        self.late: dict[str, str] = {}  # message of an earlier round -> site
        self.gathered, self.strict = False, strict

    def exchange(self, payload: Payload) -> Iterator[Reply]:
        return self._visit("train", payload)

    def judge(self, payload: Payload) -> Iterator[Reply]:
        return self._visit("judge", payload)

    def close(self) -> None:
        pass

    def _visit(self, kind: Kind, payload: Payload) -> Iterator[Reply]:
        self._gather(self._end())
        end, nodes = self._end(), dict(self.roll.nodes)
        sent = self.post.send(kind, payload, list(nodes.values()), self.deadline)
        site_of = {node: site for site, node in nodes.items()}
        waiting = {number: site_of[node] for number, node in sent.items()}
        sites, ready = set(waiting.values()), dict[str, Reply]()
        watch = _Watch(
            self.observer,
            f"round {payload.round + 1}: {'update' if kind == 'train' else 'test result'}",
            sites,
        )
        for site in self.roll.expected:
            while site in sites and site not in ready:
                for message in self.post.collect([*waiting, *self.late]):
                    self._receive(message, kind, payload.round, waiting, ready)
                if (
                    site in ready or time.monotonic() >= end
                ):  # looked once more after the deadline: what is there counts
                    break
                watch.tell(waiting.values())
                self._rest()
            if site in ready:
                yield ready.pop(site)
            else:
                yield Reply(
                    site,
                    None,
                    f"no answer within {self.deadline} s"
                    if site in sites
                    else self.roll.why_absent(site),
                )
        self.late |= waiting

    def _end(self) -> float:
        return time.monotonic() + self.deadline if self.deadline is not None else float("inf")

    def _rest(self) -> None:
        if self.stop.wait(self.poll):
            raise FedgscaError(
                "todo.network-1",
                "stopped from outside",
                fix="run `fedgsca resume`; finished rounds are kept",
            )

    def _receive(
        self,
        message: SiteMessage,
        kind: Kind,
        round: int,
        waiting: dict[str, str],
        ready: dict[str, Reply],
    ) -> None:
        if message.to in self.late:
            self.observer.on_message(
                f"{self.late.pop(message.to)} answered too late for its round; the answer is dropped"
            )
        elif message.to in waiting:
            site = waiting.pop(message.to)
            if self.strict and message.error is not None:
                raise FedgscaError(
                    "todo.network-2",
                    f"{site} failed: {message.error}",
                    fix="see above; then `fedgsca resume`: finished rounds are kept",
                )
            ready[site] = read_message(message, site, kind, round)

    def _gather(self, end: float) -> None:
        """Learn who is connected. Wait for all sites the first time, afterwards for a quorum."""
        self.roll.pardon()
        watch = _Watch(self.observer, "connection", self.roll.expected if not self.gathered else ())
        while True:
            self._ask()
            enough = (
                len(self.roll.nodes) >= self.quorum if self.gathered else not self.roll.missing()
            )
            if enough or time.monotonic() >= end:
                break
            watch.tell(self.roll.missing())
            self._rest()
        self.gathered = True

    def _ask(self) -> None:
        names = self.post.online()
        self.roll.forget_absent(names)
        strangers = [node for node in self.roll.strangers(names) if node not in self.asked.values()]
        self.asked |= self.post.send("hello", Payload(0, {}), strangers, None)
        for message in self.post.collect(list(self.asked)):
            node = self.asked.pop(message.to, None)
            if node is not None and node in names:
                reply = read_message(message, names[node], "hello", 0)
                site = reply.update.site if reply.update is not None else reply.site
                why = self.roll.enter(node, site, names[node], reply.error)
                if why is not None:
                    self.observer.on_message(f"{site or 'a node'} cannot take part: {why}")


def read_message(message: SiteMessage, site: str, kind: Kind, round: int) -> Reply:
    """What a site says; anything odd about it becomes the reason for leaving it out. `site` may be empty: it tells its name."""
    if message.error is not None or message.header is None:
        return Reply(site, None, message.error or "an empty message")
    header = message.header
    try:
        if (header["kind"], header["round"]) != (kind, round):
            return Reply(
                site, None, f"it answered {header['kind']} of round {int(header['round']) + 1}"
            )
        name = str(header["site"])
        if header["error"] is not None:
            return Reply(site or name, None, str(header["error"]))
        update = Update(
            name, int(header["num_samples"]), message.weights or {}, message.extras or {}
        )
        seconds = float(header["seconds"])
        if not math.isfinite(seconds):
            raise ValueError(f"it took {seconds} seconds")
        return Reply(site, update, None, believed(dict(header["observed"])), seconds)
    except (KeyError, TypeError, ValueError, OverflowError) as problem:  # JSON knows Infinity
        return Reply(
            site, None, f"its message cannot be used ({type(problem).__name__}: {problem})"
        )


class _Watch:
    """Says now and then who is awaited and since when."""

    def __init__(self, observer: RunObserver, what: str, names: Iterable[str]) -> None:
        self.observer, self.what = observer, what
        self.since, self.told = time.strftime("%H:%M:%S"), time.monotonic()
        if isinstance(observer, Status):
            observer.awaits(sorted(names), what)

    def tell(self, names: Iterable[str]) -> None:
        if time.monotonic() - self.told >= _TELL_EVERY and (missing := sorted(set(names))):
            self.told = time.monotonic()
            self.observer.on_message(
                f"{self.what}: waiting for {', '.join(missing)} since {self.since}"
            )
