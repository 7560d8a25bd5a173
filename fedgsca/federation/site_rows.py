"""Which images a site has under which labels, as a run was set up with them.

    rows/<site>.safetensors   rows of the data source, given labels, labels that a person checked
    noise/<site>.csv          simulations with noise: file, true and given label, for people

The audit and the correction of labels read them, so that they need not divide the data and draw its
noise again. True labels are apart: nothing of a site's own reads them.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.data.table import ImageTable
from fedgsca.errors import RunFolderError
from fedgsca.noise import NO_CLASS_NAME
from fedgsca.support.checked_labels import NO_ORIGINAL, CheckedLabels, mark_checked
from fedgsca.support.csv_table import write_cells
from fedgsca.support.files import write_atomic
from fedgsca.wire import save_tensors

if TYPE_CHECKING:
    from fedgsca.federation.simulation import Experiment

_FOLDER, _SUFFIX = "rows", ".safetensors"


@dataclass(frozen=True)
class SiteRows:
    """The n samples of one site."""

    rows: np.ndarray  # (n,) int64, of the table
    given: np.ndarray  # (n,) int64 class indices
    checked: CheckedLabels | None  # by sample


def write_site_rows(folder: Path, site: str, samples: SiteRows) -> None:
    """Keep the samples of a site in a run's folder, or in that of a hospital."""
    checked = samples.checked
    n = len(samples.rows)
    arrays = {
        "rows": samples.rows.astype(np.int64),
        "given": samples.given.astype(np.int64),
        "checked": np.zeros(n, bool) if checked is None else checked.mask,
        "original": np.full(n, NO_ORIGINAL) if checked is None else checked.original,
    }
    write_atomic(folder / _FOLDER / f"{site}{_SUFFIX}", save_tensors(arrays, {"site": site}))


def read_site_rows(folder: Path, site: str) -> SiteRows:
    """The samples of a site of this run."""
    from safetensors.numpy import load

    path = folder / _FOLDER / f"{site}{_SUFFIX}"
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


def keep_samples(folder: Path, experiment: Experiment) -> None:
    """Write both files of every site whose data is on this machine."""
    for name, samples in experiment.sites.items():
        site_rows = SiteRows(experiment.rows[name], samples.labels, samples.checked)
        write_site_rows(folder, name, site_rows)
        if name in experiment.truth:
            content = _noise_csv(experiment.table, site_rows, experiment.truth[name])
            write_atomic(_noise_file(folder, name), content)


def has_truth(folder: Path, site: str) -> bool:
    """Whether the run knows the true labels of a site: it is a simulation with noise."""
    return _noise_file(folder, site).exists()


def _noise_file(folder: Path, site: str) -> Path:
    return folder / "noise" / f"{site}.csv"


def _noise_csv(table: ImageTable, samples: SiteRows, truth: np.ndarray) -> bytes:
    class_names = (*table.classes, NO_CLASS_NAME)  # the last one is also that of NO_CLASS, -1
    content = io.BytesIO()
    write_cells(content, ["file", "true", "given"])
    for row, true, given in zip(samples.rows, truth, samples.given, strict=True):
        write_cells(content, (str(table.ids[row]), class_names[true], class_names[given]))
    return content.getvalue()
