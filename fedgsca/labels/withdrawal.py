"""A patient leaves a study: out of the data, the cache, the memory, the audit and all lists.

Every step can be repeated: after a crash, the same command finishes what it began. The order is
such that a patient never comes back: first the list beside the data, from then on nothing reads
the images, then the cache, then what was made of them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedgsca.config import SITES_SOURCE, Config
from fedgsca.data.cache import list_cache, remove_cached
from fedgsca.data.file_list import show_cases
from fedgsca.data.load import find_reader
from fedgsca.data.reader import ReaderOptions
from fedgsca.data.relabel import remove_lines
from fedgsca.data.withdrawn import (
    WithdrawnList,
    list_path,
    new_list,
    patient_of,
    read_withdrawn,
    write_withdrawn,
)
from fedgsca.errors import ConfigError, DataError, RunFolderError
from fedgsca.federation.changed_samples import SampleChange, follow_samples
from fedgsca.federation.run_folder import RunFolder, read_config
from fedgsca.federation.simulation import Experiment, prepare_remaining
from fedgsca.federation.site_rows import RECORD
from fedgsca.hospital.ledger import Ledger
from fedgsca.hospital.settings import SiteSettings, read_settings
from fedgsca.labels import decisions
from fedgsca.labels.site_data import SETTINGS
from fedgsca.support.files import remove_quietly, try_lock, write_atomic
from fedgsca.support.text import did_you_mean, plural

# of an audit: all but the decisions, which follow their images, and the trail, which names none
_AUDIT_FILES = (
    "audit.json",
    "audit.csv",
    "suspects.jsonl",
    "suspects.idx",
    "clean.json",
    "features.safetensors",
    "gallery.html",
)


@dataclass(frozen=True)
class Withdrawal:
    """What was done."""

    source: str
    # images of the patients in the source; 0 if they are not there any more
    num_images: int
    # the list beside the data; None: nobody was named
    list_file: Path | None
    # files of the cache that were removed
    num_cached: int
    # run folder, or folder of a hospital's experiment -> what changed; None: nothing
    changes: Mapping[Path, SampleChange | None]
    # audits that must be made again
    audits: Sequence[Path] = ()
    # csv files of labels without the patients' lines
    label_files: Sequence[Path] = ()


@dataclass(frozen=True)
class _Study:
    """Data, and the folders of what was made of it."""

    source: str
    folders: Sequence[Path] = ()
    settings: SiteSettings | None = None
    labels: Sequence[Path] = ()


def withdraw(patients: Sequence[str], place: Path, *, takes_new: bool = False) -> Withdrawal:
    """Take patients out of a study, which goes on with the images that remain.

    Parameters
    ----------
    patients
        As in the column `group`, or the patient id of DICOM files; also single files. Without any,
        the study only follows data from which somebody has removed images.
    place
        The folder of a run or comparison, a hospital's kit or site.toml (with all experiments of
        its state folder), or a folder of images.
    takes_new
        At a hospital: images that are new become part of the study, up to the agreed number.
    """
    study = _find_study(place)
    if list_path(study.source) is None:
        raise DataError(
            "withdraw.no-patients",
            f"{study.source} is not a folder or file of images, so no patient can leave it",
            fix="give the place of a study with images of patients",
        )
    with _locks(study):
        withdrawn, num_images = _list_patients(study.source, patients)
        list_file = None
        files: list[Path] = []
        if patients:
            list_file = write_withdrawn(study.source, withdrawn)
            files = [file for file in _label_files(study) if remove_lines(file, withdrawn)]
        cache_files = list_cache()
        remove_cached(cache_files)
        changes: dict[Path, SampleChange | None] = {}
        audits: list[Path] = []
        for folder in study.folders:
            experiment = _open_experiment(study, folder)
            change = follow_samples(
                folder,
                experiment,
                patients=len(patients),
                may_add=takes_new,
                is_hospital=study.settings is not None,
            )
            changes[folder] = change
            if change is not None:
                if study.settings is not None:
                    _note_in_ledger(study.settings, read_config(folder), change)
                audits += _clear_audits(folder, experiment)
    return Withdrawal(study.source, num_images, list_file, len(cache_files), changes, audits, files)


# ---- where ----


def _find_study(place: Path) -> _Study:
    file = place / SETTINGS if place.is_dir() else place
    if file.name.endswith(".toml") and file.is_file():
        settings = read_settings(file)
        if settings.data is None:
            raise ConfigError(
                "withdraw.no-data",
                f"{file} names no data: this site is part of a rehearsal",
                fix="give the site.toml of a hospital with its own images",
            )
        state = Path(settings.state).expanduser()
        folders = sorted(path.parent for path in state.glob(f"*/{RECORD}"))
        labels = [Path(settings.labels).expanduser()] if settings.labels else []
        return _Study(settings.data, folders, settings, labels)
    folders = sorted(path.parent for path in place.glob("cells/*/config.toml"))
    if (place / "config.toml").is_file():
        folders = [place]
    if not folders:
        if not place.exists():
            raise RunFolderError(
                "run.folder-not-found",
                f"there is no folder {place}",
                fix="give a run, a hospital's kit or site.toml, or a folder of images",
            )
        return _Study(str(place))
    configs = [read_config(folder) for folder in folders]
    if configs[0].data.source == SITES_SOURCE:
        raise ConfigError(
            "withdraw.coordinator",
            f"{place} is the run of a coordinator, who has none of the hospitals' images",
            fix="the hospital runs this command with its own site.toml",
        )
    names = {config.data.labels for config in configs} | {config.noise.given for config in configs}
    labels = sorted(Path(name).expanduser() for name in names if name is not None)
    return _Study(configs[0].data.source, folders, labels=labels)


def _label_files(study: _Study) -> list[Path]:
    """The csv files of corrected labels that the study uses, or that `apply` wrote beside it."""
    files = list(study.labels)
    path = list_path(study.source)
    if path is not None:
        for log in sorted(path.parent.glob("*.changes.json")):
            files.append(log.with_name(f"{log.name.removesuffix('.changes.json')}.csv"))
    return [file for file in dict.fromkeys(files) if file.is_file()]


@contextlib.contextmanager
def _locks(study: _Study) -> Iterator[None]:
    """No run and no site worker changes the folders meanwhile."""
    with contextlib.ExitStack() as stack:
        if study.settings is None:
            for folder in study.folders:
                stack.enter_context(RunFolder(folder, read_config(folder)))
        elif study.folders:
            lock = try_lock(Path(study.settings.state).expanduser() / "worker.lock")
            if lock is None:
                raise RunFolderError(
                    "withdraw.site-is-running",
                    f"the service of {study.settings.name} is running and has the images open",
                    fix="stop it (systemctl stop fedgsca, or end start.sh), withdraw, start it"
                    " again: the study goes on",
                )
            stack.callback(lock.release)
        yield


# ---- whom ----


def _list_patients(source: str, patients: Sequence[str]) -> tuple[WithdrawnList, int]:
    """The list of a source with more patients, and how many images of these there are."""
    withdrawn = read_withdrawn(source) or new_list()
    root, images = _read_images(source)
    unknown_names = []
    images_of_patients: set[str] = set()
    for patient in dict.fromkeys(patients):
        own_images = [image for image in images if image.is_of(patient)]
        if not own_images and not any(withdrawn.has(kind, patient) for kind in ("group", "file")):
            unknown_names.append(patient)
            continue
        images_of_patients.update(image.name for image in own_images)
        headers = {image.header for image in own_images if not image.is_named(patient)} - {""}
        withdrawn = withdrawn.add("patient", headers)
        if any(image.group == patient for image in own_images) or headers:
            withdrawn = withdrawn.add("group", [patient])
        withdrawn = withdrawn.add("file", [image.name for image in own_images])
        withdrawn = withdrawn.add_files(root, [image.file for image in own_images if image.file])
    if unknown_names:
        names = {image.group for image in images} | {image.name for image in images} - {""}
        cases = f"{plural(len(unknown_names), 'name')} without images: {show_cases(unknown_names)}"
        raise DataError(
            "withdraw.unknown-patient",
            f"{source}: {cases}; nothing was changed",
            fix=f"{did_you_mean(unknown_names[0], sorted(names))}give the values of the column"
            " group (the patient), the patient id of DICOM files, or file names",
        )
    return withdrawn, len(images_of_patients)


@dataclass(frozen=True)
class _Image:
    """An image of the source: its id, its file below the root, its group and DICOM patient."""

    name: str
    file: str
    group: str
    header: str

    def is_named(self, name: str) -> bool:
        """By its id or its file."""
        return name in (self.name, self.file)

    def is_of(self, patient: str) -> bool:
        """Whether it belongs to a patient, or is the file of this name."""
        ids = {self.group, self.header, self.header.rpartition("\\")[2]} - {""}
        return self.is_named(patient) or patient in ids


def _read_images(source: str) -> tuple[Path, list[_Image]]:
    """The root of a source, and its images with the patients that are not listed yet."""
    reader, location = find_reader(source)
    root = Path(location).expanduser()
    if reader.list_images is None:
        assert reader.read is not None
        table = reader.read(location, ReaderOptions())
        groups = np.full(len(table), "") if table.groups is None else table.groups
        pairs = zip(table.ids.tolist(), groups.tolist(), strict=True)
        return root, [_Image(str(name), "", str(group), "") for name, group in pairs]
    images = []
    for row in reader.list_images(root, ReaderOptions()).rows:
        header = patient_of(root / row.file) if row.file else ""
        images.append(_Image(row.name or row.file, row.file, row.group, header))
    return root, images


# ---- what was made of them ----


def _open_experiment(study: _Study, folder: Path) -> Experiment:
    config: Config = read_config(folder)
    if study.settings is None:
        return prepare_remaining(config, folder)
    from fedgsca.hospital.answers import open_own_experiment, with_own_weights

    return open_own_experiment(with_own_weights(config, study.settings), study.settings, folder)


def _note_in_ledger(settings: SiteSettings, config: Config, change: SampleChange) -> None:
    fields = (
        plural(change.patients, "withdrawn patient"),
        plural(change.num_removed, "image") + " less",
        plural(sum(change.additions.values()), "image") + " more",
    )
    fingerprint = config.fingerprint()
    Ledger(settings).append("withdrawn", fingerprint, change.by, round=change.rounds, fields=fields)


def _clear_audits(folder: Path, experiment: Experiment) -> list[Path]:
    """Remove what audits say about images; decisions about images that remain are kept."""
    audits = []
    table = experiment.table
    rows = {**experiment.rows, "test": table.rows("test")}
    for path in sorted((folder / "audit").glob("*/audit.json")):
        audit = path.parent
        if audit.name in rows:
            numbers = {str(name): i for i, name in enumerate(table.ids[rows[audit.name]])}
            _renumber_decisions(audit / decisions.FILE, numbers)
            for name in _AUDIT_FILES:
                remove_quietly(audit / name)
            audits.append(audit)
    return audits


def _renumber_decisions(path: Path, numbers: Mapping[str, int]) -> None:
    """Keep the decisions about images that remain, under their new row numbers."""
    if not path.is_file():
        return
    lines = []
    for line in path.read_bytes().split(b"\n"):
        decision = decisions.parse_decision(line)
        if decision is not None and decision.id in numbers:
            new_decision = replace(decision, row=numbers[decision.id])
            lines.append(json.dumps(vars(new_decision), ensure_ascii=False).encode() + b"\n")
    write_atomic(path, b"".join(lines))
