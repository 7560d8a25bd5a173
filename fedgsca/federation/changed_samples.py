"""A study goes on with other samples: patients have left, or a hospital has added images.

What a site remembers has an entry for each of its samples. Here every entry follows its sample, by
content: in all versions of the memory, so that no restart brings a patient back. New samples get
what the method remembers about samples that it has never seen (`Method.new_memory`). The result
depends on nothing but the folder and the images, so a run that goes on from here is deterministic.

All files appear together, changes.jsonl last: `SampleChange`, one line for each change. The global
model is not touched: it was trained with the patients, and the model card says so.
"""

from __future__ import annotations

import getpass
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fedgsca.errors import DataError, RunFolderError
from fedgsca.federation import checkpoint
from fedgsca.federation.final_statistics import FILE as PREDICTIONS
from fedgsca.federation.final_statistics import (
    FinalPredictions,
    encode_predictions,
    read_predictions_file,
)
from fedgsca.federation.label_evidence import encode_header, read_header
from fedgsca.federation.run_folder import dumps, make_setup, read_lines
from fedgsca.federation.simulation import Experiment
from fedgsca.federation.site_rows import (
    CHANGES,
    RECORD,
    SampleRecord,
    SiteRows,
    encode_site_rows,
    has_truth,
    noise_csv,
    noise_file,
    read_record,
    read_site_rows,
    rows_path,
    sites_with_rows,
)
from fedgsca.methods.base import compose_method
from fedgsca.methods.parts.evidence_store import empty_arrays
from fedgsca.methods.site_store import Store
from fedgsca.support.files import FileBatch
from fedgsca.support.text import plural
from fedgsca.wire import Arrays

SIGNATURE = "signature"  # of a hospital's own folder: its images and labels


@dataclass(frozen=True)
class SampleChange:
    """A line of changes.jsonl: what was done, without names of patients or files."""

    time: str
    by: str  # the user of this computer
    rounds: int  # that were trained before
    patients: int = 0
    removals: Mapping[str, int] = field(default_factory=dict)  # site, or "test" -> images
    additions: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_removed(self) -> int:
        """Images."""
        return sum(self.removals.values())


def read_changes(folder: Path) -> list[SampleChange]:
    """All changes since the run began."""
    changes = []
    for tree in read_lines(folder / CHANGES):
        time, person = str(tree.get("time", "")), str(tree.get("by", ""))
        rounds, patients = int(tree.get("rounds", 0)), int(tree.get("patients", 0))
        removals, additions = dict(tree.get("removals", {})), dict(tree.get("additions", {}))
        changes.append(SampleChange(time, person, rounds, patients, removals, additions))
    return changes


def follow_samples(
    folder: Path,
    experiment: Experiment,
    *,
    patients: int = 0,
    may_add: bool = False,
    is_hospital: bool = False,
) -> SampleChange | None:
    """Let the study in a folder go on with the samples of `experiment`; None: nothing differs.

    `patients` who have left are counted in the record. Nothing changes if this raises an error.
    """
    record = _needed_record(folder)
    if record.fingerprint == experiment.table.fingerprint and not patients:
        return None
    move = _Move(folder, experiment, record.find(experiment.table), FileBatch())
    is_old = move.old_rows >= 0
    changed_labels = record.labels[move.old_rows[is_old]] != experiment.table.labels[is_old]
    if changed_labels.any():
        raise _labels_changed(folder, int(changed_labels.sum()))
    moves = {name: _site_move(move, name) for name in sites_with_rows(folder)}
    is_gone = np.setdiff1d(np.arange(len(record.split)), move.old_rows)
    change = SampleChange(
        datetime.now(UTC).isoformat(timespec="seconds"),
        getpass.getuser(),
        _rounds_so_far(folder),
        patients,
        _count_removed(record, is_gone, moves),
        _count_added(moves),
    )
    num_added = sum(change.additions.values())
    if num_added and not may_add:
        raise DataError(
            "withdraw.images-added",
            f"{folder}: {plural(num_added, 'image')} of the source were not there when the run"
            " began",
            fix="take them away, or, at a hospital, accept them with `fedgsca withdraw --added`",
        )
    try:
        for name, site in moves.items():
            _move_site(move, name, site)
        _move_predictions(move)
        _write_identity(move, change, is_hospital=is_hospital)
        move.files.commit()
    except BaseException:
        move.files.discard()
        raise
    return change


