"""A run's folder: its files, its owner, and writing so that nothing is ever half there.

config.toml        the experiment, with every default filled in
setup.json         classes, sites, sizes, realised noise, fingerprints, warnings (Setup)
samples.safetensors, rows/<site>.safetensors, noise/<site>.csv   see site_rows.py
metrics.jsonl      one line per round; the same bytes whenever the same experiment is run
timing.jsonl       seconds per phase and site; differs from run to run
checkpoint/        the last four rounds
store/<site>/      each site's private memory
evidence/<site>/   each site's evidence about its own labels; audit/<site>/ the audit
losses/<site>.npz  simulations: per-sample losses of the newest selection, for the report
test-probabilities.npz   the final model on every test image of this machine
model.safetensors, result.json (RunResult), report.html

The JSON files are described by the records in records.py.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsca.config import OWN_FEATURES, Config, build, differences, read_toml, to_toml
from fedgsca.data.relabel import labels_in_use
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.federation import checkpoint
from fedgsca.federation.final_statistics import FILE as PREDICTIONS
from fedgsca.federation.final_statistics import FinalPredictions, encode_predictions
from fedgsca.federation.records import (
    DataSetup,
    LabelsInUse,
    RealisedSiteNoise,
    RoundRecord,
    RunResult,
    Setup,
    SiteSetup,
    TimingRecord,
)
from fedgsca.federation.result_summary import summarise_run
from fedgsca.federation.samples import weights_digest
from fedgsca.federation.simulation import Experiment
from fedgsca.federation.site_rows import keep_samples
from fedgsca.methods.base import Method, ServerState
from fedgsca.noise import realised
from fedgsca.support.files import (
    is_disk_full,
    make_folders,
    open_private,
    remove_abandoned,
    remove_quietly,
    try_lock,
    write_atomic,
)
from fedgsca.support.json_record import Record
from fedgsca.support.version import __version__
from fedgsca.wire import save_tensors

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK_FILE = ".lock"  # held by the process that runs the experiment
# without them a file is no result; later versions may add others
_RESULT_KEYS = ("method", "f1", "rounds")
_SHOWN_CHANGES = 6  # differences between two experiments that an error lists


def dumps(value: object) -> bytes:
    """JSON as it is written to a run folder: sorted keys, one item per line."""
    return json.dumps(value, sort_keys=True, indent=1).encode() + b"\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Complete JSON lines of a file; a last line that a crash cut short is dropped."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        # a power cut can also leave a tail of zeros, which is not even text
        with contextlib.suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    return rows


def read_rounds(folder: Path) -> list[RoundRecord]:
    """The records of metrics.jsonl; lines that are not records of a round are left out."""
    lines = read_lines(folder / "metrics.jsonl")
    return [RoundRecord.from_json(line) for line in lines if _has_round(line)]


def read_timing(folder: Path) -> list[TimingRecord]:
    """The records of timing.jsonl; lines that are not records of a round are left out."""
    lines = read_lines(folder / "timing.jsonl")
    return [TimingRecord.from_json(line) for line in lines if _has_round(line)]


def read_result(folder: Path) -> RunResult | None:
    """The result of a finished run; None if it is not finished."""
    path = folder / "result.json"
    tree = _read_object(path)
    if tree is None:
        return None
    missing_keys = [key for key in _RESULT_KEYS if key not in tree]
    if missing_keys:  # an empty result would be shown as if the run had ended with it
        raise _damaged(path, f"it has no {missing_keys[0]}")
    return RunResult.from_json(tree)


def read_setup(folder: Path) -> Setup:
    """setup.json of a run; empty if there is none."""
    return Setup.from_json(_read_object(folder / "setup.json"))


def _read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None if there is no file."""
    if not path.exists():
        return None
    if not path.is_file():  # a pipe or a device would be read for ever
        raise _damaged(path, "it is not a regular file")
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(tree, dict):
        raise _damaged(path, "it is not a JSON object")
    return tree


def _damaged(path: Path, reason: str) -> RunFolderError:
    return RunFolderError(
        "run.damaged-file",
        f"{path} is damaged: {reason}",
        fix="restore it from a backup, or start again with another --out",
    )


def _has_round(line: object) -> bool:
    return isinstance(line, Mapping) and isinstance(line.get("round"), int)


