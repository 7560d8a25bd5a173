"""How long the coordinator of a deployment waits for a site, by what the site needed before.

    timeout of a site  <-  factor x median of its last durations,
                           at least SHORTEST seconds, at most `federation.deadline`

A duration is measured at the coordinator, from sending a message to its answer, and includes the
network and the start of processes. Answers that came too late count, too: a site that has become
slow gets more time. Until a site has answered three times, the deadline holds.
"""

from __future__ import annotations

from collections import deque
from statistics import median

SHORTEST = 60.0  # seconds: one slow start of a process must not exclude a fast site
_MIN_ANSWERS = 3  # before the deadline is shortened
_MAX_ANSWERS = 9  # that are remembered


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