def _needed_record(folder: Path) -> SampleRecord:
    record = read_record(folder)
    if record is None:
        raise RunFolderError(
            "withdraw.no-record",
            f"{folder} does not say which images it began with: it was begun with an earlier"
            " version, or has not begun",
            fix="finish it with that version, or start a new run without the patient",
        )
    return record


@dataclass(frozen=True)
class _Move:
    """From the samples that a folder knows to those of an experiment."""

    folder: Path
    experiment: Experiment
    old_rows: np.ndarray  # (N,) for every row of the new table that of the old one, or -1
    files: FileBatch


@dataclass(frozen=True)
class _SiteMove:
    """The same for one site."""

    old: SiteRows
    positions: np.ndarray  # (n,) for every sample of the site its old number, or -1


def _site_move(move: _Move, name: str) -> _SiteMove:
    old = read_site_rows(move.folder, name)
    old_position = {row: i for i, row in enumerate(old.rows.tolist())}
    old_rows = move.old_rows[move.experiment.rows[name]].tolist()
    positions = np.array([old_position.get(row, -1) for row in old_rows], np.int64)
    is_old = positions >= 0
    num_moved = int(np.sum(~is_old & (move.old_rows[move.experiment.rows[name]] >= 0)))
    if num_moved:
        raise DataError(
            "withdraw.split-changed",
            f"{name}: {plural(num_moved, 'training image')} had another place when the run began",
            fix="restore the columns split and site of labels.csv",
        )
    labels = move.experiment.sites[name].labels
    num_relabelled = int(np.sum(old.given[positions[is_old]] != labels[is_old]))
    if num_relabelled:
        raise _labels_changed(move.folder, num_relabelled)
    return _SiteMove(old, positions)


def _labels_changed(folder: Path, count: int) -> DataError:
    return DataError(
        "withdraw.labels-changed",
        f"{folder}: {plural(count, 'label')} of images that stay changed, too",
        fix="restore these labels; corrected labels need a new run",
    )


def _count_removed(
    record: SampleRecord, lost_rows: np.ndarray, moves: Mapping[str, _SiteMove]
) -> dict[str, int]:
    """Images by site, and those of no site by split."""
    counts = {}
    of_sites: list[int] = []
    for name, site in moves.items():
        counts[name] = int(np.isin(site.old.rows, lost_rows).sum())
        of_sites += site.old.rows.tolist()
    other_rows = np.setdiff1d(lost_rows, of_sites)
    for split in ("val", "test"):
        counts[split] = int(np.sum(record.split[other_rows] == split))
    return {name: count for name, count in counts.items() if count}


def _count_added(moves: Mapping[str, _SiteMove]) -> dict[str, int]:
    counts = {name: int(np.sum(site.positions < 0)) for name, site in moves.items()}
    return {name: count for name, count in counts.items() if count}


# ---- the files of a site ----