def read_config(path: Path) -> Config:
    """The configuration of an existing run folder."""
    if not (path / "config.toml").exists():
        raise RunFolderError(
            "run.not-a-run-folder",
            f"{path} is not a run folder: it has no config.toml",
            fix="give the folder that `fedgsca run --out` made",
        )
    return build(read_toml(path / "config.toml"))


class RunFolder:
    """A run folder, opened for one experiment by one process at a time."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.config = config
        self.checkpoints = path / "checkpoint"
        self._lock: BaseFileLock | None = None

    def __enter__(self) -> RunFolder:
        try:
            make_folders(self.path)
        except OSError as error:
            raise RunFolderError(
                "run.cannot-create-folder",
                f"the run folder {self.path} cannot be created: {error.strerror}",
                fix="choose another --out",
            ) from None
        self._check_owner()
        self._lock = self._take_lock()
        remove_abandoned(self.path, "**/*.tmp")  # half-written files of a run that was killed
        return self

    def _take_lock(self) -> BaseFileLock:
        try:
            lock = try_lock(self.path / LOCK_FILE)
        except OSError as error:
            raise RunFolderError(
                "run.cannot-write-folder",
                f"the run folder {self.path} cannot be written: {error.strerror}",
                fix="free some space there, or choose another --out",
            ) from None
        if lock is None:
            raise RunFolderError(
                "run.folder-in-use",
                f"another process is running in {self.path}",
                fix="wait for it, stop it, or choose another --out",
            )
        return lock

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock is None:
            return
        if not (self.path / "config.toml").exists():  # nothing has begun: leave nothing behind
            with contextlib.suppress(OSError):
                (self.path / LOCK_FILE).unlink()
                self.path.rmdir()
        self._lock.release()

    def _check_owner(self) -> None:
        """A folder belongs to the experiment in its config.toml, and to no other."""
        if not (self.path / "config.toml").exists():
            names = {path.name for path in self.path.iterdir() if path.suffix != ".tmp"}
            if names - {LOCK_FILE}:
                raise RunFolderError(
                    "run.folder-not-empty",
                    f"{self.path} is not empty and not a run folder",
                    fix="choose a new folder with --out",
                )
            return
        changes = differences(self.config, read_config(self.path))
        if changes:
            lines = [
                f"{key}: {their_value!r} there, {our_value!r} here"
                for key, our_value, their_value in changes[:_SHOWN_CHANGES]
            ]
            if len(changes) > _SHOWN_CHANGES:
                lines.append("...")
            change_text = "\n  ".join(lines)
            raise RunFolderError(
                "run.other-experiment",
                f"{self.path} belongs to another experiment:\n  {change_text}",
                fix="choose another --out, or continue that experiment with `fedgsca resume`",
            )

    # ---- at the start ----

    def write_setup(self, experiment: Experiment) -> None:
        """config.toml, setup.json, and the samples of the sites (site_rows.py).

        Only an experiment whose data, labels and weights could be read takes possession of the
        folder: config.toml comes first.
        """
        if not (self.path / "config.toml").exists():
            write_atomic(self.path / "config.toml", to_toml(self.config).encode())
        signature = experiment.signature()
        self._check_data(signature)
        keep_samples(self.path, experiment)
        setup = make_setup(experiment, signature)
        write_atomic(self.path / "setup.json", dumps(setup.to_json()))

    def check_version(self) -> None:
        """An unfinished run continues only with the version that began it."""
        setup = _read_object(self.path / "setup.json") or {"version": __version__}
        version = str(setup.get("version"))
        # versions that differ only in the last number give the same bytes
        if version.split(".")[:2] != __version__.split(".")[:2]:
            raise RunFolderError(
                "run.other-version",
                f"the unfinished run in {self.path} was begun with fedgsca {version}; this is"
                f" {__version__}, which trains differently",
                fix=f"continue it with fedgsca {version}, or start a new run with another --out",
            )

    def _check_data(self, signature: str) -> None:
        """A run continues only with the images, sites, labels and weights it began with."""
        setup = _read_object(self.path / "setup.json") or {"signature": signature}
        if setup.get("signature") != signature:
            raise RunFolderError(
                "run.data-changed",
                f"the data of {self.path} has changed since the run began (images, labels, sites or"
                " the weights file)",
                fix="restore it as it was, or start a new run with another --out; if patients have"
                f" left, run `fedgsca withdraw PATIENT --from {self.path}`",
            )

    # ---- round by round ----

    def cut_metrics(self, rounds: int) -> None:
        """Remove lines of rounds that no checkpoint covers: they will be run again."""
        for name in ("metrics.jsonl", "timing.jsonl"):
            path = self.path / name
            if path.exists():
                lines = [
                    line for line in read_lines(path) if _has_round(line) and line["round"] < rounds
                ]
                write_atomic(path, b"".join(_json_line(line) for line in lines))

    def append(self, name: str, record: Record) -> None:
        """Add a line to metrics.jsonl or timing.jsonl."""
        try:
            with open(self.path / name, "ab", opener=open_private) as handle:
                handle.write(_json_line(record.to_json()))
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            reason = "no space is left" if is_disk_full(error) else str(error.strerror)
            raise RunFolderError(
                "run.cannot-append",
                f"{self.path / name} cannot be written: {reason}; all rounds up to the last"
                " checkpoint are safe",
                fix=f"free some space under {self.path}, then run `fedgsca resume {self.path}`",
            ) from error

    # ---- at the end ----

    def finish(
        self,
        state: ServerState,
        experiment: Experiment,
        method: Method,
        predictions: FinalPredictions | None = None,
    ) -> RunResult:
        """model.safetensors, test-probabilities.npz and result.json.

        The result is written last: its presence means that the run is complete. `predictions` are
        those of the final model; None: this machine has no test images.
        """
        metadata = {
            "classes": json.dumps(experiment.table.classes),
            "model": self.config.model.name,
            "config": to_toml(self.config),
        }
        write_atomic(self.path / "model.safetensors", save_tensors(state.weights, metadata))
        if predictions is not None:
            write_atomic(self.path / PREDICTIONS, encode_predictions(predictions))
        rounds, timing = read_rounds(self.path), read_timing(self.path)
        result = summarise_run(rounds, timing, experiment, method.logged, predictions)
        write_atomic(self.path / "result.json", dumps(result.to_json()))
        return result


def make_setup(experiment: Experiment, signature: str) -> Setup:
    """What setup.json says about an experiment."""
    config, table = experiment.config, experiment.table
    labels = labels_in_use(config.data.labels or config.noise.given, table)
    is_head = config.model.name == OWN_FEATURES
    return Setup(
        data=DataSetup(
            name=table.name,
            fingerprint=table.fingerprint,
            classes=tuple(table.classes),
            order=table.order or None,
            shape=tuple(table.images.shape),
            white=table.white,
            feature_width=experiment.feature_width if is_head else None,
        ),
        test=0 if experiment.test is None else len(experiment.test),
        sites={name: _site_setup(experiment, name) for name in experiment.names},
        warnings=experiment.warnings,
        fingerprint=config.fingerprint(),
        signature=signature,
        weights=weights_digest(config),
        version=__version__,
        labels=None if labels is None else LabelsInUse.from_json(labels),
    )


def _json_line(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, sort_keys=True).encode() + b"\n"


def _site_setup(experiment: Experiment, name: str) -> SiteSetup:
    """Sizes and noise of a site; empty if its data is on another machine."""
    samples = experiment.sites.get(name)
    if samples is None:
        return SiteSetup()
    num_classes = experiment.table.num_classes
    truth = experiment.truth.get(name)
    realised_noise = None
    if truth is not None:
        counts = realised(truth, samples.labels, num_classes)
        realised_noise = RealisedSiteNoise.from_json(counts)
    return SiteSetup(
        num_samples=len(samples),
        given_per_class=tuple(np.bincount(samples.labels, minlength=num_classes).tolist()),
        noise=str(experiment.noise[name]),
        realised_noise=realised_noise,
    )


# ---- going back ----


# written at the end of a run
_RESULTS = ("result.json", "model.safetensors", "test-probabilities.npz", "report.html")


def rewind(folder: Path, first_round: int) -> None:
    """Go back to the checkpoint before `first_round`, counted from 1.

    What came after it is deleted: later checkpoints, lines of the log, and the result. A site's
    memory of later rounds is ignored and overwritten.
    """
    if first_round < 1:
        raise ConfigError(
            "cli.invalid-round",
            f"--from must be at least 1, got {first_round}",
            fix="give the number of the first round that is to be run again",
        )
    config = read_config(folder)
    with RunFolder(folder, config) as run_folder:
        checkpoint.go_back(run_folder.checkpoints, first_round - 1, config.fingerprint())
        for name in _RESULTS:
            remove_quietly(folder / name)
        run_folder.cut_metrics(first_round - 1)
