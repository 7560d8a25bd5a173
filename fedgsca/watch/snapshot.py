"""What a run's folder says about the run at this moment. Nothing is written, nothing is locked.

Everything is optional: the folder may not exist yet, a line may be cut short, a file may belong to
another version. Whatever cannot be read is left out, and the next look may find it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Lock

from fedgsca.engine.filters.distance import DISTANT_TEXT
from fedgsca.engine.round_status import read_status
from fedgsca.experiment.records import RoundRecord, RunStatus, SiteRecord, finite
from fedgsca.experiment.result_summary import expected_scores
from fedgsca.report.run_reader import LoadedRun, read_run
from fedgsca.support.json_record import Record
from fedgsca.support.text import one_line

MAX_POINTS = 500  # of a curve
MAX_SITES = 200
MAX_RUNS = 100
MAX_REFUSALS = 20
MAX_BYTES = 64 << 20  # of metrics.jsonl; more is not read again and again
_PACE_ROUNDS = 5  # rounds whose median predicts the next ones
# A run that is silent for so many of its rounds, and at least so many seconds, has probably stopped
_SILENT_ROUNDS = 10.0
_SILENT_SECONDS = 120.0
_SILENT_FIRST_ROUND = 600.0  # before the first round, images are decoded and features computed
# A coordinator waits for its sites: this much longer than the longest timeout, or this at least
_SILENT_TIMEOUTS = 1.5
_SILENT_COORDINATOR = 3600.0
_FILES = (
    "config.toml",
    "setup.json",
    "metrics.jsonl",
    "timing.jsonl",
    "status.json",
    "result.json",
)


@dataclass(frozen=True)
class CurvePoint(Record):
    """A round, counted from 1, and a score in percent."""

    round: int
    value: float


@dataclass(frozen=True)
class SelectorView(Record):
    """The two components of a site's selector: mean losses, and the share of the noisy one."""

    clean_mean: float
    noisy_mean: float
    noisy_share: float


@dataclass(frozen=True)
class SiteView(Record):
    """One site: what it did last."""

    name: str
    images: int | None
    state: str
    is_online: bool | None  # None: not known, as in a simulation that is not running
    since: str = ""
    flagged_share: float | None = None  # share of its labels, 0 to 1
    selector: SelectorView | None = None
    refusals: int = 0


@dataclass(frozen=True)
class RefusalView(Record):
    """An update that was not used."""

    round: int  # from 1
    site: str
    reason: str


@dataclass(frozen=True)
class RunSnapshot(Record):
    """One run as the page shows it. No path of this machine is part of it."""

    name: str
    # waiting, running, paused, silent, finished, stopped
    state: str
    detail: str
    method: str
    data: str
    noise: str
    round: int  # finished rounds
    rounds: int
    f1: float | None
    best_f1: float | None
    test: tuple[CurvePoint, ...]
    validation: tuple[CurvePoint, ...]
    forecast: tuple[CurvePoint, ...]
    sites: tuple[SiteView, ...]
    hidden_sites: int  # beyond those that are listed
    refusals: tuple[RefusalView, ...]  # the newest first
    num_refusals: int
    seconds_per_round: float | None
    seconds_left: float | None
    seconds_silent: float | None
    messages: tuple[str, ...]


