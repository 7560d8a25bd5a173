"""What the coordinator of a deployment knows about its sites: who they are and how long they take.

Nodes are asked for their names, because their numbers say nothing. The time for which a site is
awaited follows from what it needed before:

    timeout of a site  <-  factor x median of its last durations,
                           at least SHORTEST seconds, at most `federation.deadline`

A duration is measured at the coordinator, from sending a message to its answer, and includes the
network and the start of processes. Answers that came too late count, too: a site that has become
slow gets more time. Until a site has answered three times, the deadline holds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from fedgsca.federation.base import RunObserver

SHORTEST = 60.0  # seconds: one slow start of a process must not exclude a fast site
_MIN_ANSWERS = 3  # before the deadline is shortened
_MAX_ANSWERS = 9  # that are remembered
_MESSAGE_INTERVAL = 30.0  # seconds between messages that name the sites that are awaited
_SHOWN_SITES = 10  # of those, so that a message remains readable


@dataclass
class NodeRegistry:
    """Sites of the experiment and the nodes that speak for them."""

    sites: tuple[str, ...]  # of the experiment
    nodes: dict[str, int] = field(default_factory=dict)  # site -> node
    refusals: dict[int, str] = field(default_factory=dict)  # node -> why it may not take part
    # site -> the same, where the node told its name
    reasons: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # site -> images that it declared first

    def unidentified(self, online: Iterable[int]) -> list[int]:
        """Nodes that have not been asked for their name, or not since they were refused."""
        return sorted(set(online) - set(self.nodes.values()) - set(self.refusals))

    def forget_absent(self, online: Iterable[int]) -> None:
        """Forget nodes that are not connected any more."""
        present = set(online)
        self.nodes = {site: node for site, node in self.nodes.items() if node in present}
        self.refusals = {node: reason for node, reason in self.refusals.items() if node in present}

    def retry(self) -> None:
        """Ask refused nodes again: somebody may have fixed them."""
        self.refusals = {}
        self.reasons = {}

    def enter(self, node: int, site: str, key_name: str, error: str | None) -> str | None:
        """Register a node under the name it gives; returns the reason if it is refused.

        `key_name` is the name under which the coordinator registered the node's key, empty without
        keys. `error` is the node's own reason for not taking part.
        """
        if key_name and key_name != site:
            error = f"it calls itself {site}, but its key is registered as {key_name}"
            site = key_name
        elif site not in self.sites:
            error = error or f"{site} is not one of the experiment's sites"
        elif error is None and self.nodes.get(site, node) != node:
            error = f"another node is {site} already"
            self.refusals[node] = error
            return error
        if error is not None:
            self.refusals[node] = error
            self.reasons[site] = error
            return error
        self.nodes[site] = node
        self.reasons.pop(site, None)
        return None

    def missing_sites(self) -> list[str]:
        """Sites that neither connected nor were refused by name."""
        answers = self.nodes.keys() | self.reasons.keys()
        return [site for site in self.sites if site not in answers]

    def absence_reason(self, site: str) -> str:
        """Why a site does not take part."""
        return self.reasons.get(site, "not connected")


class SiteTimeouts:
    """The durations of every site and kind of message."""

    def __init__(
        self, deadline: float | None, factor: float, *, shortest: float = SHORTEST
    ) -> None:
        """`deadline` and `shortest` in seconds; without a deadline nothing times out.

        A factor of 0 means that every site has until the deadline.
        """
        self.deadline = deadline
        self.factor = factor
        self.shortest = shortest
        self._durations: dict[tuple[str, str], deque[float]] = {}

    def record(self, kind: str, site: str, seconds: float) -> None:
        """A site has answered a message of this kind after so many seconds."""
        durations = self._durations.setdefault((kind, site), deque(maxlen=_MAX_ANSWERS))
        durations.append(seconds)

    def usual(self, kind: str, site: str) -> float | None:
        """The median of the last durations; None before the third answer."""
        durations = self._durations.get((kind, site), ())
        return median(durations) if len(durations) >= _MIN_ANSWERS else None

    def timeout(self, kind: str, site: str) -> float | None:
        """Seconds to wait for an answer; None: without end."""
        usual = self.usual(kind, site)
        if self.deadline is None or usual is None or self.factor == 0:
            return self.deadline
        return min(self.deadline, max(self.shortest, self.factor * usual))


class WaitingReport:
    """Names, from time to time, the sites that are awaited, and since when."""

    def __init__(self, observer: RunObserver, subject: str, sites: Iterable[str]) -> None:
        self.observer = observer
        self.subject = subject
        self.start_text = time.strftime("%H:%M:%S")
        self.last_report = time.monotonic()
        observer.on_waiting(sorted(sites), subject)

    def update(self, sites: Iterable[str]) -> None:
        """Send a message, unless the last one is recent or nobody is awaited."""
        names = sorted(set(sites))
        if not names or time.monotonic() - self.last_report < _MESSAGE_INTERVAL:
            return
        self.last_report = time.monotonic()
        text = ", ".join(names[:_SHOWN_SITES])
        if len(names) > _SHOWN_SITES:
            text += f" and {len(names) - _SHOWN_SITES} more"
        self.observer.on_message(f"{self.subject}: waiting for {text} since {self.start_text}")
