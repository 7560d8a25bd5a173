"""Which images a site has under which labels, as a run was set up with them.

    samples.safetensors       all images of the data source, by content, and their splits
    rows/<site>.safetensors   rows of the data source, given labels, labels that a person checked
    noise/<site>.csv          simulations with noise: file, true and given label, for people
    changes.jsonl             withdrawn patients, added images (changed_samples.py)

The audit and the correction of labels read them, so that they need not divide the data and draw its
noise again. True labels are apart: nothing of a site's own reads them.
"""

from __future__ import annotations

import hashlib
import io
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.data.duplicates import content_digests
from fedgsca.data.table import SPLITS, ImageTable, with_fingerprint
from fedgsca.errors import RunFolderError
from fedgsca.noise import NO_CLASS_NAME
from fedgsca.support.checked_labels import NO_ORIGINAL, CheckedLabels, mark_checked
from fedgsca.support.csv_table import write_cells
from fedgsca.support.files import write_atomic
from fedgsca.wire import read_metadata, save_tensors

if TYPE_CHECKING:
    from fedgsca.federation.simulation import Experiment

_FOLDER, _SUFFIX = "rows", ".safetensors"
RECORD = "samples.safetensors"
CHANGES = "changes.jsonl"


@dataclass(frozen=True)
class SiteRows:
    """The n samples of one site."""

    rows: np.ndarray  # (n,) int64, of the table
    given: np.ndarray  # (n,) int64 class indices
    checked: CheckedLabels | None  # by sample


def write_site_rows(folder: Path, site: str, samples: SiteRows) -> None:
    """Keep the samples of a site in a run's folder, or in that of a hospital."""
    write_atomic(rows_path(folder, site), encode_site_rows(site, samples))


def rows_path(folder: Path, site: str) -> Path:
    """Where the samples of a site are."""
    return folder / _FOLDER / f"{site}{_SUFFIX}"


def encode_site_rows(site: str, samples: SiteRows) -> bytes:
    """The content of the file."""
    checked = samples.checked
    n = len(samples.rows)
    arrays = {
        "rows": samples.rows.astype(np.int64),
        "given": samples.given.astype(np.int64),
        "checked": np.zeros(n, bool) if checked is None else checked.mask,
        "original": np.full(n, NO_ORIGINAL) if checked is None else checked.original,
    }
    return save_tensors(arrays, {"site": site})


def read_site_rows(folder: Path, site: str) -> SiteRows:
    """The samples of a site of this run."""
    from safetensors.numpy import load

    path = rows_path(folder, site)
    try:
        arrays = load(path.read_bytes())
        checked = mark_checked(arrays["checked"], arrays["original"])
        return SiteRows(arrays["rows"], arrays["given"], checked)
    except Exception as error:  # the library has errors of its own
        problem = error.strerror if isinstance(error, OSError) else error
        raise RunFolderError(
            "run.damaged-rows",
            f"{path}, which says which images {site} has, is damaged or missing: {problem}",
            fix="restore the file from a backup, or make the run again",
        ) from None


def sites_with_rows(folder: Path) -> list[str]:
    """Names of the sites whose samples this folder keeps."""
    return sorted(path.stem for path in (folder / _FOLDER).glob(f"*{_SUFFIX}"))


def mark_all_checked(sites: Mapping[str, SiteRows], num_rows: int) -> CheckedLabels | None:
    """The checked labels of all sites by row of the table."""
    mask = np.zeros(num_rows, bool)
    original = np.full(num_rows, NO_ORIGINAL)
    for samples in sites.values():
        if samples.checked is not None:
            mask[samples.rows] = samples.checked.mask
            original[samples.rows] = samples.checked.original
    return mark_checked(mask, original)


def keep_samples(folder: Path, experiment: Experiment) -> None:
    """Write the files of every site whose data is on this machine."""
    table = experiment.table
    if len(table) and (read_record(folder) or SampleRecord.empty()).fingerprint != (
        table.fingerprint
    ):
        write_atomic(folder / RECORD, SampleRecord.of(table).to_bytes())
    for name, samples in experiment.sites.items():
        site_rows = SiteRows(experiment.rows[name], samples.labels, samples.checked)
        write_site_rows(folder, name, site_rows)
        if name in experiment.truth:
            content = noise_csv(table, site_rows, experiment.truth[name])
            write_atomic(noise_file(folder, name), content)


def has_truth(folder: Path, site: str) -> bool:
    """Whether the run knows the true labels of a site: it is a simulation with noise."""
    return noise_file(folder, site).exists()


def noise_file(folder: Path, site: str) -> Path:
    """Where a simulation keeps the true labels of a site."""
    return folder / "noise" / f"{site}.csv"


def noise_csv(table: ImageTable, samples: SiteRows, truth: np.ndarray) -> bytes:
    """The content of that file: a line for each sample."""
    class_names = (*table.classes, NO_CLASS_NAME)  # the last one is also that of NO_CLASS, -1
    content = io.BytesIO()
    write_cells(content, ["file", "true", "given"])
    for row, true, given in zip(samples.rows, truth, samples.given, strict=True):
        write_cells(content, (str(table.ids[row]), class_names[true], class_names[given]))
    return content.getvalue()


