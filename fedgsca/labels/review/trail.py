"""The audit trail of a review over the network: who opened, saw and decided what, and when.

review-trail.jsonl in the audit folder only grows. Every line contains the sha256 of the line before
it, so a line that is changed, removed or inserted later is noticed by `check_trail`; lines removed
from the end are not, and neither is a file that somebody has computed again from its beginning.
Lines have row numbers, never file names, labels or notes: those are in decisions.jsonl only.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from fedgsca.errors import RunFolderError
from fedgsca.labels.decisions import Decision
from fedgsca.labels.review.links import PersonalLink
from fedgsca.support.files import (
    GROWING_FILE,
    PRIVATE,
    is_disk_full,
    read_bytes_from,
    wait_for_lock,
)

FILE = "review-trail.jsonl"
START = "0" * 64  # "previous" of the first line
_TAIL_BYTES = 64 * 1024  # longer than any line


class ReviewTrail:
    """The trail of one audit. Several processes may write to it; a lock makes them take turns."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._thread_lock = Lock()

    def write(
        self, event: str, person: str, *, is_flushed: bool = True, **facts: str | int | None
    ) -> None:
        """Append one event. Raises RunFolderError if it is not on the disk.

        `is_flushed` waits for the disk; without it a power cut may lose the last lines.
        """
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {"time": time, "event": event, "who": person}
        entry |= {name: value for name, value in facts.items() if value is not None}
        with self._thread_lock, self._open() as handle:
            size = os.fstat(handle).st_size
            tail = read_bytes_from(handle, max(0, size - _TAIL_BYTES), size)
            is_cut = bool(tail) and not tail.endswith(b"\n")  # by a crash: seal the line off
            lines = tail.rstrip(b"\n").split(b"\n")
            entry["previous"] = _digest(lines[-1]) if tail else START
            data = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
            try:
                _write_all(handle, b"\n" + data if is_cut else data)
                if is_flushed:
                    os.fsync(handle)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, size)
                raise _not_written(self.path, error) from error

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        with contextlib.ExitStack() as stack:
            try:
                lock = wait_for_lock(self.path.with_name(f"{FILE}.lock"))
                stack.callback(lock.release)
                handle = os.open(self.path, GROWING_FILE, PRIVATE)
                stack.callback(os.close, handle)
            except OSError as error:
                raise _not_written(self.path, error) from error
            yield handle


class TrailObserver:
    """Writes what one reviewer sees and decides to the trail."""

    def __init__(self, trail: ReviewTrail, link: PersonalLink) -> None:
        self._trail = trail
        self._link = link
        self._seen_rows: set[int] = set()

    def note_image(self, row: int) -> None:
        """An image is sent: noted once per reviewer and start of the server."""
        if row not in self._seen_rows:
            self._trail.write(
                "image", self._link.reviewer, link=self._link.id, row=row, is_flushed=False
            )
            self._seen_rows.add(row)

    def note_decision(self, decision: Decision) -> None:
        """A decision is about to be written to decisions.jsonl, where its content is."""
        self._trail.write(
            "adjudication" if decision.adjudication else "decision",
            self._link.reviewer,
            link=self._link.id,
            row=decision.row,
            request=decision.request,
        )

    def note_undo(self) -> None:
        """The newest decision is about to be undone."""
        self._trail.write("undo", self._link.reviewer, link=self._link.id)


@dataclass(frozen=True)
class TrailCheck:
    """What the trail contains, and where its chain is broken."""

    num_lines: int
    # event -> count
    events: Counter[str]
    # the newest entries, the last one last
    latest: tuple[dict[str, Any], ...]
    # one sentence per break
    problems: tuple[str, ...]


def check_trail(folder: Path, num_latest: int = 20) -> TrailCheck:
    """Read the trail of an audit and check its chain; an audit without a trail has no lines."""
    events: Counter[str] = Counter()
    latest: list[dict[str, Any]] = []
    problems = []
    previous = START
    number = 0
    try:
        content = (folder / FILE).read_bytes()
    except FileNotFoundError:
        content = b""
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), start=1):
        if not content:
            return TrailCheck(0, events, (), ())
        entry = _parse_entry(line)
        if entry is None:
            problems.append(f"line {number} is damaged (a crash cuts a line short)")
        else:
            if entry["previous"] != previous:
                problems.append(f"line {number} does not follow line {number - 1}")
            events[str(entry["event"])] += 1
            latest = [*latest, entry][-num_latest:]
        previous = _digest(line)
    return TrailCheck(number, events, tuple(latest), tuple(problems))


def _parse_entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not {"time", "event", "who", "previous"} <= set(entry):
        return None
    return entry


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _write_all(handle: int, data: bytes) -> None:
    if os.write(handle, data) != len(data):
        raise OSError(errno.ENOSPC, "No space left on device")


def _not_written(path: Path, error: OSError) -> RunFolderError:
    problem = "no space left" if is_disk_full(error) else error.strerror or str(error)
    return RunFolderError(
        "review.trail-not-written",
        f"NOT saved: the audit trail {path.name} cannot be written: {problem}",
        fix=f"free some space under {path.parent} or make it writable, then decide again",
    )
