"""What a site holds: its images, the labels given to them and, in a simulation, the true ones.

The audit and the review see a site's data through this, whether the site is part of a simulation or a hospital of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedgsca.config import SITES_SOURCE, Config, build, merge
from fedgsca.data.load import READERS
from fedgsca.data.table import Table
from fedgsca.engine.label_evidence import about, sites_with_evidence
from fedgsca.errors import ConfigError, DataError, RunFolderError
from fedgsca.experiment.simulation import divide, frozen_features


@dataclass(frozen=True)
class SiteData:
    """Rows of a site, 0 to n - 1, are what evidence, audit and decisions count by; `rows` says where they are in the table."""

    config: Config
    site: str
    source: str  # as it was found: an absolute path, or a built-in name
    labels: str | None  # csv of corrected labels, if there is one
    table: Table
    rows: np.ndarray  # (n,) table rows
    given: np.ndarray  # (n,) class indices
    truth: np.ndarray | None  # (n,) class indices, where noise was injected

    def __len__(self) -> int:
        return len(self.rows)

    def image(self, row: int) -> np.ndarray:
        """(H, W, 3) uint8: what the network sees."""
        return np.asarray(self.table.images[self.rows[row]])

    def features(self, which: np.ndarray, run: Path) -> np.ndarray | None:
        """(m, D) float32 of these rows: the frozen backbone's, or those of the run's own network; None where there is none."""
        if self.config.model.frozen:
            return np.asarray(frozen_features(self.config, self.table)[self.rows[which]])
        from fedgsca.label_audit.model_outputs import outputs

        seen = outputs(self, which, run)
        return None if seen is None else seen.features

    @property
    def root(self) -> Path | None:
        """The folder with the original files, where the source is one."""
        path = _parts(self.source)[1]
        return path if path.is_dir() else None


def open_sites(
    run: Path, *, source: str | None = None, labels: str | None = None
) -> dict[str, SiteData]:
    """All sites with evidence in a run's folder, or in the folder of a hospital's own state.

    `source` and `labels` say where the data is, for a hospital, or where it is now, if it was moved since the run.
    """
    names = sites_with_evidence(run)
    config = build(about(run, names[0])["config"])
    if config.data.source == SITES_SOURCE:
        return {name: _own(config, name, source, labels) for name in names}
    if source is None:
        _check_there(config.data.source)
    moved = {"source": source, "labels": labels}
    config = build(
        merge(
            config.to_tree(),
            {"data": {key: value for key, value in moved.items() if value is not None}},
        )
    )
    division = divide(config)
    truth, where = division.truth, absolute(config.data.source)
    return {
        name: SiteData(config, name, where, config.data.labels, division.table, division.rows[name], division.given[name], truth.get(name))
        for name in names
    }  # fmt: skip


def _check_there(source: str) -> None:
    """A path that the run knows may be relative to where it was started, or have been moved since."""
    kind, path = _parts(source)
    if source not in READERS and not path.exists():
        raise DataError(
            "todo.site-data-1",
            f"the run names its data as {source}, and that is not found from here",
            fix=f"say where it is now: --data {kind}PATH",
        )


def _own(config: Config, name: str, source: str | None, labels: str | None) -> SiteData:
    from fedgsca.experiment.deployment import site_table

    if source is None:
        raise ConfigError(
            "todo.site-data-2",
            f"{name} is a hospital with images of its own",
            fix="say where they are: --data FOLDER",
        )
    table = site_table(config, source, Path(labels) if labels else None)
    rows = table.rows("train")
    return SiteData(
        config, name, absolute(source), labels, table, rows, table.trained_on[rows], None
    )


def pick(run: Path, held: dict[str, SiteData], site: str) -> SiteData:
    if site not in held:
        raise RunFolderError(
            "todo.site-data-3",
            f"{run} has no evidence of a site {site!r}",
            fix=f"the sites are {', '.join(sorted(held))}",
        )
    return held[site]


def held_test(held: SiteData) -> SiteData:
    """The test images beside a site's training images, with the labels by which every model is judged."""
    rows = held.table.rows("test")
    return replace(held, site="test", rows=rows, given=held.table.labels[rows], truth=None)


def check_data(held: SiteData, fingerprint: str) -> None:
    """The images and labels must be those that the run saw: rows of other data would get the suspicion of these."""
    if held.table.fingerprint != fingerprint:
        raise DataError(
            "todo.site-data-4",
            f"the data in {held.source} is not what the run was made with: images, labels or split have changed",
            fix="restore the data as it was, or run `fedgsca run` and `fedgsca audit` again on the new data",
        )


def absolute(source: str) -> str:
    """A path as seen from anywhere; the kind before it, and built-in names, stay."""
    kind, path = _parts(source)
    return kind + str(path.resolve()) if path.exists() else source


def _parts(source: str) -> tuple[str, Path]:
    kind, colon, rest = source.partition(":")
    return (kind + colon, Path(rest).expanduser()) if rest else ("", Path(source).expanduser())
