"""Results as tables of records, and as data frames where pandas is installed.

    run.to_frame()              one row per round
    run.to_frame("sites")       one row per round and site
    comparison.to_frame()       one row per run: method, noise, seed and scores
    run.selection("site-2")     what a method said about every label of a site

The columns are those of the functions below; docs/python.md describes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedgsca.errors import ConfigError, MissingExtraError, RunFolderError
from fedgsca.federation.records import RoundRecord
from fedgsca.federation.run_folder import read_config, read_setup
from fedgsca.lab.records import ComparisonCell, setting_name, setting_value

if TYPE_CHECKING:
    import pandas as pd

Rows = list[dict[str, Any]]
FrameKind = Literal["rounds", "sites"]
# fields of RoundRecord that are single numbers
_ROUND_COLUMNS = (
    "f1",
    "recall",
    "precision",
    "loss",
    "val_f1",
    "expected_f1",
    "lr",
    "stability",
    "bytes_up",
    "bytes_down",
)
# fields of ComparisonCell that are columns of their own names
_CELL_COLUMNS = tuple(
    item.name
    for item in fields(ComparisonCell)
    if item.name not in ("notes", "settings", "class_recall")
)


def make_frame(rows: Rows) -> pd.DataFrame:
    """A data frame of records; an error that names the package if pandas is not installed."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError(
            "extra.pandas-missing",
            "a data frame needs a package that is not installed: pandas",
            fix="pip install pandas, or read compare.csv and metrics.jsonl",
        ) from None
    return pd.DataFrame.from_records(rows)


def round_rows(rounds: Sequence[RoundRecord], kind: FrameKind = "rounds") -> Rows:
    """One row per round, numbered from 1; or one per round and site with the site's numbers."""
    rows: Rows = []
    if kind not in ("rounds", "sites"):
        raise ConfigError(
            "run.unknown-frame",
            f"there is no data frame of {kind!r}",
            fix='use to_frame() or to_frame("sites")',
        )
    for record in rounds:
        if kind == "rounds":
            numbers = {name: getattr(record, name) for name in _ROUND_COLUMNS}
            sizes = {"sites": len(record.sites), "refused": len(record.refusals)}
            rows.append({"round": record.round + 1, **numbers, **sizes})
            continue
        for name, site in record.sites.items():
            values = {key: value for key, value in site.values.items() if np.ndim(value or 0) == 0}
            rows.append(
                {"round": record.round + 1, "site": name, "images": site.num_samples, **values}
            )
    return rows


def cell_rows(cells: Sequence[ComparisonCell]) -> Rows:
    """One row per finished run of a comparison, with its seed and the recall of every class."""
    rows: Rows = []
    for cell in cells:
        row: dict[str, Any] = {name: getattr(cell, name) for name in _CELL_COLUMNS}
        for key, value in (cell.settings or {}).items():
            row[setting_name(key)] = setting_value(value)
        for name, recall in (cell.class_recall or {}).items():
            row[f"recall of {name}"] = recall
        rows.append(row)
    return rows


@dataclass(frozen=True)
class SiteSelection:
    """What a method said about the n labels of a site in its newest selection.

    Class names are strings. None in a simulation's column: the run does not know it.
    """

    site: str
    # from 1
    round: int
    # (n,) names of the images in the data set
    files: np.ndarray
    # (n,) class names
    given: np.ndarray
    # (n,) class names; simulations only
    true: np.ndarray | None
    # (n,) bool: taken as noisy
    noisy: np.ndarray
    # (n,) probability that the given label is correct; None: the method has none
    posterior: np.ndarray | None
    # (n,) loss against the given label; None: the method logs none
    loss: np.ndarray | None
    # (n,) class names, empty where the method trained on no other label than the given one
    pseudo_label: np.ndarray

    def __len__(self) -> int:
        return len(self.files)

    def to_rows(self) -> Rows:
        """One row per label; the columns are the arrays of this class."""
        columns = {
            name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        lists = [column.tolist() for column in columns.values()]
        return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]

    def to_frame(self) -> pd.DataFrame:
        """The same as a data frame."""
        return make_frame(self.to_rows())


def read_selection(folder: Path, site: str) -> SiteSelection:
    """The newest selection of a site from the folder of a run on this machine."""
    from fedgsca.federation.simulation import divide

    config = read_config(folder)
    path = folder / "losses" / f"{site}.npz"
    if site not in read_setup(folder).sites or config.data.source == "sites":
        raise RunFolderError(
            "run.unknown-site",
            f"the run in {folder} has no labels of {site!r} on this machine",
            fix="name a site of the run: " + ", ".join(list(read_setup(folder).sites)[:8]),
        )
    if not path.is_file():
        raise RunFolderError(
            "run.no-selection",
            f"{folder} has no selection of {site}: the method {config.method} selects no labels,"
            " or the run was too short, or federation.keep_losses is off",
            fix="run a method that selects labels, such as fedgsca, for more rounds",
        )
    division = divide(config)
    if division.table.fingerprint != read_setup(folder).data.fingerprint:
        raise RunFolderError(
            "run.data-changed",
            f"the images or labels of {folder} have changed since the run",
            fix="restore the data as it was",
        )
    with np.load(path, allow_pickle=False) as arrays:
        notes = dict(arrays)
    given = np.asarray(division.given[site])
    truth = division.truth.get(site)
    classes = np.array(division.table.classes)
    pseudo = np.full(len(given), "", dtype=classes.dtype)
    if "pseudo_rows" in notes:
        pseudo[notes["pseudo_rows"]] = classes[notes["pseudo_labels"]]
    # an image of none of the classes has a number beyond them
    names = np.append(classes, "")
    return SiteSelection(
        site=site,
        round=int(notes["round"]) + 1,
        files=np.asarray(division.table.ids[division.rows[site]], dtype=str),
        given=classes[given],
        true=None if truth is None else names[np.clip(truth, -1, len(classes))],
        noisy=~np.asarray(notes["clean"], dtype=bool),
        posterior=notes.get("clean_probability"),
        loss=notes.get("losses"),
        pseudo_label=pseudo,
    )
