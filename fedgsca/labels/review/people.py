"""Who may open the review page over the network, until when, and what they saw and decided.

A personal link contains 256 random bits. The file reviewers.json has only their SHA-256, so whoever
reads it, or a backup of it, cannot open the page. (Random bits need no slow hash: they cannot be
guessed.) A server that is running reads the file again when it changes: a link that is revoked
stops working at once, also in pages that are open.

The audit trail, review-trail.jsonl, only grows. Every line contains the sha256 of the line before
it, so a line that is changed, removed or inserted later is noticed by `check_trail`; lines removed
from the end are not, and neither is a file that somebody has computed again from its beginning.
Lines have row numbers, never file names, labels or notes: those are in decisions.jsonl only.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.labels.decisions import Decisions, GrowingFile, check_reviewer_name
from fedgsca.support.files import file_lock, read_bytes_from, write_atomic
from fedgsca.support.json_record import Record, stored_as
from fedgsca.support.text import did_you_mean

LINK_FILE = "reviewers.json"
TRAIL_FILE = "review-trail.jsonl"
VERSION = 1
READER = "reader"
ADJUDICATOR = "adjudicator"
_TOKEN_BYTES = 32
_TAIL_BYTES = 64 * 1024  # longer than any line of the trail
_START = "0" * 64  # "previous" of its first line


@dataclass(frozen=True)
class PersonalLink(Record):
    """One person's access. Times are in UTC, as ISO 8601."""

    id: str
    reviewer: str
    # READER or ADJUDICATOR
    role: str
    blind: bool
    # sha256 of the secret in the address
    hash: str
    creation: str = field(metadata=stored_as("created"))
    expires: str
    revocation: str | None = field(default=None, metadata=stored_as("revoked"))

    def find_problem(self, now: datetime) -> str | None:
        """Why the link does not work any more; None if it works."""
        if self.revocation is not None:
            return "revoked"
        try:
            has_expired = datetime.fromisoformat(self.expires) <= now
        except (ValueError, TypeError):  # a damaged time, or one without a time zone
            has_expired = True
        return "expired" if has_expired else None


@dataclass(frozen=True)
class LinkFile(Record):
    """The content of reviewers.json."""

    version: int
    # where the page is served: "https://review.hospital.example:8443"
    address: str
    links: tuple[PersonalLink, ...]


