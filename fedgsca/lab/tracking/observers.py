"""Observers that write to trackers and hand every event on; a failure is a warning.

metrics.jsonl is the truth. When a session begins, the rounds of the log that a record lacks are
added to it, so a resumed run continues its record, a run that began without tracking is complete,
and a round that is repeated after a crash (with the same numbers) is not added twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from fedgsca.config import Config, flatten
from fedgsca.federation.base import ObserverGroup, RunObserver
from fedgsca.federation.records import RoundRecord, RunResult
from fedgsca.federation.run_folder import read_rounds
from fedgsca.federation.simulation import Experiment
from fedgsca.lab.plan import ComparisonPlan
from fedgsca.lab.records import Comparison
from fedgsca.lab.runner import GridCell, GridObserver, folder_of
from fedgsca.lab.tracking.base import (
    RunLabel,
    Tracker,
    TrackTarget,
    make_tracker,
    parse_targets,
    require_packages,
    round_values,
)
from fedgsca.support.files import write_atomic
from fedgsca.support.text import one_line
from fedgsca.support.version import __version__

# in the order in which they are added
_RUN_FILES = (
    "config.toml",
    "setup.json",
    "metrics.jsonl",
    "result.json",
    "report.html",
    "model.safetensors",
)
# in the run folder: what a resumed run continues to track with
TRACK_FILE = "track.json"
_COMPARISON_FILES = ("compare.json", "compare.md", "compare.csv", "report.html")


class SafeTrackers:
    """Several trackers as one that never fails: one that does is dropped, with a warning."""

    def __init__(self, trackers: Iterable[tuple[TrackTarget, Tracker]]) -> None:
        self._trackers = list(trackers)

    def call(
        self, action: Callable[[TrackTarget, Tracker], None], warn: Callable[[str], None]
    ) -> None:
        """Do something with every tracker that still works."""
        for target, tracker in list(self._trackers):
            try:
                action(target, tracker)
            except Exception as error:
                self._trackers.remove((target, tracker))
                reason = one_line(str(error) or type(error).__name__, 200)
                warn(f"tracking with {target.kind} has stopped, the run continues: {reason}")


class TrackingObserver(RunObserver):
    """Writes the rounds of a run to trackers."""

    def __init__(
        self,
        warn: Callable[[str], None],
        folder: Path,
        config: Config,
        targets: Sequence[TrackTarget],
        *,
        name: str,
        store: Path,
        parents: dict[str, str] | None = None,
    ) -> None:
        """`store` is the folder whose runs share one MLflow store.

        `parents` are the records of the comparison that the run belongs to, by kind of tracker.
        """
        self.warn = warn
        self.folder = folder
        self.config = config
        self.name = name
        self.parents = parents or {}
        self.targets = tuple(targets)
        self.is_open = False
        pairs = [(target, make_tracker(target, folder, store)) for target in targets]
        self.trackers = SafeTrackers(pairs)

    def on_start(self, experiment: Experiment, first_round: int) -> None:
        """Begin or continue the records, and bring them up to date."""
        self.begin(experiment.table.fingerprint)

    def begin(self, data_fingerprint: str) -> None:
        """The same for a run that is finished already."""
        settings = {}
        for key, value in flatten(self.config.to_tree()).items():
            settings[key] = str(value)
        tags = {
            "fedgsca.version": __version__,
            "fedgsca.fingerprint": self.config.fingerprint(),
            "fedgsca.data_fingerprint": data_fingerprint,
            "fedgsca.folder": str(self.folder),
        }

        def open_record(target: TrackTarget, tracker: Tracker) -> None:
            parent = self.parents.get(target.kind)
            label = RunLabel(self.name, experiment_name(self.config), tags, parent)
            tracker.open(label, settings)
            for record in read_rounds(self.folder):
                _log_once(tracker, record)

        self.is_open = True
        self.trackers.call(open_record, self.warn)
        tree = {"track": ",".join(map(str, self.targets))}
        try:
            write_atomic(self.folder / TRACK_FILE, json.dumps(tree).encode() + b"\n")
        except Exception as error:  # whatever it is, the run must not notice
            reason = one_line(str(error) or type(error).__name__, 200)
            self.warn(f"a resumed run will not be tracked by itself: {reason}")

    def on_round_done(self, record: RoundRecord, seconds: float) -> None:
        """Add the numbers of the round."""
        self.trackers.call(lambda _, tracker: _log_once(tracker, record), self.warn)

    def finish(self, result: RunResult | None, warn: Callable[[str], None] | None = None) -> None:
        """After the report was written: add the files and end the records.

        None: the run failed or was stopped.
        """
        if not self.is_open:
            return
        files = _existing_files(self.folder, _RUN_FILES) if result is not None else []

        def close_record(_: TrackTarget, tracker: Tracker) -> None:
            if files:
                tracker.log_files(files)
            tracker.close("stopped" if result is None else "finished")

        self.is_open = False
        self.trackers.call(close_record, warn or self.warn)


def _log_once(tracker: Tracker, record: RoundRecord) -> None:
    step = record.round + 1
    if step > tracker.last_step:
        tracker.log_round(step, round_values(record))


def _existing_files(folder: Path, names: Iterable[str]) -> list[Path]:
    return [folder / name for name in names if (folder / name).is_file()]


class TrackingGridObserver:
    """Wraps the observer of a comparison: one parent record, one child for every run."""

    def __init__(
        self,
        inner: GridObserver,
        out: Path,
        targets: Sequence[TrackTarget],
        warn: Callable[[str], None],
        *,
        experiment: str,
        settings: Mapping[str, str],
    ) -> None:
        """`experiment` and `settings` are the name and the parameters of the parent."""
        self.inner = inner
        self.experiment = experiment
        self.settings = settings
        self.is_open = False
        self.out = out
        self.targets = tuple(targets)
        self.warn = warn
        self.parents: dict[str, str] = {}
        self.current: TrackingObserver | None = None
        pairs = [(target, make_tracker(target, out, out.parent)) for target in targets]
        self.trackers = SafeTrackers(pairs)

    def _begin(self) -> None:
        """Begin or continue the parent. By now the folder belongs to the comparison."""
        if self.is_open:
            return
        self.is_open = True
        tags = {"fedgsca.version": __version__, "fedgsca.folder": str(self.out)}

        def open_record(target: TrackTarget, tracker: Tracker) -> None:
            label = RunLabel(self.out.resolve().name, self.experiment, tags)
            parent = tracker.open(label, self.settings)
            if parent is not None:
                self.parents[target.kind] = parent

        self.trackers.call(open_record, self.warn)

    def observe(self, cell: GridCell) -> RunObserver:
        """The observer of one run, with a record of its own."""
        self._begin()
        observer = self.inner.observe(cell)
        self.current = TrackingObserver(
            observer.on_message,
            folder_of(cell, self.out),
            cell.config,
            self.targets,
            name=cell.name,
            store=self.out.parent,
            parents=self.parents,
        )
        return ObserverGroup(observer, self.current)

    def on_run_done(self, cell: GridCell, result: RunResult) -> None:
        """The child has ended."""
        if self.current is not None:
            self.current.finish(result)
        self.inner.on_run_done(cell, result)

    def on_run_failed(self, cell: GridCell, error: Exception) -> None:
        """The child has failed."""
        if self.current is not None:
            self.current.finish(None)
        self.inner.on_run_failed(cell, error)

    def finish(self, comparison: Comparison | None) -> None:
        """After the tables were written: scores by method, and the files. None: it was stopped."""
        if self.current is not None:
            self.current.finish(None)  # does nothing if the run has ended
        if comparison is not None:
            self._begin()
        if not self.is_open:
            return
        files = _existing_files(self.out, _COMPARISON_FILES) if comparison is not None else []
        values = {} if comparison is None else comparison_values(comparison)
        # a comparison that grew gets a later step
        step = 0 if comparison is None else len(comparison.cells)

        def close_record(_: TrackTarget, tracker: Tracker) -> None:
            if step > tracker.last_step:
                tracker.log_round(step, values)
            if files:
                tracker.log_files(files)
            if (self.out / "compare.md").is_file():
                tracker.log_text("comparison", (self.out / "compare.md").read_text("utf-8"))
            tracker.close("stopped" if comparison is None else "finished")

        self.trackers.call(close_record, self.warn)


def experiment_name(config: Config) -> str:
    """What runs on the same data have in common: the name of the data source."""
    source = config.data.source
    return Path(source).name or source


def comparison_values(comparison: Comparison) -> dict[str, float]:
    """Mean macro F1 of every method under every noise, over the seeds."""
    sums: dict[str, list[float]] = {}
    for cell in comparison.cells:
        sums.setdefault(f"f1/{cell.noise}/{cell.method}", []).append(cell.f1)
    return {name: sum(values) / len(values) for name, values in sums.items()}


def find_targets(track: str | None, config: Config, folder: Path) -> tuple[TrackTarget, ...]:
    """What to track with: the option, else the configuration, else as in the earlier session.

    A tracker that is not installed is an error here, before anything runs.
    """
    text = track or config.track or _read_earlier(folder)
    targets = parse_targets(text)
    require_packages(targets)
    return targets


def _read_earlier(folder: Path) -> str | None:
    try:
        tree = json.loads((folder / TRACK_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    track = tree.get("track") if isinstance(tree, dict) else None
    return track if isinstance(track, str) else None


def track_run(
    warn: Callable[[str], None], folder: Path, config: Config, targets: tuple[TrackTarget, ...]
) -> TrackingObserver | None:
    """The observer of a run that writes to trackers; None if there are none."""
    if not targets:
        return None
    name = folder.resolve().name
    return TrackingObserver(warn, folder, config, targets, name=name, store=folder.parent)


def track_comparison(
    inner: GridObserver,
    out: Path,
    plan: ComparisonPlan,
    targets: tuple[TrackTarget, ...],
    warn: Callable[[str], None],
) -> TrackingGridObserver | None:
    """The observer of a comparison that writes to trackers; None if there are none."""
    if not targets:
        return None
    experiment = experiment_name(plan.cells()[0].config)
    return TrackingGridObserver(
        inner, out, targets, warn, experiment=experiment, settings=_plan_settings(plan)
    )


def _plan_settings(plan: ComparisonPlan) -> dict[str, str]:
    keys = ("methods", "noises", "seeds", "ceiling", "clean")
    return {key: str(getattr(plan, key)) for key in keys}