class RunWatch:
    """One folder; what it says is computed again only when a file has changed."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self._signature: object = None
        self._run: LoadedRun | None = None
        self._status: RunStatus | None = None

    def look(self, now: float | None = None) -> RunSnapshot:
        """The run at this moment; `now` is in seconds since the epoch. Never fails."""
        moment = time.time() if now is None else now
        signature = tuple(_stamp(self.path / name) for name in _FILES)
        if signature != self._signature:
            self._run = None
            self._status = None
            if (_size(self.path / "metrics.jsonl") or 0) <= MAX_BYTES:
                # a run that is being created, damaged files, no permission: there is nothing to see
                with contextlib.suppress(Exception):
                    self._run = read_run(self.path, with_losses=False)
                with contextlib.suppress(Exception):
                    self._status = read_status(self.path)
            self._signature = signature
        if self._run is None:
            return self._empty()
        try:
            return describe_run_folder(
                self._run, self._status, self.name, _newest(signature), moment
            )
        except Exception as error:  # damaged in a way that nobody foresaw: the page stays alive
            return self._empty(f"its files cannot be shown: {one_line(str(error), 200)}")

    def _empty(self, problem: str = "") -> RunSnapshot:
        detail = problem
        if not detail and (_size(self.path / "metrics.jsonl") or 0) > MAX_BYTES:
            detail = "its log is too large to be shown"
        if not detail:
            detail = "the folder has no run yet"
        return RunSnapshot(
            name=self.name,
            state="waiting",
            detail=detail,
            method="",
            data="",
            noise="",
            round=0,
            rounds=0,
            f1=None,
            best_f1=None,
            test=(),
            validation=(),
            forecast=(),
            sites=(),
            hidden_sites=0,
            refusals=(),
            num_refusals=0,
            seconds_per_round=None,
            seconds_left=None,
            seconds_silent=None,
            messages=(),
        )


class WatchList:
    """The runs in some folders. A comparison becomes its runs, also when it starts later."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(dict.fromkeys(paths))
        self._watches: dict[Path, RunWatch] = {}
        self._plans: dict[Path, tuple[object, list[str]]] = {}
        self._lock = Lock()  # requests are answered by several threads

    def look(self, now: float | None = None) -> list[RunSnapshot]:
        """All runs at this moment, at most MAX_RUNS."""
        with self._lock:
            return self._look(now)

    def _look(self, now: float | None) -> list[RunSnapshot]:
        folders: list[Path] = []
        for path in self.paths:
            folders += self._run_folders(path)
        snapshots = []
        for folder in list(dict.fromkeys(folders))[:MAX_RUNS]:
            if folder not in self._watches:
                self._watches[folder] = RunWatch(folder, one_line(folder.resolve().name, 80))
            snapshots.append(self._watches[folder].look(now))
        return snapshots

    def _run_folders(self, path: Path) -> list[Path]:
        """The folder itself, or those of a comparison: planned runs, then any others."""
        stamp = _stamp(path / "plan.json")
        names: list[str] = []
        if stamp is not None:
            if self._plans.get(path, (None,))[0] != stamp:
                self._plans[path] = (stamp, _plan_names(path))
            names = list(self._plans[path][1])
        if stamp is not None or _stamp(path / "search.json") is not None:
            with contextlib.suppress(OSError):
                names += sorted(
                    entry.name for entry in (path / "cells").iterdir() if entry.is_dir()
                )
        return [path / "cells" / name for name in dict.fromkeys(names)] or [path]


def _plan_names(path: Path) -> list[str]:
    from fedgsca.grid.comparison import read_plan

    with contextlib.suppress(Exception):
        plan = read_plan(path)
        if plan is not None:
            return [cell.name for cell in plan.cells()]
    return []


def describe_run_folder(
    run: LoadedRun, status: RunStatus | None, name: str, newest: float | None, now: float
) -> RunSnapshot:
    """The snapshot of a run that can be read. `newest` is when any of its files was written."""
    pace = _seconds_per_round(run)
    is_finished = run.result is not None
    rounds_done = max((record.round + 1 for record in run.metrics), default=0)
    silence = None if newest is None else max(0.0, now - newest)
    state, detail = _state(status, is_finished, pace, silence)
    remaining_seconds = None
    if state in ("running", "paused") and pace is not None and run.num_rounds:
        remaining_seconds = pace * max(0, run.num_rounds - rounds_done)
    sites = _site_views(run, status, is_running=state in ("running", "paused"))
    refusals = _refusals(run.metrics)
    tests = _curve([(record.round, record.f1) for record in run.metrics])
    return RunSnapshot(
        name=name,
        state=state,
        detail=detail,
        method=run.method,
        data=one_line(run.data_name, 80),
        noise=run.settings.noise,
        round=rounds_done,
        rounds=run.num_rounds,
        f1=tests[-1].value if tests else None,
        best_f1=max((point.value for point in tests), default=None),
        test=_thin(tests),
        validation=_thin(_curve([(record.round, record.val_f1) for record in run.metrics])),
        forecast=_thin(_curve(sorted(expected_scores(run.metrics).items()))),
        sites=tuple(sites[:MAX_SITES]),
        hidden_sites=max(0, len(sites) - MAX_SITES),
        refusals=tuple(refusals[:MAX_REFUSALS]),
        num_refusals=len(refusals),
        seconds_per_round=pace,
        seconds_left=remaining_seconds,
        seconds_silent=silence,
        messages=() if status is None else tuple(one_line(text, 300) for text in status.messages),
    )


def _state(
    status: RunStatus | None, is_finished: bool, pace: float | None, silence: float | None
) -> tuple[str, str]:
    """The state and, if there is more to say, a sentence about it."""
    if is_finished:
        return "finished", ""
    if status is not None and status.state.startswith(("paused", "stopped")):
        word, _, text = status.state.partition(":")
        return word, one_line(text, 300)
    if silence is not None and silence > _longest_silence(status, pace):
        return "silent", "no file has changed for a long time: the run may have stopped"
    return "running", ""