class LinkBook:
    """The personal links of one audit. Methods that change something write the file at once."""

    def __init__(self, folder: Path) -> None:
        """Open the links in an audit's folder; a folder without the file has none."""
        self.path = folder / LINK_FILE
        self._folder = folder
        self._content = LinkFile(VERSION, "", ())
        self._state: tuple[int, int, int] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if it has changed. A damaged file is an error: no link works then."""
        try:
            status = self.path.stat()
            state = (status.st_mtime_ns, status.st_size, status.st_ino)
            if state == self._state:
                return
            content = LinkFile.from_json(json.loads(self.path.read_bytes()))
            if content.version != VERSION:
                raise ValueError(f"version {content.version} instead of {VERSION}")
        except FileNotFoundError:
            self._content, self._state = LinkFile(VERSION, "", ()), None
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(
                "review.damaged-links",
                f"{self.path} cannot be read: {error}",
                fix="restore it from a backup, or remove it and make new links (`fedgsca reviewers"
                " add`)",
            ) from error
        else:
            self._content, self._state = content, state

    @property
    def address(self) -> str:
        """Where the page is served; empty before the first link."""
        return self._content.address

    @property
    def links(self) -> Sequence[PersonalLink]:
        """All links that were ever made, the oldest first."""
        return self._content.links

    def active_links(self) -> list[PersonalLink]:
        """The links that work now."""
        now = datetime.now(UTC)
        return [link for link in self.links if link.find_problem(now) is None]

    def readers(self) -> list[str]:
        """Names of the readers whose links work now."""
        return sorted(link.reviewer for link in self.active_links() if link.role == READER)

    def find_token(self, token: str) -> PersonalLink | None:
        """The link with this secret, which may be revoked or expired; None if there is none."""
        digest = hash_token(token)
        match = None
        for link in self.links:  # all of them: the time must not tell which one
            if secrets.compare_digest(link.hash.encode(), digest.encode()):
                match = link
        return match

    def find_id(self, link_id: str) -> PersonalLink | None:
        """The link with this id; None if there is none."""
        return next((link for link in self.links if link.id == link_id), None)

    def add(
        self, reviewer: str, *, role: str, blind: bool, days: int, address: str | None
    ) -> tuple[PersonalLink, str]:
        """Make a link; returns it and its secret, which is stored nowhere.

        A link that the same person had before is revoked. `address` is needed the first time.
        """
        check_reviewer_name(reviewer)
        _check_role(Decisions(self._folder), reviewer, role)
        with file_lock(self.path.with_name(f"{LINK_FILE}.lock")):
            self.refresh()
            address = address or self.address
            if not address:
                raise ConfigError(
                    "review.no-address",
                    "the first link must say at which address the page will be served",
                    fix="add --serve HOST:PORT, the same as for `fedgsca review`",
                )
            now = datetime.now(UTC)
            token = secrets.token_urlsafe(_TOKEN_BYTES)
            link = PersonalLink(
                id=secrets.token_hex(6),
                reviewer=reviewer,
                role=role,
                blind=blind,
                hash=hash_token(token),
                creation=_time_text(now),
                expires=_time_text(now + timedelta(days=days)),
            )
            self._write(address, [*self._revoke_links(reviewer, now), link])
        return link, token

    def revoke(self, reviewer: str) -> list[PersonalLink]:
        """Revoke the links of a person; returns those that worked until now."""
        with file_lock(self.path.with_name(f"{LINK_FILE}.lock")):
            self.refresh()
            names = sorted({link.reviewer for link in self.links})
            if reviewer not in names:
                raise ConfigError(
                    "review.unknown-link",
                    f"{reviewer!r} has no link to {self.path.parent}",
                    fix=f"{did_you_mean(reviewer, names)}use one of:"
                    f" {', '.join(names) or '(there is no link yet)'}",
                )
            active_links = [link for link in self.active_links() if link.reviewer == reviewer]
            self._write(self.address, self._revoke_links(reviewer, datetime.now(UTC)))
        return active_links

    def _revoke_links(self, reviewer: str, now: datetime) -> list[PersonalLink]:
        """All links, those of a person without effect; one that has expired says so for ever."""
        links = []
        for link in self.links:
            if link.reviewer == reviewer and link.find_problem(now) is None:
                link = replace(link, revocation=_time_text(now))
            links.append(link)
        return links

    def _write(self, address: str, links: Sequence[PersonalLink]) -> None:
        tree = LinkFile(VERSION, address, tuple(links)).to_json()
        write_atomic(self.path, json.dumps(tree, indent=1, ensure_ascii=False).encode() + b"\n")
        self.refresh()


def hash_token(token: str) -> str:
    """The sha256 of a secret, in hexadecimal."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _check_role(decisions: Decisions, reviewer: str, role: str) -> None:
    """Nobody settles a disagreement in which they took part, and no judge becomes a reader."""
    readings = decisions.readings(reviewer)
    if role == ADJUDICATOR and readings:
        raise ConfigError(
            "review.reader-as-adjudicator",
            f"{reviewer!r} has read {len(readings)} labels and cannot settle disagreements"
            " about them",
            fix="name another person as --adjudicator",
        )
    if role == READER and len(decisions.by_reviewer(reviewer)) > len(readings):
        raise ConfigError(
            "review.adjudicator-as-reader",
            f"{reviewer!r} has settled disagreements and has seen the decisions of the readers",
            fix="name another person as a reader",
        )


def _time_text(time: datetime) -> str:
    return time.isoformat(timespec="seconds")


# ---- the audit trail ----


class ReviewTrail:
    """The trail of one audit. Several processes may write to it."""

    def __init__(self, folder: Path) -> None:
        self._file = GrowingFile(folder / TRAIL_FILE)
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
        with self._thread_lock, self._file.open() as handle:
            size = os.fstat(handle).st_size
            tail = read_bytes_from(handle, max(0, size - _TAIL_BYTES), size)
            entry["previous"] = _digest(tail.rstrip(b"\n").split(b"\n")[-1]) if tail else _START
            self._file.append(handle, entry, is_flushed=is_flushed)


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
    path = folder / TRAIL_FILE
    content = path.read_bytes() if path.exists() else b""
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    entries: list[dict[str, Any]] = []
    problems = []
    previous = _START
    for number, line in enumerate(lines, start=1):
        entry = _parse_entry(line)
        if entry is None:
            problems.append(f"line {number} is damaged (a crash cuts a line short)")
        else:
            if entry["previous"] != previous:
                problems.append(f"line {number} does not follow line {number - 1}")
            entries.append(entry)
        previous = _digest(line)
    events = Counter(str(entry["event"]) for entry in entries)
    return TrailCheck(len(lines), events, tuple(entries[-num_latest:]), tuple(problems))


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
