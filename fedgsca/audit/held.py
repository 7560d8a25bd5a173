"""What a site holds: its images, the labels given to them and, in a simulation, the true ones.

The audit and the review see a site's data through this, whether the site is part of a simulation or a hospital of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.config import Config, build, merge
from fedgsca.data.table import Table
from fedgsca.engine.folder import read_config
from fedgsca.errors import DataError, RunFolderError


@dataclass(frozen=True)
class Held:
    """Rows of a site, 0 to n - 1, are what evidence, audit and decisions count by; `rows` says where they are in the table."""

    config: Config
    site: str
    source: str  # as it was found: an absolute path, or a built-in name
    table: Table
    rows: np.ndarray  # (n,) table rows
    given: np.ndarray  # (n,) class indices
    truth: np.ndarray | None  # (n,) class indices, where noise was injected

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def root(self) -> Path | None:
        """The folder with the original files, where the source is one."""
        path = _parts(self.source)[1]
        return path if path.is_dir() else None


def open_sites(run: Path, source: str | None = None) -> dict[str, Held]:
    """All sites whose data is on this machine. `source` is where the data is now, if it was moved since the run."""
    from fedgsca.experiment import prepare

    config = read_config(run)
    if source is not None:
        config = build(merge(config.to_tree(), {"data": {"source": source}}))
    experiment = prepare(config)
    where = _absolute(config.data.source)
    return {
        name: Held(
            config, name, where, experiment.table, rows, experiment.sites[name].labels, experiment.truth.get(name)
        )
        for name, rows in experiment.rows.items()
    }  # fmt: skip


def open_site(run: Path, site: str, source: str | None = None) -> Held:
    held = open_sites(run, source)
    if site not in held:
        raise RunFolderError(f"{run} has no site {site!r}", fix=f"the sites are {', '.join(sorted(held))}")
    return held[site]


def check_data(held: Held, header: dict[str, Any]) -> None:
    """The images and labels must be those that were audited."""
    if held.table.fingerprint != header["data"]["fingerprint"]:
        raise DataError(
            f"the data in {held.source} is not what was audited: its images, labels or split have changed",
            fix="restore the data as it was, or run `fedgsca run` and `fedgsca audit` again on the new data",
        )


def _absolute(source: str) -> str:
    """A path as seen from anywhere; the kind before it, and built-in names, stay."""
    kind, path = _parts(source)
    return kind + str(path.resolve()) if path.exists() else source


def _parts(source: str) -> tuple[str, Path]:
    kind, colon, rest = source.partition(":")
    return (kind + colon, Path(rest).expanduser()) if rest else ("", Path(source).expanduser())
