"""The engine of a deployment: sites may be late, absent, of another version, or impostors.

It knows deadlines, quorum and names, and leaves delivery to a Transport (coordinator.py has one).
Somebody can be told when a run pauses: FEDGSCA_NOTIFY="mail -s fedgsca admin@example.org" names a
command that reads the message. It is an environment variable and not a key of the experiment,
because it concerns one machine only.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fedgsca.federation.base import Reply, RunObserver
from fedgsca.hospital.messages import MessageKind, SiteMessage, read_message
from fedgsca.hospital.site_contacts import NodeRegistry, SiteTimeouts, WaitingReport
from fedgsca.support.text import duration
from fedgsca.wire import Payload

_LONGEST_PAUSE = 3600.0  # seconds before a round is tried again
_LARGEST_FACTOR = 8.0  # on the deadline of a round that is tried again
_SHORTEST_POLL = 0.1  # seconds between two looks for answers
_POLL_SHARE = 0.1  # of the time since the round began: short rounds are not slowed down
_NOTIFY_VARIABLE = "FEDGSCA_NOTIFY"
_NOTIFY_SECONDS = 60.0
_SUBJECTS: Mapping[MessageKind, str] = {  # what is awaited
    "train": "round {round}: update",
    "test": "round {round}: test result",
    "model": "confirmation of the final model",
}


class Transport(Protocol):
    """Delivers messages to numbered nodes."""

    def online(self) -> dict[int, str]:
        """node -> the name under which its key is registered."""
        ...

    def send(
        self, kind: MessageKind, payload: Payload, nodes: Sequence[int], seconds: float | None
    ) -> dict[str, int]:
        """Send to these nodes; returns message id -> node. Not delivered after `seconds`."""
        ...

    def collect(self, message_ids: Sequence[str]) -> list[SiteMessage]:
        """The answers to these messages that have arrived so far."""
        ...


@dataclass(frozen=True)
class _SentMessage:
    """A message that has been sent and not been answered."""

    kind: MessageKind
    site: str
    payload: Payload
    time: float  # monotonic, when it was sent


@dataclass
class _OpenRound:
    """The messages of one exchange that have been sent."""

    kind: MessageKind
    round_index: int
    open_messages: dict[str, _SentMessage]  # by message id, until they are answered
    ends: dict[str, float]  # site -> monotonic time until which it is awaited
    replies: dict[str, Reply] = field(default_factory=dict)

    @property
    def addressees(self) -> set[str]:
        """The sites to which the round was sent."""
        return set(self.ends)

    @property
    def awaited_sites(self) -> list[str]:
        """The sites that have not answered."""
        return [message.site for message in self.open_messages.values()]


class NetworkEngine:
    """Exchanges payloads within a deadline, and names every site that did not answer in time.

    A round goes to the sites that are connected when it begins. The first one waits for all sites,
    later ones for a quorum; a site that returns during a round takes part in the next one. A site
    that is late in round t and answers in round t + s, s <= `staleness`, hands in a late update
    (filters/lateness.py); until then it is not asked again.
    """

    def __init__(
        self,
        transport: Transport,
        sites: Sequence[str],
        *,
        quorum: Callable[[int], int] = lambda sites: 1,
        deadline: float | None = None,
        observer: RunObserver | None = None,
        poll: float = 0.5,
        patience: float = 0.0,
        first_pause: float = 60.0,
        staleness: int = 0,
        timeouts: SiteTimeouts | None = None,
    ) -> None:
        """`deadline` in seconds; `poll` is the longest time between two looks for answers.

        `quorum` says how many of so many sites a round needs. `patience` is how many seconds a
        round without a quorum is tried again, after pauses that begin with `first_pause` and
        double up to an hour; each time the deadline is longer, too. A pause ends early when sites
        that were absent are connected again and make a quorum. `timeouts` may end the waiting for
        a site before the deadline.
        """
        self.transport = transport
        self.quorum = quorum
        self.deadline = deadline
        self.observer = observer or RunObserver()
        self.poll = poll
        self.patience = patience
        self.first_pause = first_pause
        self.staleness = staleness
        self.timeouts = timeouts or SiteTimeouts(deadline, 0.0)
        self.first_problem_time: float | None = None  # of the round that is being repeated
        self.deadline_factor = 1.0
        self.last_round = -1
        self.last_sites: tuple[str, ...] = tuple(sorted(sites))  # that the last round asked
        self.registry = NodeRegistry(tuple(sorted(sites)))
        self.hello_messages: dict[str, int] = {}  # message id -> node
        self.late_messages: dict[str, _SentMessage] = {}  # of earlier exchanges, by message id
        self.late_replies: dict[str, Reply] = {}  # by site, until a round takes them
        self.handed_replies: dict[str, Reply] = {}  # those that the last round took
        self.is_first_exchange = True
        self.exchange_start = time.monotonic()

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        """Have the sites trained."""
        names = self.registry.sites if sites is None else tuple(sorted(sites))
        if payload.round == self.last_round:  # a repetition: the last attempt was without effect
            self.late_replies = {**self.handed_replies, **self.late_replies}
        self._begin_round(payload.round)
        self.last_sites = names
        busy = self._busy_sites(payload.round)
        free_sites = [name for name in names if name not in busy]
        num_usable = 0
        for reply in self._exchange("train", payload, free_sites):
            num_usable += reply.update is not None
            yield reply
        self._await_late(self.quorum(len(names)) - num_usable, payload.round)
        for name in names:
            if name in busy and name not in self.late_replies:
                yield Reply(name, None, f"it is still busy with round {busy[name] + 1}")
        self.handed_replies, self.late_replies = self.late_replies, {}
        for name in sorted(self.handed_replies):
            yield self.handed_replies[name]

    def evaluate_at_sites(self, payload: Payload) -> Iterator[Reply]:
        """Have the model tested by the sites on their own test images."""
        self._begin_round(payload.round)
        return self._exchange("test", payload, self.registry.sites)

    def deliver(self, payload: Payload, sites: Sequence[str]) -> Iterator[Reply]:
        """Send the final model to these sites, as far as they are connected."""
        self._begin_round(payload.round)
        return self._exchange("model", payload, sites)

    def wait_for_quorum(self, attempt: int, problem: str) -> bool:
        """Pause, longer each time; False when the patience is used up."""
        start = time.monotonic()
        if attempt == 0 or self.first_problem_time is None:
            self.first_problem_time = start
        pause = min(self.first_pause * 2.0**attempt, _LONGEST_PAUSE)
        if start + pause - self.first_problem_time > self.patience:
            return False
        self._identify_nodes()
        present = set(self.registry.nodes)
        text = f"{problem}; the round is tried again in {duration(pause)}"
        if not self._has_quorum():
            text += ", or as soon as enough sites are connected again"
        self._tell(text)
        self.observer.on_pause(text)
        sites = self._wait_for_return(start + pause, present)
        self.observer.on_pause(None)
        if sites:
            self._tell(f"connected again: {', '.join(sites)}; the round is tried again now")
        self.deadline_factor = min(2.0 ** (attempt + 1), _LARGEST_FACTOR)
        return True

    def _wait_for_return(self, end: float, present: set[str]) -> list[str]:
        """Wait until `end`, or until a quorum is connected; returns the sites that came back.

        Sites that are `present` are late rather than absent: for them the whole pause passes.
        """
        while time.monotonic() < end:
            self._pause()
            self._identify_nodes()
            present = present & self.registry.nodes.keys()  # a site may leave during the pause
            sites = sorted(self.registry.nodes.keys() - present)
            if sites and self._has_quorum():
                return sites
        return []

    def _has_quorum(self) -> bool:
        """Whether enough of the sites that the last round asked are connected."""
        num_connected = len(self.registry.nodes.keys() & set(self.last_sites))
        return num_connected >= self.quorum(len(self.last_sites))

    def _tell(self, text: str) -> None:
        """A message for the log, and for whoever the coordinator's machine notifies."""
        self.observer.on_message(text)
        failure = notify(text)
        if failure is not None:
            self.observer.on_message(failure)

    def close(self) -> None:
        """The transport belongs to the caller."""

    def _begin_round(self, round_index: int) -> None:
        if round_index != self.last_round:  # not a repetition
            self.deadline_factor = 1.0
        self.last_round = round_index

    def _exchange(
        self, kind: MessageKind, payload: Payload, sites: Sequence[str]
    ) -> Iterator[Reply]:
        self.exchange_start = time.monotonic()
        self._wait_for_connections(sites, self._end_of_deadline())
        start = time.monotonic()
        open_round = self._open_round(kind, payload, sites, start)
        self._show_timeouts(kind, open_round.addressees)
        subject = _SUBJECTS[kind].format(round=payload.round + 1)
        report = WaitingReport(self.observer, subject, open_round.addressees)
        for site in sites:
            if site not in open_round.addressees:
                is_absent = site not in self.registry.reasons
                reason = self.registry.absence_reason(site)
                yield Reply(site, None, reason, is_absent=is_absent)
                continue
            self._wait_for_reply(site, open_round, report)
            seconds = open_round.ends[site] - start
            reason = f"no answer within {duration(seconds)}"
            missing = Reply(site, None, reason, is_absent=True)
            yield open_round.replies.pop(site, missing)
        self.late_messages |= open_round.open_messages

    def _open_round(
        self, kind: MessageKind, payload: Payload, sites: Sequence[str], start: float
    ) -> _OpenRound:
        """Send the payload to the sites that are connected.

        A repeated round is not sent again to sites that still work on it, if they may be late.
        """
        nodes = {site: node for site, node in self.registry.nodes.items() if site in set(sites)}
        open_messages = self._take_unanswered(kind, payload.round) if self.staleness else {}
        working_sites = {message.site for message in open_messages.values()}
        site_of = {node: site for site, node in nodes.items() if site not in working_sites}
        lifetime = self._seconds(self.deadline, 1 + self.staleness)
        message_ids = self.transport.send(kind, payload, list(site_of), lifetime)
        for message_id, node in message_ids.items():
            open_messages[message_id] = _SentMessage(kind, site_of[node], payload, start)
        ends = {}
        for message in open_messages.values():
            seconds = self._seconds(self.timeouts.timeout(kind, message.site))
            ends[message.site] = math.inf if seconds is None else start + seconds
        return _OpenRound(kind, payload.round, open_messages, ends)

    def _show_timeouts(self, kind: MessageKind, sites: Iterable[str]) -> None:
        for site in sites:
            usual = self.timeouts.usual(kind, site)
            timeout = self._seconds(self.timeouts.timeout(kind, site))
            self.observer.on_timeout(site, usual, timeout)

    def _wait_for_reply(self, site: str, open_round: _OpenRound, report: WaitingReport) -> None:
        """Collect answers until this site's is among them, or until its time is over."""
        while site not in open_round.replies:
            self._collect(open_round)
            # collected once more after the deadline: what has arrived counts
            if site in open_round.replies or time.monotonic() >= open_round.ends[site]:
                return
            report.update(open_round.awaited_sites)
            self._pause()

    def _collect(self, open_round: _OpenRound) -> None:
        message_ids = [*open_round.open_messages, *self.late_messages]
        for message in self.transport.collect(message_ids):
            self._receive(message, open_round)

    def _receive(self, message: SiteMessage, open_round: _OpenRound) -> None:
        if message.reply_to in self.late_messages:
            request = self.late_messages.pop(message.reply_to)
            self._record_duration(request, message)
            self._receive_late(request, message, open_round.round_index)
        elif message.reply_to in open_round.open_messages:
            request = open_round.open_messages.pop(message.reply_to)
            self._record_duration(request, message)
            site = request.site
            reply = read_message(message, site, open_round.kind, open_round.round_index)
            size = self.registry.sizes.get(site)
            open_round.replies[site] = replace(reply, declared_samples=size)

    def _record_duration(self, request: _SentMessage, message: SiteMessage) -> None:
        if message.error is None:
            self.timeouts.record(request.kind, request.site, time.monotonic() - request.time)

    # ---- late sites ----

    def _receive_late(self, request: _SentMessage, message: SiteMessage, round_index: int) -> None:
        """Keep a late update that may still count."""
        if request.kind == "train" and self._may_count(request, round_index):
            old_payload = request.payload
            reply = read_message(message, request.site, "train", old_payload.round)
            if reply.update is not None:
                size = self.registry.sizes.get(request.site)
                reply = replace(reply, late_to=old_payload, declared_samples=size)
                self.late_replies[request.site] = reply
                return
        self.observer.on_message(
            f"{request.site} answered too late for its round; the answer is dropped"
        )

    def _may_count(self, request: _SentMessage, round_index: int) -> bool:
        return 0 < round_index - request.payload.round <= self.staleness

    def _busy_sites(self, round_index: int) -> dict[str, int]:
        """site -> the earlier round on which it still works, if its answer may count.

        What cannot count any more is only awaited for its duration: its payload is forgotten.
        """
        busy = {}
        for message_id, request in self.late_messages.items():
            if request.kind != "train":
                continue
            if self._may_count(request, round_index):
                busy[request.site] = request.payload.round
            elif request.payload.round < round_index:
                empty_payload = Payload(request.payload.round, {})
                self.late_messages[message_id] = replace(request, payload=empty_payload)
        for site, reply in list(self.late_replies.items()):
            assert reply.late_to is not None
            busy[site] = reply.late_to.round
        return busy

    def _take_unanswered(self, kind: MessageKind, round_index: int) -> dict[str, _SentMessage]:
        """The open messages of an earlier attempt at this round."""
        messages = {}
        for message_id, request in list(self.late_messages.items()):
            if request.kind == kind and request.payload.round == round_index:
                messages[message_id] = self.late_messages.pop(message_id)
        return messages

    def _await_late(self, num_missing: int, round_index: int) -> None:
        """Wait for late updates as long as a quorum needs them, at most until the deadline."""
        end = self._end_of_deadline()
        no_round = _OpenRound("train", round_index, {}, {})
        while len(self.late_replies) < num_missing and time.monotonic() < end:
            if not self._busy_sites(round_index):
                return
            self._collect(no_round)
            self._pause()

    # ---- time ----

    def _seconds(self, seconds: float | None, factor: float = 1.0) -> float | None:
        """Longer in rounds that are repeated."""
        return None if seconds is None else seconds * self.deadline_factor * factor

    def _end_of_deadline(self) -> float:
        if self.deadline is None:
            return math.inf
        return time.monotonic() + self.deadline * self.deadline_factor

    def _pause(self) -> None:
        seconds = time.monotonic() - self.exchange_start
        time.sleep(min(self.poll, max(_SHORTEST_POLL, _POLL_SHARE * seconds)))

    # ---- connections ----

    def _wait_for_connections(self, sites: Sequence[str], end: float) -> None:
        """Learn who is connected. The first time wait for all these sites, later for a quorum."""
        self.registry.retry()
        self._identify_nodes()
        missing_sites = set() if self._has_enough_sites(sites) else self._missing_of(sites)
        report = WaitingReport(self.observer, "connection", missing_sites)
        while not self._has_enough_sites(sites) and time.monotonic() < end:
            report.update(self._missing_of(sites))
            self._pause()
            self._identify_nodes()
        self.is_first_exchange = False

    def _missing_of(self, sites: Sequence[str]) -> set[str]:
        """Those of these sites that are not connected."""
        return set(self.registry.missing_sites()) & set(sites)

    def _has_enough_sites(self, sites: Sequence[str]) -> bool:
        if self.is_first_exchange:
            return not self._missing_of(sites)
        # sites that are busy with an earlier round are not among these
        num_needed = min(self.quorum(len(sites)), len(sites))
        return len(self.registry.nodes.keys() & set(sites)) >= num_needed

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

    def _register_node(self, node: int, message: SiteMessage, name: str) -> None:
        """`name` is that of the node's key."""
        reply = read_message(message, name, "hello", 0)
        site = name if reply.update is None else reply.update.site
        reason = self.registry.enter(node, name, site, reply.error)
        if reply.update is not None and reason is None:
            self.registry.sizes.setdefault(name, reply.update.num_samples)
        if reason is not None:
            self.observer.on_message(f"{name} cannot take part: {reason}")
        self.observer.on_connection(name, reason)


# ---- tell somebody ----


def notify(text: str) -> str | None:
    """Run the command, if there is one; returns why it failed, or None."""
    command = os.environ.get(_NOTIFY_VARIABLE)
    if not command:
        return None
    try:
        subprocess.run(
            shlex.split(command), input=text + "\n", text=True, check=True, timeout=_NOTIFY_SECONDS
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"the command in {_NOTIFY_VARIABLE} failed: {error}"
    return None