def _longest_silence(status: RunStatus | None, pace: float | None) -> float:
    """Seconds without a new file that a working run may need."""
    limit = _SILENT_FIRST_ROUND
    if pace is not None:
        limit = max(_SILENT_SECONDS, _SILENT_ROUNDS * pace)
    if status is None:
        return limit
    timeouts = [finite(site.timeout) or 0.0 for site in status.sites.values()]
    return max(limit, _SILENT_COORDINATOR, _SILENT_TIMEOUTS * max(timeouts, default=0.0))


def _seconds_per_round(run: LoadedRun) -> float | None:
    seconds = [finite(record.total) for record in run.timing[-_PACE_ROUNDS:]]
    known_seconds = [value for value in seconds if value is not None and value >= 0]
    return median(known_seconds) if known_seconds else None


def _curve(pairs: Iterable[tuple[int, float | None]]) -> list[CurvePoint]:
    points = []
    for round_index, value in pairs:
        number = finite(value)
        if number is not None:
            points.append(CurvePoint(round_index + 1, number))
    return points


def _thin(points: list[CurvePoint]) -> tuple[CurvePoint, ...]:
    """At most MAX_POINTS of them, the last one included."""
    step = math.ceil(len(points) / MAX_POINTS) or 1
    thinned_points = points[::-1][::step]
    return tuple(thinned_points[::-1])


def _refusals(records: Sequence[RoundRecord]) -> list[RefusalView]:
    """All of them, the newest first."""
    refusals = []
    for record in reversed(records):
        for site, reason in record.refusals.items():
            refusals.append(
                RefusalView(record.round + 1, one_line(site, 80), one_line(reason, 300))
            )
    return refusals


def _site_views(run: LoadedRun, status: RunStatus | None, *, is_running: bool) -> list[SiteView]:
    last = run.metrics[-1] if run.metrics else None
    newest: dict[str, SiteRecord] = {}
    counts: dict[str, int] = {}
    for record in run.metrics:
        newest.update(record.sites)
        for site in record.refusals:
            counts[site] = counts.get(site, 0) + 1
    names = list(dict.fromkeys([*run.sites, *(status.sites if status else ()), *counts]))
    views = []
    for name in names:
        site_record = newest.get(name)
        state, since, is_online = _site_state(name, last, status, is_running=is_running)
        if last is not None and name in (last.distant_sites or ()):
            state = f"{state}; {DISTANT_TEXT}"
        setup = run.setup.sites.get(name)
        images = site_record.num_samples if site_record is not None else None
        if images is None and setup is not None:
            images = setup.num_samples
        views.append(
            SiteView(
                name=one_line(name, 80),
                images=images,
                state=one_line(state, 200),
                is_online=is_online,
                since=since,
                flagged_share=None if site_record is None else _flagged_share(site_record),
                selector=None if site_record is None else _selector(site_record),
                refusals=counts.get(name, 0),
            )
        )
    return views


def _site_state(
    name: str, last: RoundRecord | None, status: RunStatus | None, *, is_running: bool
) -> tuple[str, str, bool | None]:
    """What the site did last, since when, and whether it is reachable as far as anybody knows."""
    if status is not None and name in status.sites:
        site = status.sites[name]
        is_away = site.state.startswith(("left out", "no contact", "cannot take part"))
        return site.state, one_line(site.since, 40), not is_away if is_running else None
    if last is None:
        return "no round yet", "", None
    if name in last.refusals:
        return f"refused: {last.refusals[name]}", "", is_running or None
    if name in last.sites:
        return f"answered in round {last.round + 1}", "", is_running or None
    if last.asked_sites is not None and name not in last.asked_sites:
        return f"not asked in round {last.round + 1}", "", is_running or None
    return f"no answer in round {last.round + 1}", "", False if is_running else None


def _flagged_share(site: SiteRecord) -> float | None:
    for key in ("delta", "noise_level"):
        share = site.number(key)
        if share is not None:
            return min(1.0, max(0.0, share))
    return None


def _selector(site: SiteRecord) -> SelectorView | None:
    """From (mean, mean, variance, variance, weight, weight); None before the first fit."""
    numbers = site.numbers("selector")
    if len(numbers) != 6 or any(number is None for number in numbers):
        return None
    clean_mean, noisy_mean, _, _, _, noisy_share = (float(number or 0.0) for number in numbers)
    return SelectorView(clean_mean, noisy_mean, min(1.0, max(0.0, noisy_share)))


def _stamp(path: Path) -> tuple[int, int] | None:
    """When a file was written, and its size; None if there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


def _size(path: Path) -> int | None:
    stamp = _stamp(path)
    return None if stamp is None else stamp[1]


def _newest(signature: tuple[tuple[int, int] | None, ...]) -> float | None:
    times = [stamp[0] for stamp in signature if stamp is not None]
    return max(times) / 1e9 if times else None