# ---- all images of the source, by content ----


@dataclass(frozen=True)
class SampleRecord:
    """What the table was: a later one is compared with it, row by row, without its pixels."""

    # of the table
    fingerprint: str
    # (N, 16) uint8: digests of the pixels, and of the ids
    contents: np.ndarray
    names: np.ndarray
    # (N,) of "train" | "val" | "test"
    split: np.ndarray
    # (N,) int64: those of the table
    labels: np.ndarray
    classes: tuple[str, ...] = ()
    # pixels; 0: features only
    image_size: int = 0

    @staticmethod
    def of(table: ImageTable) -> SampleRecord:
        """The record of a table. Reads every image."""
        names = bytearray()
        for image_id in table.ids:
            text = str(image_id).encode(errors="surrogateescape")
            names += hashlib.blake2b(text, digest_size=16).digest()
        return SampleRecord(
            table.fingerprint,
            content_digests(table),
            np.frombuffer(bytes(names), np.uint8).reshape(len(table), 16),
            np.asarray(table.split),
            np.asarray(table.labels),
            table.classes,
            int(table.images.shape[1]),
        )

    @staticmethod
    def empty() -> SampleRecord:
        """The record of nothing."""
        none = np.zeros((0, 16), np.uint8)
        return SampleRecord("", none, none, np.zeros(0, "<U5"), np.zeros(0, np.int64))

    def to_bytes(self) -> bytes:
        """The content of the file."""
        codes = np.array([SPLITS.index(name) for name in self.split.tolist()], np.uint8)
        arrays = {"contents": self.contents, "names": self.names, "split": codes}
        arrays["labels"] = self.labels.astype(np.int64)
        facts = {"fingerprint": self.fingerprint, "classes": self.classes, "size": self.image_size}
        return save_tensors(arrays, facts)

    def find(self, table: ImageTable) -> np.ndarray:
        """(n,) int64: for every row of a table the row of this record, -1 for a new image.

        Of identical images, those of one name belong together, then the first to the first.
        """
        later = SampleRecord.of(table)
        by_key: dict[bytes, list[int]] = defaultdict(list)
        for row in reversed(range(len(self.contents))):
            by_key[self.contents[row].tobytes()].append(row)
        old_rows = np.full(len(table), -1, np.int64)
        for has_name in (True, False):
            for row in np.flatnonzero(old_rows < 0).tolist():
                places = by_key.get(later.contents[row].tobytes(), [])
                for place in reversed(places):
                    if not has_name or (self.names[place] == later.names[row]).all():
                        old_rows[row] = place
                        places.remove(place)
                        break
        return old_rows


def read_record(folder: Path) -> SampleRecord | None:
    """The record of a run, or of a hospital's own folder; None for those of earlier versions."""
    from safetensors.numpy import load

    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        content = path.read_bytes()
        arrays, facts = load(content), read_metadata(content)
        return SampleRecord(
            str(facts["fingerprint"]),
            arrays["contents"],
            arrays["names"],
            np.array(SPLITS)[arrays["split"]],
            arrays["labels"],
            tuple(facts["classes"]),  # type: ignore[arg-type]
            int(str(facts["size"])),
        )
    except Exception as error:  # the library has errors of its own
        raise RunFolderError(
            "run.damaged-rows",
            f"{path}, which says which images there were, is damaged: {error}",
            fix="restore the file from a backup, or make the run again",
        ) from None


def is_changed(folder: Path) -> bool:
    """Whether patients were withdrawn from this run, or images added, since it began."""
    return (folder / CHANGES).exists()


def keep_split(table: ImageTable, folder: Path | None, share: float, seed: int) -> ImageTable:
    """The table with the splits that its images have in a study that has begun.

    Only where the reader drew them: another draw would move images between training and test when
    a patient leaves. New images follow those of their patient; a hash decides about new patients,
    of whom about `share` become test images.
    """
    record = None if folder is None else read_record(folder)
    if record is None or not table.has_drawn_split or record.fingerprint == table.fingerprint:
        return table
    old_rows = record.find(table)
    is_old = old_rows >= 0
    split = np.array(table.split)
    split[is_old] = record.split[old_rows[is_old]]
    old_splits: dict[str, str] = {}
    if table.groups is not None:
        old_splits = dict(zip(table.groups[is_old].tolist(), split[is_old].tolist(), strict=True))
    for row in np.flatnonzero(~is_old):
        unit = str(table.ids[row] if table.groups is None else table.groups[row])
        digest = hashlib.sha256(repr((seed, "split", unit)).encode()).digest()
        drawn_split = "test" if int.from_bytes(digest[:4], "big") < share * 2**32 else "train"
        split[row] = old_splits.get(unit, drawn_split)
    return with_fingerprint(table, split=split)
