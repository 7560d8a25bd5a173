"""status.json in the run folder: progress of the coordinator and the state of every site.

For a person who looks from outside (`read_status`) while the coordinator runs in the background.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedgsca.errors import RunFolderError
from fedgsca.federation.base import RunObserver
from fedgsca.federation.filters.distance import DISTANT_TEXT
from fedgsca.federation.run_folder import LOCK_FILE, dumps
from fedgsca.support.files import try_lock, write_atomic
from fedgsca.support.json_record import Record

if TYPE_CHECKING:
    from fedgsca.federation.base import Reply
    from fedgsca.federation.records import RoundRecord
    from fedgsca.federation.simulation import Experiment

STATUS_FILE = "status.json"
DEAD_TEXT = (
    "stopped: the coordinator's process has died\nFix: start superlink.sh if it is not running,"
    " then run.sh, which continues after the last finished round"
)
_MAX_MESSAGES = 20
_WRITE_INTERVAL = 0.5  # seconds: with many sites, not every answer is worth a file


@dataclass(frozen=True)
class SiteStatus(Record):
    """What the coordinator is waiting for at a site, and since when (UTC)."""

    state: str
    since: str
    usual: float | None = None  # seconds from a message to its answer, the median
    timeout: float | None = None  # seconds for which the site is awaited
    max_images: int | None = None  # that it may claim, if a number was agreed on


@dataclass(frozen=True)
class RunStatus(Record):
    """The coordinator's progress, for people who look from outside."""

    state: str
    round: int
    rounds: int
    f1: float | None
    sites: Mapping[str, SiteStatus]
    messages: tuple[str, ...]
    at: str = ""  # when the file was written (UTC)
    distant_sites: tuple[str, ...] = ()  # as in the newest RoundRecord


def utc_now() -> str:
    """The time in UTC, as in status.json."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class StatusObserver(RunObserver):
    """Writes status.json; one per coordinator run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.status = RunStatus("starting", 0, 0, None, {}, (), "")
        self.last_write = -_WRITE_INTERVAL

    def _write_soon(self) -> None:
        """Write, unless the file is new: whatever comes before the next waiting writes again."""
        if time.monotonic() - self.last_write >= _WRITE_INTERVAL:
            self._write()

    def _write(self) -> None:
        self.last_write = time.monotonic()
        if (self.folder / "config.toml").exists():  # the folder is ours only from then on
            status = replace(self.status, at=utc_now())
            write_atomic(self.folder / STATUS_FILE, dumps(status.to_json()))

    def _set_site(self, name: str, **changes: object) -> None:
        site = self.status.sites.get(name, SiteStatus("", utc_now()))
        sites = {**self.status.sites, name: replace(site, **changes)}  # type: ignore[arg-type]
        self.status = replace(self.status, sites=sites)

    def on_start(self, experiment: Experiment, first_round: int) -> None:
        """All sites are known by name only."""
        rounds = experiment.config.train.rounds
        self.status = replace(self.status, state="running", round=first_round, rounds=rounds)
        for name in experiment.names:
            max_images = experiment.config.aggregation.agreed_images(name)
            self._set_site(name, state="no contact yet", since=utc_now(), max_images=max_images)
        self._write()

    def on_history(self, rounds: Sequence[RoundRecord]) -> None:
        """After a restart, the last score is that of an earlier round."""
        scores = [record.f1 for record in rounds if record.f1 is not None]
        if scores:
            self.status = replace(self.status, f1=scores[-1])
            self._write()

    def on_waiting(self, sites: Sequence[str], subject: str) -> None:
        """These sites are awaited."""
        for site in sites:
            self._set_site(site, state=f"awaited: {subject}", since=utc_now())
        self._write()

    def on_connection(self, site: str, problem: str | None) -> None:
        """A site has said who it is, or why it cannot take part."""
        if site not in self.status.sites:  # whoever that is
            return
        state = "connected" if problem is None else f"cannot take part: {problem}"
        self._set_site(site, state=state, since=utc_now())
        self._write()

    def on_timeout(self, site: str, usual: float | None, timeout: float | None) -> None:
        """Written with the next event."""
        self._set_site(site, usual=usual, timeout=timeout)

    def on_pause(self, reason: str | None) -> None:
        """The run waits for sites, or goes on."""
        state = "running" if reason is None else f"paused: {reason}"
        self.status = replace(self.status, state=state)
        self._write()

    def on_site_done(self, round_index: int, reply: Reply) -> None:
        """A site has answered, or is left out."""
        state = "answered"
        if reply.update is None:
            state = f"{'absent' if reply.is_absent else 'left out'}: {reply.error}"
        self._set_site(reply.site, state=state, since=utc_now())
        self._write_soon()

    def on_round_done(self, record: RoundRecord, seconds: float) -> None:
        """A round is finished; a round that was not tested leaves the score as it was."""
        f1 = self.status.f1 if record.f1 is None else record.f1
        self.status = replace(
            self.status,
            state="running",
            round=record.round + 1,
            f1=f1,
            distant_sites=record.distant_sites or (),
        )
        self._write()

    def on_message(self, message: str) -> None:
        """The newest messages are part of the file."""
        messages = (*self.status.messages, f"{utc_now()} {message}")
        self.status = replace(self.status, messages=messages[-_MAX_MESSAGES:])
        self._write_soon()

    def finish(self, error: BaseException | None) -> None:
        """The run has ended, with an error or without."""
        state = "finished"
        if error is not None:
            state = f"stopped: {str(error) or type(error).__name__}"
        self.status = replace(self.status, state=state)
        # a full disk must not hide the error that it caused
        with contextlib.suppress(RunFolderError):
            self._write()