def _move_site(move: _Move, name: str, site: _SiteMove) -> None:
    """Memory, evidence, selection, rows and true labels of one site."""
    experiment = move.experiment
    samples = experiment.sites[name]
    seed = experiment.config.seed
    first_memory = compose_method(experiment.config).new_memory(samples, name, seed)
    root = move.folder / "store" / name
    for place in _stores(root):
        part = "" if place == root else place.relative_to(root).as_posix()
        Store(place, move.files).rewrite(_follow(site, first_memory.get(part, {})))
    evidence = move.folder / "evidence" / name
    if evidence.is_dir():
        empty = empty_arrays(len(samples), samples.num_classes)
        Store(evidence, move.files).rewrite(_follow(site, empty))
        if (evidence / "site.json").exists():
            header = replace(
                read_header(move.folder, name),
                samples=len(samples),
                fingerprint=experiment.table.fingerprint,
            )
            move.files.write(evidence / "site.json", encode_header(header))
    _move_selection(move, name, site)
    rows = SiteRows(experiment.rows[name], samples.labels, samples.checked)
    move.files.write(rows_path(move.folder, name), encode_site_rows(name, rows))
    if has_truth(move.folder, name):
        truth = experiment.table.labels[rows.rows]
        content = noise_csv(experiment.table, rows, truth)
        move.files.write(noise_file(move.folder, name), content)


def _stores(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield root
        yield from sorted(path for path in root.rglob("*") if path.is_dir())


def _follow(
    site: _SiteMove, first_memory: Mapping[str, np.ndarray]
) -> Callable[[Mapping[str, np.ndarray]], Arrays]:
    """A function that lets the arrays named in `first_memory` follow their samples."""
    size = len(site.old.rows)
    is_old = site.positions >= 0

    def change(arrays: Mapping[str, np.ndarray]) -> Arrays:
        new_arrays = dict(arrays)
        for name, values in first_memory.items():
            if name in arrays and len(arrays[name]) == size:  # it may be empty
                new_arrays[name] = values.astype(arrays[name].dtype)
                new_arrays[name][is_old] = arrays[name][site.positions[is_old]]
        return new_arrays

    return change


def _move_selection(move: _Move, name: str, site: _SiteMove) -> None:
    """losses/<site>.npz, for the report: without new samples, of which nothing is known."""
    path = move.folder / "losses" / f"{name}.npz"
    if not path.is_file():
        return
    positions = site.positions[site.positions >= 0]
    with np.load(path, allow_pickle=False) as content:
        arrays = dict(content)
    for key, values in arrays.items():
        if values.ndim and len(values) == len(site.old.rows):
            arrays[key] = values[positions]
    data = io.BytesIO()
    np.savez(data, **arrays)  # type: ignore[arg-type]
    move.files.write(path, data.getvalue())


# ---- the files of the study ----


def _move_predictions(move: _Move) -> None:
    """The final model's probabilities of test images."""
    predictions = read_predictions_file(move.folder)
    if predictions is None:
        return
    table = move.experiment.table
    keeps = np.isin(predictions.ids, table.ids[table.rows("test")])
    columns = (predictions.groups, predictions.sites)
    groups, sites = (None if column is None else column[keeps] for column in columns)
    remaining = FinalPredictions(
        predictions.ids[keeps], predictions.labels[keeps], predictions.probs[keeps], groups, sites
    )
    move.files.write(move.folder / PREDICTIONS, encode_predictions(remaining))


def _write_identity(move: _Move, change: SampleChange, *, is_hospital: bool) -> None:
    """What says with which samples the study goes on, and the record of the change."""
    experiment = move.experiment
    signature = experiment.signature()
    if is_hospital:
        move.files.write(move.folder / SIGNATURE, signature.encode())
    else:
        setup = make_setup(experiment, signature)
        move.files.write(move.folder / "setup.json", dumps(setup.to_json()))
        move.files.remove_later(move.folder / "report.html")
    move.files.write(move.folder / RECORD, SampleRecord.of(experiment.table).to_bytes())
    changes = [vars(line) for line in (*read_changes(move.folder), change)]
    text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in changes)
    move.files.write(move.folder / CHANGES, text.encode())


def _rounds_so_far(folder: Path) -> int:
    """Rounds that a run has finished, or in which a hospital has taken part."""
    rounds = [checkpoint.round_of(path) for path in checkpoint.paths(folder / "checkpoint")]
    for place in _stores(folder / "store"):
        rounds += [version + 1 for version in Store(place).versions()]
    return max(rounds, default=0)
