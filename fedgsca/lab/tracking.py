"""Records of runs: `--track tensorboard`, `--track mlflow`, `--track wandb` (always offline).

Tracking only watches. It never changes a byte of a run and never stops one: whatever goes wrong is
a warning, and the run continues without it.

metrics.jsonl is the truth. When a session begins, the rounds of the log that a record lacks are
added to it, so a resumed run continues its record, a run that began without tracking is complete,
and a round that is repeated after a crash (with the same numbers) is not added twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedgsca.config import Config, flatten
from fedgsca.federation.base import ObserverGroup, RunObserver
from fedgsca.federation.records import RoundRecord, RunResult, SiteRecord, finite
from fedgsca.federation.run_folder import read_rounds
from fedgsca.federation.simulation import Experiment
from fedgsca.lab.plan import ComparisonPlan
from fedgsca.lab.records import Comparison
from fedgsca.lab.runner import GridCell, GridObserver, folder_of
from fedgsca.lab.trackers import RunLabel, Tracker, TrackTarget, parse_targets, safe_name
from fedgsca.support.files import write_atomic
from fedgsca.support.text import one_line
from fedgsca.support.version import __version__

# in the order in which they are added
_FILES = (
    "config.toml",
    "setup.json",
    "metrics.jsonl",
    "result.json",
    "compare.json",
    "compare.md",
    "compare.csv",
    "report.html",
    "model.safetensors",
)
# in the run folder: what a resumed run continues to track with
TRACK_FILE = "track.json"
_Warn = Callable[[str], None]


class SafeTrackers:
    """The trackers of one folder. None of them ever fails: one that does is dropped, and says so.

    `parents` are the records of this folder, for those of its runs, by kind of tracker.
    """

    def __init__(
        self, folder: Path, targets: Sequence[TrackTarget], warn: _Warn, *, store: Path
    ) -> None:
        self.folder = folder
        self.warn = warn
        self.is_open = False
        self.parents: dict[str, str] = {}
        self.trackers = {target.kind: target.make_tracker(folder, store) for target in targets}

    def _call(self, action: Callable[[str, Tracker], None]) -> None:
        """Do something with every tracker that still works."""
        for kind, tracker in list(self.trackers.items()):
            try:
                action(kind, tracker)
            except Exception as error:
                del self.trackers[kind]
                reason = one_line(str(error) or type(error).__name__, 200)
                self.warn(f"tracking with {kind} has stopped, the run continues: {reason}")

    def open(
        self,
        experiment: str,
        settings: Mapping[str, str],
        tags: Mapping[str, str],
        parents: Mapping[str, str],
    ) -> None:
        """Begin or continue the records."""
        name = self.folder.resolve().name
        tags = {"fedgsca.version": __version__, "fedgsca.folder": str(self.folder), **tags}

        def open_record(kind: str, tracker: Tracker) -> None:
            label = RunLabel(name, experiment, tags, parents.get(kind))
            record = tracker.open(label, settings)
            if record is not None:
                self.parents[kind] = record

        self.is_open = True
        self._call(open_record)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add the numbers of a step to the records that do not have it."""

        def log_step(_: str, tracker: Tracker) -> None:
            if step > tracker.last_step:
                tracker.log_round(step, values)

        self._call(log_step)

    def close(self, *, is_finished: bool) -> None:
        """Add the files of what has finished, and end the records."""
        paths = [self.folder / name for name in _FILES if (self.folder / name).is_file()]

        def close_record(_: str, tracker: Tracker) -> None:
            if is_finished:
                tracker.log_files(paths)
            tracker.close("finished" if is_finished else "stopped")

        if self.is_open:
            self.is_open = False
            self._call(close_record)


class TrackingObserver(RunObserver):
    """Writes the rounds of a run to trackers."""

    def __init__(
        self,
        warn: _Warn,
        folder: Path,
        config: Config,
        targets: Sequence[TrackTarget],
        comparison: SafeTrackers | None = None,
    ) -> None:
        """`comparison` are the records of the comparison that the run belongs to."""
        self.folder = folder
        self.config = config
        self.targets = tuple(targets)
        self.parents = {} if comparison is None else comparison.parents
        store = (folder if comparison is None else comparison.folder).parent
        self.trackers = SafeTrackers(folder, targets, warn, store=store)

    def on_start(self, experiment: Experiment, first_round: int) -> None:
        """Begin or continue the records, and bring them up to date."""
        self.begin(experiment.table.fingerprint)

    def begin(self, data_fingerprint: str) -> None:
        """The same for a run that is finished already."""
        settings = {key: str(value) for key, value in flatten(self.config.to_tree()).items()}
        tags = {
            "fedgsca.fingerprint": self.config.fingerprint(),
            "fedgsca.data_fingerprint": data_fingerprint,
        }
        self.trackers.open(experiment_name(self.config), settings, tags, self.parents)
        for record in read_rounds(self.folder):
            self.on_round_done(record, 0.0)
        tree = {"track": ",".join(map(str, self.targets))}
        try:
            write_atomic(self.folder / TRACK_FILE, json.dumps(tree).encode() + b"\n")
        except Exception as error:  # whatever it is, the run must not notice
            reason = one_line(str(error) or type(error).__name__, 200)
            self.trackers.warn(f"a resumed run will not be tracked by itself: {reason}")

    def on_round_done(self, record: RoundRecord, seconds: float) -> None:
        """Add the numbers of the round."""
        self.trackers.log(record.round + 1, round_values(record))

    def finish(self, result: RunResult | None, warn: _Warn | None = None) -> None:
        """After the report was written: add the files and end the records.

        None: the run failed or was stopped.
        """
        self.trackers.warn = warn or self.trackers.warn
        self.trackers.close(is_finished=result is not None)


