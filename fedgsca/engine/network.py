"""The engine of a deployment: sites may be late, absent, of another version, or impostors.

It knows deadlines, quorum and names, and leaves the delivery to a Transport (flower.py has one).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fedgsca.engine.base import Reply, RunObserver, SilentObserver
from fedgsca.engine.node_registry import NodeRegistry
from fedgsca.engine.notify import notify
from fedgsca.engine.round_status import StatusObserver
from fedgsca.engine.simulation_metrics import check_metrics
from fedgsca.engine.site_node import MessageKind
from fedgsca.errors import FedgscaError
from fedgsca.support.text import duration, one_line, printable
from fedgsca.wire import Payload, Update

_LONGEST_PAUSE = 3600.0  # seconds before a round is tried again
_LARGEST_FACTOR = 8.0  # on the deadline of a round that is tried again
_MAX_SITE_NAME = 200  # characters of the name that a node tells
_SHORTEST_POLL = 0.1  # seconds between two looks for answers
_POLL_SHARE = 0.1  # of the time since the round began: short rounds are not slowed down
_MESSAGE_INTERVAL = 30.0  # seconds between messages that name the sites that are awaited


@dataclass(frozen=True)
class SiteMessage:
    """The answer to one message: its content, or the transport's reason why there is none."""

    reply_to: str  # id of the message that this answers
    header: dict[str, Any] | None = None
    weights: dict[str, np.ndarray] | None = None
    extras: dict[str, np.ndarray] | None = None
    error: str | None = None


class Transport(Protocol):
    """Delivers messages to numbered nodes."""

    def online(self) -> dict[int, str]:
        """node -> the name under which its key is registered, or an empty text."""
        ...

    def send(
        self, kind: MessageKind, payload: Payload, nodes: Sequence[int], seconds: float | None
    ) -> dict[str, int]:
        """Send to these nodes; returns message id -> node. Not delivered after `seconds`."""
        ...

    def collect(self, message_ids: Sequence[str]) -> list[SiteMessage]:
        """The answers to these messages that have arrived so far."""
        ...


@dataclass
class _OpenRound:
    """The messages of one exchange that have been sent."""

    kind: MessageKind
    round_index: int
    open_message_ids: dict[str, str]  # message id -> site, until it is answered
    replies: dict[str, Reply] = field(default_factory=dict)


