"""`fedgsca deploy status`: status.json of the coordinator's run folder, for a person."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedgsca.engine.round_status import read_status
from fedgsca.errors import RunFolderError


@dataclass(frozen=True)
class Row:
    site: str
    state: str
    since: str
    seconds: float | None  # since then


@dataclass(frozen=True)
class View:
    state: str
    round: int
    rounds: int
    f1: float | None
    silent: float | None  # seconds since the coordinator last wrote
    sites: tuple[Row, ...]
    messages: tuple[str, ...]

    @property
    def awaited(self) -> tuple[str, ...]:
        """Of a run that ended, nobody is: what its sites were last asked for is history."""
        if self.state != "running":
            return ()
        return tuple(row.site for row in self.sites if row.state.startswith("awaited"))


def view(run: Path, now: datetime.datetime | None = None) -> View:
    known = read_status(run)
    if known is None:
        raise RunFolderError(
            "todo.status-view-1",
            f"{run} has no readable status.json: no deployment has run there",
            fix="give the folder of run.sh; default run",
        )
    moment = now or datetime.datetime.now(datetime.UTC)
    try:
        rows = tuple(_row(name, entry, moment) for name, entry in sorted(known["sites"].items()))
        if known["state"] == "finished":
            rows = tuple(
                replace(row, state="done") if row.state.startswith("awaited") else row
                for row in rows
            )
        f1 = None if known["f1"] is None else float(known["f1"])
        silent = _since(str(known["at"]), moment)
        return View(
            str(known["state"]),
            int(known["round"]),
            int(known["rounds"]),
            f1,
            silent,
            rows,
            tuple(known["messages"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RunFolderError(
            "todo.status-view-2",
            f"{run / 'status.json'} is damaged",
            fix="the running coordinator writes it again",
        ) from None


def _row(name: str, entry: dict[str, Any], now: datetime.datetime) -> Row:
    return Row(name, str(entry["state"]), str(entry["since"]), _since(str(entry["since"]), now))


def _since(text: str, now: datetime.datetime) -> float | None:
    try:
        return (now - datetime.datetime.fromisoformat(text)).total_seconds()
    except ValueError:
        return None
