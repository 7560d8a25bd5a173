"""What people decided about labels: a file that only grows, one JSON line per decision.

A decision is on the disk before it is reported as saved. The state is a fold over the
lines. Undoing is a line, too, so the file records who decided what and when. A line cut short by a
crash is skipped and sealed off by the next one. A request that arrives twice (a double click, a
retry after a lost answer) counts once. Several servers may write to one file; a lock makes them
take turns.

    decisions = audit.open_decisions()
    for suspect in audit.suspects():
        decisions.record(suspect, suspect.suggestion, reviewer="anna")
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn, get_type_hints

from fedgsca.errors import ConfigError, DataError, RunFolderError
from fedgsca.support.files import (
    GROWING_FILE,
    PRIVATE,
    is_disk_full,
    read_bytes_from,
    wait_for_lock,
)
from fedgsca.support.text import did_you_mean

if TYPE_CHECKING:
    from fedgsca.labels.audit_table import Suspect

FILE = "decisions.jsonl"
ACTIONS = ("accept", "keep", "change", "unsure")
UNDO = "undo"
MAX_REVIEWER_NAME = 60  # characters


@dataclass(frozen=True)
class Decision:
    """One line of the file."""

    reviewer: str
    # of the site's samples
    row: int
    id: str
    # of the pixels that the reviewer saw
    hash: str
    given: str
    # one of ACTIONS, or UNDO
    action: str
    # the new label of accept and change
    label: str | None
    # the reviewer's note
    reason: str = ""
    # from the appearance of the image to the decision
    seconds: float | None = None
    # identifies the click: the same one is never counted twice
    request: str = ""
    # neither the given nor the suggested label was shown
    blind: bool = False
    # by the person who settles disagreements, who has seen the labels of the readers
    adjudication: bool = False
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))

    @staticmethod
    def about(suspect: Suspect, label: str | None, *, reviewer: str, **facts: Any) -> Decision:
        """What a reviewer says the label of `suspect` is; None: cannot tell.

        `facts` are further fields. The given label is kept and the suggested one accepted; any
        other one is a change.
        """
        actions = {None: "unsure", suspect.given: "keep", suspect.suggestion: "accept"}
        return Decision(
            reviewer=reviewer,
            row=suspect.row,
            id=suspect.id,
            hash=suspect.hash,
            given=suspect.given,
            action=actions.get(label, "change"),
            label=None if label == suspect.given else label,
            **facts,
        )

    @property
    def final(self) -> str | None:
        """The label that this reviewer decided on; None: cannot tell."""
        return self.given if self.action == "keep" else self.label


# JSON has one kind of number
_FIELD_TYPES = {**get_type_hints(Decision), "seconds": int | float | None}


class GrowingFile:
    """Lines of JSON that are only added. A lock makes several processes take turns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        """Open the file for one writer at a time."""
        with contextlib.ExitStack() as stack:
            try:
                lock = wait_for_lock(self.path.with_name(f"{self.path.name}.lock"))
                stack.callback(lock.release)
                handle = os.open(self.path, GROWING_FILE, PRIVATE)
                stack.callback(os.close, handle)
            except OSError as error:
                raise self._not_saved(error) from error
            yield handle

    def append(self, handle: int, entry: Mapping[str, object], *, is_flushed: bool = True) -> None:
        """Add a line, whole or not at all; raises RunFolderError if it is not on the disk.

        `is_flushed` waits for the disk; without it a power cut may lose the last lines.
        """
        size = os.fstat(handle).st_size
        data = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        if size and read_bytes_from(handle, size - 1, size) != b"\n":
            data = b"\n" + data  # a crash left a line without an end: seal it off
        try:
            if os.write(handle, data) != len(data):
                raise OSError(errno.ENOSPC, "No space left on device")
            if is_flushed:
                os.fsync(handle)
        except OSError as error:
            # half a line would be sealed off later, but it is better to have none
            with contextlib.suppress(OSError):
                os.ftruncate(handle, size)
            raise self._not_saved(error) from error

    def _not_saved(self, error: OSError) -> RunFolderError:
        problem = "no space left" if is_disk_full(error) else error.strerror or str(error)
        return RunFolderError(
            "review.not-saved",
            f"NOT saved: cannot write to {self.path}: {problem}",
            fix=f"free some space under {self.path.parent} or make it writable, then decide again",
        )


