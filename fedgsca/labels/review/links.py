"""Personal links: who may open the review page over the network, as whom, and until when.

A link contains 256 random bits. The file reviewers.json has only their SHA-256, so whoever reads
it, or a backup of it, cannot open the page. (Random bits need no slow hash: they cannot be
guessed.) A server that is running reads the file again when it changes: a link that is revoked
stops working at once, also in pages that are open.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.labels.decisions import Decisions, check_reviewer_name
from fedgsca.support.files import file_lock, write_atomic
from fedgsca.support.json_record import Record, stored_as
from fedgsca.support.text import did_you_mean

FILE = "reviewers.json"
VERSION = 1
READER = "reader"
ADJUDICATOR = "adjudicator"
_TOKEN_BYTES = 32


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
        self.path = folder / FILE
        self._folder = folder
        self._content = LinkFile(VERSION, "", ())
        self._state: tuple[int, int, int] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if it has changed. A damaged file is an error: no link works then."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._content = LinkFile(VERSION, "", ())
            self._state = None
            return
        except OSError as error:
            raise _damaged_file(self.path, error) from error
        state = (status.st_mtime_ns, status.st_size, status.st_ino)
        if state == self._state:
            return
        try:
            tree = json.loads(self.path.read_bytes())
            content = LinkFile.from_json(tree)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise _damaged_file(self.path, error) from error
        if content.version != VERSION:
            problem = ValueError(f"version {content.version} instead of {VERSION}")
            raise _damaged_file(self.path, problem)
        self._content = content
        self._state = state

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
        for link in self.links:
            if link.id == link_id:
                return link
        return None

    def add(
        self, reviewer: str, *, role: str, blind: bool, days: int, address: str | None
    ) -> tuple[PersonalLink, str]:
        """Make a link; returns it and its secret, which is stored nowhere.

        A link that the same person had before is revoked. `address` is needed the first time.
        """
        check_reviewer_name(reviewer)
        _check_role(Decisions(self._folder), reviewer, role)
        with file_lock(self.path.with_name(f"{FILE}.lock")):
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
            old_links = [self._revoke_link(old, reviewer, now) for old in self.links]
            self._write(LinkFile(VERSION, address, (*old_links, link)))
        return link, token

    def revoke(self, reviewer: str) -> list[PersonalLink]:
        """Revoke the links of a person; returns those that worked until now."""
        with file_lock(self.path.with_name(f"{FILE}.lock")):
            self.refresh()
            names = sorted({link.reviewer for link in self.links})
            if reviewer not in names:
                raise ConfigError(
                    "review.unknown-link",
                    f"{reviewer!r} has no link to {self.path.parent}",
                    fix=f"{did_you_mean(reviewer, names)}use one of:"
                    f" {', '.join(names) or '(there is no link yet)'}",
                )
            now = datetime.now(UTC)
            active_links = [link for link in self.active_links() if link.reviewer == reviewer]
            links = tuple(self._revoke_link(link, reviewer, now) for link in self.links)
            self._write(LinkFile(VERSION, self.address, links))
        return active_links

    def _revoke_link(self, link: PersonalLink, reviewer: str, now: datetime) -> PersonalLink:
        if link.reviewer != reviewer or link.find_problem(now) is not None:
            return link  # a link that has expired says so, also after this
        return replace(link, revocation=_time_text(now))

    def _write(self, content: LinkFile) -> None:
        data = json.dumps(content.to_json(), indent=1, ensure_ascii=False).encode() + b"\n"
        write_atomic(self.path, data)
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


def _damaged_file(path: Path, error: Exception) -> RunFolderError:
    return RunFolderError(
        "review.damaged-links",
        f"{path} cannot be read: {error}",
        fix="restore it from a backup, or remove it and make new links (`fedgsca reviewers add`)",
    )
