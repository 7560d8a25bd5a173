"""What the coordinator of a deployment knows about its sites: who they are and how long they take.

A node is asked whether it can take part, and how many images it has. The time for which a site is
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
from collections.abc import Iterable, Mapping
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
    """Which node speaks for which site. A node has the name under which its key is registered."""

    sites: tuple[str, ...]  # of the experiment
    nodes: dict[str, int] = field(default_factory=dict)  # site -> node
    refused_nodes: dict[str, int] = field(default_factory=dict)  # name -> node
    reasons: dict[str, str] = field(default_factory=dict)  # name -> why it was refused
    sizes: dict[str, int] = field(default_factory=dict)  # site -> images that it declared first

    def unidentified(self, online: Mapping[int, str]) -> list[int]:
        """Nodes (node -> name) that are not registered, and not refused since `retry`."""
        names = self.nodes.keys() | self.refused_nodes.keys()
        return sorted(node for node, name in online.items() if name not in names)

    def forget_absent(self, online: Iterable[int]) -> None:
        """Forget nodes that are not connected any more."""
        present = set(online)
        self.nodes = {name: node for name, node in self.nodes.items() if node in present}
        refused_nodes = self.refused_nodes.items()
        self.refused_nodes = {name: node for name, node in refused_nodes if node in present}

    def retry(self) -> None:
        """Ask refused nodes again: somebody may have fixed them."""
        self.refused_nodes = {}
        self.reasons = {}

    def enter(self, node: int, name: str, site: str, error: str | None) -> str | None:
        """Register the node with the key `name`, which calls itself `site`.

        Returns the reason if it is refused; `error` is the node's own.
        """
        if site != name:
            error = f"it calls itself {site}, but its key is registered as {name}"
        elif name not in self.sites:
            error = error or f"{name} is not one of the experiment's sites"
        if error is not None:
            self.refused_nodes[name] = node
            self.reasons[name] = error
            return error
        self.nodes.setdefault(name, node)
        self.reasons.pop(name, None)
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