class NetworkEngine:
    """Exchanges payloads within a deadline, and names every site that did not answer in time.

    A round goes to the sites that are connected when it begins. The first one waits for all sites,
    later ones for a quorum; a site that returns during a round takes part in the next one.
    """

    def __init__(
        self,
        transport: Transport,
        sites: Sequence[str],
        *,
        quorum: int = 1,
        deadline: float | None = None,
        observer: RunObserver | None = None,
        poll: float = 0.5,
        stop: threading.Event | None = None,
        strict: bool = False,
        patience: float = 0.0,
        first_pause: float = 60.0,
    ) -> None:
        """`deadline` in seconds; `stop` ends the waiting from another thread.

        `poll` is the longest time in seconds between two looks for answers.

        `patience` is how many seconds a round without a quorum is tried again, after pauses that
        begin with `first_pause` and double up to an hour; each time the deadline is longer, too.

        `strict`, for simulations: a lost message is an error instead of a site that is left out.
        """
        self.transport = transport
        self.quorum = quorum
        self.deadline = deadline
        self.observer = observer or SilentObserver()
        self.poll = poll
        self.stop = stop or threading.Event()
        self.strict = strict
        self.patience = patience
        self.first_pause = first_pause
        self.first_problem_time: float | None = None  # of the round that is being repeated
        self.deadline_factor = 1.0
        self.last_round = -1
        self.registry = NodeRegistry(tuple(sorted(sites)))
        self.hello_messages: dict[str, int] = {}  # message id -> node
        self.late_messages: dict[str, str] = {}  # message id of an earlier round -> site
        self.is_first_exchange = True
        self.exchange_start = time.monotonic()

    def exchange(self, payload: Payload) -> Iterator[Reply]:
        """Have the sites trained."""
        return self._exchange("train", payload)

    def evaluate_at_sites(self, payload: Payload) -> Iterator[Reply]:
        """Have the model tested by the sites on their own test images."""
        return self._exchange("judge", payload)

    def wait_for_quorum(self, attempt: int, problem: str) -> bool:
        """Pause, longer each time; False when the patience is used up."""
        start = time.monotonic()
        if attempt == 0 or self.first_problem_time is None:
            self.first_problem_time = start
        pause = min(self.first_pause * 2.0**attempt, _LONGEST_PAUSE)
        if start + pause - self.first_problem_time > self.patience:
            return False
        text = f"{problem}; the round is tried again in {duration(pause)}"
        self.observer.on_message(text)
        if isinstance(self.observer, StatusObserver):
            self.observer.pause(text)
        failure = notify(text)
        if failure is not None:
            self.observer.on_message(failure)
        while time.monotonic() < start + pause:
            self._pause()
        self.deadline_factor = min(2.0 ** (attempt + 1), _LARGEST_FACTOR)
        return True

    def close(self) -> None:
        """The transport belongs to the caller."""

    def _exchange(self, kind: MessageKind, payload: Payload) -> Iterator[Reply]:
        if payload.round != self.last_round:  # not a repetition
            self.deadline_factor = 1.0
        self.last_round = payload.round
        self.exchange_start = time.monotonic()
        self._wait_for_connections(self._end_of_deadline())
        end = self._end_of_deadline()
        nodes = dict(self.registry.nodes)
        seconds = None if self.deadline is None else self.deadline * self.deadline_factor
        message_ids = self.transport.send(kind, payload, list(nodes.values()), seconds)
        site_of = {node: site for site, node in nodes.items()}
        open_ids = {message_id: site_of[node] for message_id, node in message_ids.items()}
        open_round = _OpenRound(kind, payload.round, open_ids)
        addressees = set(open_ids.values())
        subject = "update" if kind == "train" else "test result"
        report = _WaitingReport(self.observer, f"round {payload.round + 1}: {subject}", addressees)
        for site in self.registry.sites:
            if site not in addressees:
                yield Reply(site, None, self.registry.absence_reason(site))
                continue
            self._wait_for_reply(site, open_round, end, report)
            missing = Reply(site, None, f"no answer within {seconds} s")
            yield open_round.replies.pop(site, missing)
        self.late_messages |= open_round.open_message_ids

    def _wait_for_reply(
        self, site: str, open_round: _OpenRound, end: float, report: _WaitingReport
    ) -> None:
        """Collect answers until this site's is among them, or until the deadline."""
        while site not in open_round.replies:
            message_ids = [*open_round.open_message_ids, *self.late_messages]
            for message in self.transport.collect(message_ids):
                self._receive(message, open_round)
            # collected once more after the deadline: what has arrived counts
            if site in open_round.replies or time.monotonic() >= end:
                return
            report.update(open_round.open_message_ids.values())
            self._pause()

    def _receive(self, message: SiteMessage, open_round: _OpenRound) -> None:
        if message.reply_to in self.late_messages:
            site = self.late_messages.pop(message.reply_to)
            self.observer.on_message(
                f"{site} answered too late for its round; the answer is dropped"
            )
        elif message.reply_to in open_round.open_message_ids:
            site = open_round.open_message_ids.pop(message.reply_to)
            if self.strict and message.error is not None:
                raise FedgscaError(
                    "site.failed",
                    f"{site} failed: {one_line(message.error)}",
                    fix="solve the problem above, then run `fedgsca resume`;"
                    " finished rounds are kept",
                )
            reply = read_message(message, site, open_round.kind, open_round.round_index)
            open_round.replies[site] = reply

    def _end_of_deadline(self) -> float:
        if self.deadline is None:
            return math.inf
        return time.monotonic() + self.deadline * self.deadline_factor

    def _pause(self) -> None:
        seconds = time.monotonic() - self.exchange_start
        if self.stop.wait(min(self.poll, max(_SHORTEST_POLL, _POLL_SHARE * seconds))):
            raise FedgscaError(
                "run.stopped",
                "the run was stopped from outside",
                fix="start it again (in a deployment ./run.sh of the coordinator's kit, otherwise"
                " `fedgsca resume`); finished rounds are kept",
            )

    def _wait_for_connections(self, end: float) -> None:
        """Learn who is connected. The first time wait for all sites, later for a quorum."""
        self.registry.retry()
        sites = self.registry.sites if self.is_first_exchange else ()
        report = _WaitingReport(self.observer, "connection", sites)
        while True:
            self._identify_nodes()
            if self._has_enough_sites() or time.monotonic() >= end:
                break
            report.update(self.registry.missing_sites())
            self._pause()
        self.is_first_exchange = False

    def _has_enough_sites(self) -> bool:
        if self.is_first_exchange:
            return not self.registry.missing_sites()
        return len(self.registry.nodes) >= self.quorum

    def _identify_nodes(self) -> None:
        """Ask new nodes for their names, and register those that have answered."""
        key_names = self.transport.online()
        self.registry.forget_absent(key_names)
        pending = set(self.hello_messages.values())
        new_nodes = [node for node in self.registry.unidentified(key_names) if node not in pending]
        self.hello_messages |= self.transport.send("hello", Payload(0, {}), new_nodes, None)
        for message in self.transport.collect(list(self.hello_messages)):
            node = self.hello_messages.pop(message.reply_to, None)
            if node is not None and node in key_names:
                self._register_node(node, message, key_names[node])

    def _register_node(self, node: int, message: SiteMessage, key_name: str) -> None:
        reply = read_message(message, key_name, "hello", 0)
        site = reply.site if reply.update is None else reply.update.site
        reason = self.registry.enter(node, site, key_name, reply.error)
        if reason is not None:
            self.observer.on_message(f"{site or 'a node'} cannot take part: {reason}")