class TrackingGridObserver(GridObserver):
    """Wraps the observer of a comparison: one parent record, one child for every run."""

    def __init__(
        self,
        inner: GridObserver,
        out: Path,
        plan: ComparisonPlan,
        targets: Sequence[TrackTarget],
        warn: _Warn,
    ) -> None:
        self.inner = inner
        self.out = out
        self.plan = plan
        self.targets = tuple(targets)
        self.current: TrackingObserver | None = None
        self.trackers = SafeTrackers(out, targets, warn, store=out.parent)

    def _begin(self) -> None:
        """Begin or continue the parent. By now the folder belongs to the comparison."""
        if self.trackers.is_open:
            return
        keys = ("methods", "noises", "seeds", "ceiling", "clean")
        settings = {key: str(getattr(self.plan, key)) for key in keys}
        self.trackers.open(experiment_name(self.plan.cells()[0].config), settings, {}, {})

    def observe(self, cell: GridCell) -> RunObserver:
        """The observer of one run, with a record of its own."""
        self._begin()
        observer = self.inner.observe(cell)
        folder = folder_of(cell, self.out)
        self.current = TrackingObserver(
            observer.on_message, folder, cell.config, self.targets, self.trackers
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
            # a comparison that grew gets a later step
            self.trackers.log(len(comparison.cells), comparison_values(comparison))
        self.trackers.close(is_finished=comparison is not None)


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
    """What to track with: the option, else the configuration, else as in the earlier session."""
    return parse_targets(track or config.track or _read_earlier(folder))


def _read_earlier(folder: Path) -> str | None:
    try:
        tree = json.loads((folder / TRACK_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    track = tree.get("track") if isinstance(tree, dict) else None
    return track if isinstance(track, str) else None


def track_run(
    warn: _Warn, folder: Path, config: Config, targets: tuple[TrackTarget, ...]
) -> TrackingObserver | None:
    """The observer of a run that writes to trackers; None if there are none."""
    return TrackingObserver(warn, folder, config, targets) if targets else None


# ---- the numbers of a round ----

# fields of RoundRecord -> names; a slash makes a group
_SCORES = {
    "f1": "test/f1",
    "recall": "test/recall",
    "precision": "test/precision",
    "loss": "test/loss",
    "val_f1": "val/f1",
    "expected_f1": "holdout/expected_f1",
    "lr": "train/lr",
    "stability": "train/stability",
    "bytes_up": "traffic/bytes_up",
    "bytes_down": "traffic/bytes_down",
}
_MAX_ITEMS = 16  # of a list that a site sends, such as one threshold per class


def round_values(record: RoundRecord) -> dict[str, float]:
    """All finite numbers of a round: scores, traffic, and what every site reported."""
    values: dict[str, float] = {}
    for field_name, name in _SCORES.items():
        value = finite(getattr(record, field_name))
        if value is not None:
            values[name] = value
    values["sites/answered"] = float(len(record.sites))
    values["sites/refused"] = float(len(record.refusals))
    if record.privacy is not None:
        values["privacy/epsilon"] = record.privacy.epsilon
    for site, site_record in record.sites.items():
        values |= _site_values(site, site_record)
    for site in record.refusals:
        values[safe_name(f"site/{site}/refused")] = 1.0
    return values


def _site_values(site: str, record: SiteRecord) -> Mapping[str, float]:
    values: dict[str, float] = {}
    for name in record.values:
        key = safe_name(f"site/{site}/{name}")
        number = record.number(name)
        if number is not None:
            values[key] = number
            continue
        items = record.numbers(name)
        if len(items) <= _MAX_ITEMS:
            for i, item in enumerate(items):
                if item is not None:
                    values[f"{key}/{i}"] = item
    return values