def read_status(folder: Path) -> RunStatus | None:
    """None if no coordinator has run here, or if the file cannot be read.

    A coordinator that died could not say so; its lock on the folder is free.
    """
    try:
        status = RunStatus.from_json(json.loads((folder / STATUS_FILE).read_bytes()))
    except (OSError, ValueError):
        return None
    if status.state.partition(":")[0] in ("starting", "running", "paused") and _is_free(folder):
        return replace(status, state=DEAD_TEXT)
    return status


def _is_free(folder: Path) -> bool:
    """Whether no process holds the run; False where this cannot be found out."""
    if not (folder / LOCK_FILE).exists():
        return False
    try:
        lock = try_lock(folder / LOCK_FILE)
    except OSError:
        return False
    if lock is not None:
        lock.release()
    return lock is not None


# ---- `fedgsca deploy status` ----


@dataclass(frozen=True)
class SiteProgress(SiteStatus):
    """What the coordinator is waiting for at a site."""

    site: str = ""
    seconds: float | None = None  # since then

    @property
    def is_awaited(self) -> bool:
        """Whether the site must answer next."""
        return self.state.startswith("awaited")


@dataclass(frozen=True)
class DeploymentStatus:
    """The coordinator's progress at one moment."""

    state: str
    round: int
    rounds: int
    f1: float | None
    silent: float | None  # seconds since the coordinator last wrote
    sites: tuple[SiteProgress, ...]
    messages: tuple[str, ...]

    @property
    def awaited_sites(self) -> tuple[str, ...]:
        """The sites that must answer next. A run that has ended waits for nobody."""
        if self.state != "running":
            return ()
        return tuple(site.site for site in self.sites if site.is_awaited)


def read_deployment_status(run: Path, now: datetime.datetime | None = None) -> DeploymentStatus:
    """The status of the run in this folder; times are relative to `now`, by default the present."""
    status = read_status(run)
    if status is None:
        raise RunFolderError(
            "deploy.no-status",
            f"{run} has no readable {STATUS_FILE}: no deployment has run there",
            fix="give the folder that run.sh uses; the default is run",
        )
    if not status.state:
        raise RunFolderError(
            "deploy.damaged-status",
            f"{run / STATUS_FILE} is damaged",
            fix="wait for the running coordinator to write it again",
        )
    moment = now or datetime.datetime.now(datetime.UTC)
    sites = []
    for name, site in sorted(status.sites.items()):
        progress = SiteProgress(**vars(site), site=name, seconds=_seconds_since(site.since, moment))
        if name in status.distant_sites:
            progress = replace(progress, state=f"{site.state}; {DISTANT_TEXT}")
        if status.state == "finished" and progress.is_awaited:
            progress = replace(progress, state="done")
        sites.append(progress)
    return DeploymentStatus(
        state=status.state,
        round=status.round,
        rounds=status.rounds,
        f1=status.f1,
        silent=_seconds_since(status.at, moment),
        sites=tuple(sites),
        messages=status.messages,
    )


def _seconds_since(text: str, now: datetime.datetime) -> float | None:
    try:
        return (now - datetime.datetime.fromisoformat(text)).total_seconds()
    except ValueError:
        return None