def read_message(message: SiteMessage, site: str, kind: MessageKind, round_index: int) -> Reply:
    """A site's reply; anything wrong with it becomes the reason for leaving the site out.

    `site` may be empty: then the message tells the name.
    """
    if message.error is not None or message.header is None:
        return Reply(site, None, message.error or "an empty message")
    try:
        return _parse_reply(message, message.header, site, kind, round_index)
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # JSON allows Infinity
        return Reply(site, None, f"its message cannot be used ({type(error).__name__}: {error})")


def _parse_reply(
    message: SiteMessage, header: dict[str, Any], site: str, kind: MessageKind, round_index: int
) -> Reply:
    if (header["kind"], header["round"]) != (kind, round_index):
        return Reply(
            site, None, f"it answered {header['kind']} of round {int(header['round']) + 1}"
        )
    name = printable(str(header["site"])[:_MAX_SITE_NAME], keep="")
    if header["error"] is not None:
        return Reply(site or name, None, str(header["error"]))
    num_samples = int(header["num_samples"])
    update = Update(name, num_samples, message.weights or {}, message.extras or {})
    seconds = float(header["seconds"])
    if not math.isfinite(seconds):
        raise ValueError(f"it took {seconds} seconds")
    return Reply(site, update, None, check_metrics(dict(header["observed"])), seconds)


class _WaitingReport:
    """Names, from time to time, the sites that are awaited, and since when."""

    def __init__(self, observer: RunObserver, subject: str, sites: Iterable[str]) -> None:
        self.observer = observer
        self.subject = subject
        self.start_text = time.strftime("%H:%M:%S")
        self.last_report = time.monotonic()
        if isinstance(observer, StatusObserver):
            observer.await_sites(sorted(sites), subject)

    def update(self, sites: Iterable[str]) -> None:
        """Send a message, unless the last one is recent or nobody is awaited."""
        names = sorted(set(sites))
        if not names or time.monotonic() - self.last_report < _MESSAGE_INTERVAL:
            return
        self.last_report = time.monotonic()
        self.observer.on_message(
            f"{self.subject}: waiting for {', '.join(names)} since {self.start_text}"
        )