class Decisions:
    """The file and its state. Writing and `refresh` read what other processes have added."""

    def __init__(
        self, folder: Path, classes: Sequence[str] = (), order: Sequence[str] = ()
    ) -> None:
        """Open the decisions in an audit's folder.

        `classes` are the labels `record` accepts, `order` are grades from the lowest to the
        highest, where classes are grades.
        """
        self.path = folder / FILE
        self._file = GrowingFile(self.path)
        self.classes = tuple(classes)
        self.order = tuple(order)
        # lines that cannot be read as decisions
        self.damaged_lines = 0
        self._bytes_read = 0
        # reviewer -> decisions that were not undone; the last one about a row counts
        self._history: dict[str, list[Decision]] = {}
        self._requests: dict[tuple[str, str], Decision] = {}
        self._thread_lock = Lock()
        self.refresh()

    def refresh(self) -> None:
        """Read what was added since the last time."""
        missing_file = contextlib.suppress(FileNotFoundError)
        with self._thread_lock, missing_file, open(self.path, "rb") as handle:
            self._read_new_lines(handle.fileno())

    def reviewers(self) -> list[str]:
        """Names of the people with decisions that count."""
        with self._thread_lock:
            return sorted(name for name, history in self._history.items() if history)

    def by_reviewer(self, reviewer: str) -> dict[int, Decision]:
        """Row -> the decision that counts, in the order in which the rows were first decided."""
        with self._thread_lock:
            return {decision.row: decision for decision in self._history.get(reviewer, ())}

    def readings(self, reviewer: str) -> dict[int, Decision]:
        """Row -> the decision that counts, without adjudications of other people's readings."""
        decisions = self.by_reviewer(reviewer)
        return {row: decision for row, decision in decisions.items() if not decision.adjudication}

    def latest(self, reviewer: str, count: int) -> list[Decision]:
        """The newest decisions that count, the last one last."""
        newest: dict[int, Decision] = {}
        with self._thread_lock:
            for decision in reversed(self._history.get(reviewer, ())):
                newest.setdefault(decision.row, decision)
        return list(newest.values())[:count][::-1]

    def record(
        self, suspect: Suspect, label: str | None, *, reviewer: str, reason: str = ""
    ) -> Decision:
        """Record, from a script, that the label of `suspect` should be `label`.

        The given label confirms it, None means that the reviewer cannot tell.
        """
        check_reviewer_name(reviewer)
        if label is not None and self.classes and label not in self.classes:
            raise DataError(
                "review.unknown-class",
                f"there is no class named {label!r}",
                fix=f"{did_you_mean(label, self.classes)}use one of: {', '.join(self.classes)}",
            )
        return self.add(Decision.about(suspect, label, reviewer=reviewer, reason=reason))

    def add(self, decision: Decision, *, replaces: str | None = None) -> Decision:
        """Write one decision; returns it, or the one that the same request wrote before.

        `replaces` is the time of the reviewer's decision that this one replaces, "" if there was
        none: a decision from another page is not replaced by somebody who has not seen it. Raises
        RunFolderError if it is not on the disk.
        """
        with self._thread_lock, self._locked() as handle:
            earlier = self._find_request(decision.reviewer, decision.request)
            if earlier is not None:
                return earlier
            history = reversed(self._history.get(decision.reviewer, ()))
            current = next((old for old in history if old.row == decision.row), None)
            if replaces is not None and replaces != ("" if current is None else current.time):
                _refuse_unseen(current)
            self._append(handle, decision)
            return decision

    def undo(self, reviewer: str, request: str = "") -> Decision | None:
        """Undo the reviewer's newest decision; returns the new line, None without a decision."""
        with self._thread_lock, self._locked() as handle:
            earlier = self._find_request(reviewer, request)
            if earlier is not None or not self._history.get(reviewer):
                return earlier
            last = self._history[reviewer][-1]
            line = Decision(
                reviewer,
                last.row,
                last.id,
                last.hash,
                last.given,
                UNDO,
                None,
                request=request,
                adjudication=last.adjudication,
            )
            self._append(handle, line)
            return line

    def _find_request(self, reviewer: str, request: str) -> Decision | None:
        """The line that this request wrote, if it arrived before."""
        return self._requests.get((reviewer, request)) if request else None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for one writer at a time, and read everything that others wrote."""
        with self._file.open() as handle:
            self._read_new_lines(handle)
            yield handle

    def _append(self, handle: int, decision: Decision) -> None:
        self._file.append(handle, asdict(decision))
        self._read_new_lines(handle)

    def _read_new_lines(self, handle: int) -> None:
        size = os.fstat(handle).st_size
        if size < self._bytes_read:
            raise RunFolderError(
                "review.decisions-shortened",
                f"{self.path} has become shorter since it was opened",
                fix="restore it from a backup and start the review again",
            )
        data = read_bytes_from(handle, self._bytes_read, size)
        end = data.rfind(b"\n") + 1  # of the last complete line
        self._bytes_read += end
        for line in data[:end].split(b"\n"):
            if line.strip(b"\0 \r"):
                self._apply_line(line)

    def _apply_line(self, line: bytes) -> None:
        decision = parse_decision(line)
        if decision is None:
            self.damaged_lines += 1
            return
        history = self._history.setdefault(decision.reviewer, [])
        if decision.request:
            self._requests[decision.reviewer, decision.request] = decision
        if decision.action != UNDO:
            history.append(decision)
            return
        for i in reversed(range(len(history))):
            if history[i].row == decision.row:
                del history[i]
                return


def check_reviewer_name(name: str) -> None:
    """Refuse a name that does not fit into a line of a table."""
    if not name.strip() or len(name) > MAX_REVIEWER_NAME or not name.isprintable():
        raise ConfigError(
            "review.invalid-reviewer",
            f"{name!r} cannot be used as the name of a reviewer",
            fix=f"use 1 to {MAX_REVIEWER_NAME} printable characters (--reviewer NAME)",
        )


def _refuse_unseen(current: Decision | None) -> NoReturn:
    """Two pages of one reviewer are open, and the other one has decided or undone meanwhile."""
    state = "undone the decision"
    if current is not None:
        state = f"decided {current.final or 'cannot tell'!r}"
    raise DataError(
        "review.decided-meanwhile",
        f"another page under your name has {state} about this image",
        fix="look at it again, then decide",
    )


def parse_decision(line: bytes) -> Decision | None:
    """The decision of a line; None if the line is damaged."""
    try:
        tree: dict[str, Any] = json.loads(line)
        values = {name: tree[name] for name in Decision.__dataclass_fields__ if name in tree}
        decision = Decision(**values)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    if "time" not in values or decision.action not in (*ACTIONS, UNDO):
        return None
    for name, kind in _FIELD_TYPES.items():
        value = getattr(decision, name)
        # JSON's true is an int, too
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            return None
    return decision
