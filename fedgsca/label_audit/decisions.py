"""What people decided about labels: a file that only grows, one JSON line per decision, on the disk before anybody is told "saved".

The state is a fold over the lines. Taking back is a line, too, so the file tells who thought what and when. A line cut short by a
crash is skipped and sealed off by the next one. A request that arrives twice (double click, a retry after a lost answer) counts once.
Several servers may write to one file; a lock makes them take turns.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from fedgsca.errors import RunFolderError
from fedgsca.support.files import no_room

FILE = "decisions.jsonl"
ACTIONS = ("accept", "keep", "change", "unsure")
UNDO = "undo"


@dataclass(frozen=True)
class Decision:
    """One line of the file."""

    reviewer: str
    row: int  # of the site's samples
    id: str
    hash: str  # of the pixels that the reviewer saw
    given: str
    action: str  # one of ACTIONS, or UNDO
    label: str | None  # the new label of accept and change
    reason: str = ""  # what the reviewer noted
    seconds: float | None = None  # from the sight of the image to the decision
    request: str = ""  # names the click: the same one is never counted twice
    blind: bool = False  # neither the given nor the suggested label was shown
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))

    @property
    def final(self) -> str | None:
        """The label that this reviewer wants; None: cannot tell."""
        return self.given if self.action == "keep" else self.label


class Decisions:
    """The file and its state. Every method first reads what others have added."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.damaged = 0  # lines that are no decisions
        self._read = 0  # bytes
        self._history: dict[
            str, dict[int, list[Decision]]
        ] = {}  # reviewer -> row -> decisions not taken back, the last counts
        self._order: dict[
            str, list[int]
        ] = {}  # reviewer -> rows in the order of their decisions, for undo
        self._requests: dict[tuple[str, str], Decision] = {}
        self._turn = Lock()
        self.refresh()

    def refresh(self) -> None:
        """Read what was added since the last look."""
        with self._turn, contextlib.suppress(FileNotFoundError), open(self.path, "rb") as handle:
            self._catch_up(handle.fileno())

    def reviewers(self) -> list[str]:
        return sorted(name for name, rows in self._history.items() if any(rows.values()))

    def of(self, reviewer: str) -> dict[int, Decision]:
        """Row -> the decision that counts, in the order in which the rows were first decided."""
        return {row: lines[-1] for row, lines in self._history.get(reviewer, {}).items() if lines}

    def latest(self, reviewer: str, count: int) -> list[Decision]:
        """The newest decisions that count, the last one last."""
        rows = list(dict.fromkeys(reversed(self._order.get(reviewer, ()))))[:count]
        return [self._history[reviewer][row][-1] for row in reversed(rows)]

    def add(self, decision: Decision) -> Decision:
        """Write one decision; returns it, or the one that the same request made before. Raises if it is not on the disk."""
        with self._turn, self._locked() as handle:
            known = (
                self._requests.get((decision.reviewer, decision.request))
                if decision.request
                else None
            )
            if known is None:
                self._append(handle, decision)
            return known or decision

    def undo(self, reviewer: str, request: str = "") -> Decision | None:
        """Take back the reviewer's newest decision; returns the line, None if there is nothing to take back."""
        with self._turn, self._locked() as handle:
            known = self._requests.get((reviewer, request)) if request else None
            if known is not None or not self._order.get(reviewer):
                return known
            last = self._history[reviewer][self._order[reviewer][-1]][-1]
            line = Decision(
                reviewer, last.row, last.id, last.hash, last.given, UNDO, None, request=request
            )
            self._append(handle, line)
            return line

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, opened for one writer at a time, with everything that others wrote already read."""
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise _not_saved(self.path, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._catch_up(handle)
            yield handle
        finally:
            os.close(handle)  # also gives the lock back

    def _append(self, handle: int, decision: Decision) -> None:
        size = os.fstat(handle).st_size
        torn = size > self._read  # a tail without an end of line is what a crash left: seal it off
        data = b"\n" * torn + json.dumps(asdict(decision), ensure_ascii=False).encode() + b"\n"
        try:
            if os.write(handle, data) != len(data):
                raise OSError(28, "No space left on device")
            os.fsync(handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(
                    handle, size
                )  # half a line would be sealed off later; better there is none
            raise _not_saved(self.path, error) from error
        self._catch_up(handle)

    def _catch_up(self, handle: int) -> None:
        size = os.fstat(handle).st_size
        if size < self._read:
            raise RunFolderError(
                "todo.decisions-1",
                f"{self.path} has become shorter",
                fix="restore it from a backup and start the review again",
            )
        data = b""
        while piece := os.pread(handle, size - self._read - len(data), self._read + len(data)):
            data += piece
        whole = data.rfind(b"\n") + 1
        self._read += whole
        for line in data[:whole].split(b"\n"):
            if line.strip(b"\0 \r"):
                self._take(line)

    def _take(self, line: bytes) -> None:
        decision = parse(line)
        if decision is None:
            self.damaged += 1
            return
        rows = self._history.setdefault(decision.reviewer, {})
        order = self._order.setdefault(decision.reviewer, [])
        if decision.request:
            self._requests[decision.reviewer, decision.request] = decision
        if decision.action == UNDO:
            if rows.get(decision.row):
                rows[decision.row].pop()
                del order[len(order) - 1 - order[::-1].index(decision.row)]
        else:
            rows.setdefault(decision.row, []).append(decision)
            order.append(decision.row)


def parse(line: bytes) -> Decision | None:
    """A decision; None if the line is not one."""
    try:
        read: dict[str, Any] = json.loads(line)
        known = {name: read[name] for name in Decision.__dataclass_fields__ if name in read}
        decision = Decision(**known)
        sound = (
            isinstance(decision.row, int)
            and decision.action in (*ACTIONS, UNDO)
            and "time" in known
        )
        return (
            decision
            if sound
            and all(isinstance(s, str) for s in (decision.reviewer, decision.hash, decision.id))
            else None
        )
    except (ValueError, TypeError, AttributeError):
        return None


def _not_saved(path: Path, error: OSError) -> RunFolderError:
    why = "no space left" if no_room(error) else error.strerror or str(error)
    return RunFolderError(
        "todo.decisions-2",
        f"NOT saved: {path}: {why}",
        fix=f"free some space under {path.parent} or make it writable, then decide again",
    )
