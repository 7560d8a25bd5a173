"""`fedgsca deploy status`: status.json of the coordinator's run folder, for a person."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from pathlib import Path

from fedgsca.errors import RunFolderError
from fedgsca.federation.filters.distance import DISTANT_TEXT
from fedgsca.federation.round_status import STATUS_FILE, read_status


@dataclass(frozen=True)
class SiteProgress:
    """What the coordinator is waiting for at a site."""

    site: str
    state: str
    since: str
    seconds: float | None  # since then
    usual: float | None = None  # seconds that it usually needs for an answer
    timeout: float | None = None  # seconds for which it is awaited
    max_images: int | None = None  # that it may claim, if a number was agreed on


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
        return tuple(site.site for site in self.sites if _is_awaited(site))


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
        seconds = _seconds_since(site.since, moment)
        is_distant = name in status.distant_sites
        state = f"{site.state}; {DISTANT_TEXT}" if is_distant else site.state
        progress = SiteProgress(
            name, state, site.since, seconds, site.usual, site.timeout, site.max_images
        )
        if status.state == "finished" and _is_awaited(progress):
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


def _is_awaited(progress: SiteProgress) -> bool:
    return progress.state.startswith("awaited")


def _seconds_since(text: str, now: datetime.datetime) -> float | None:
    try:
        return (now - datetime.datetime.fromisoformat(text)).total_seconds()
    except ValueError:
        return None
