"""The data of a site: its images, the labels given to them and, in a simulation, the true labels.

The audit and the review see a site's data through this, whether the site is part of a simulation or
a hospital of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedgsca.checked_labels import CheckedLabels
from fedgsca.config import SITES_SOURCE, Config, build, merge
from fedgsca.data.reader import available_readers
from fedgsca.data.table import ImageTable
from fedgsca.engine.label_evidence import read_header, sites_with_evidence
from fedgsca.errors import ConfigError, DataError, RunFolderError
from fedgsca.experiment.samples import frozen_features
from fedgsca.experiment.simulation import divide
from fedgsca.label_audit.image_note import draw_note
from fedgsca.support.text import did_you_mean


@dataclass(frozen=True)
class SiteData:
    """The samples of one site, counted from 0 to n - 1.

    Evidence, audit and decisions use these row numbers; `rows` maps them to rows of the table.
    """

    config: Config
    site: str
    # an absolute path, or a built-in name
    source: str
    # csv of corrected labels, if there is one
    labels: str | None
    table: ImageTable
    # (n,) table rows
    rows: np.ndarray
    # (n,) class indices
    given: np.ndarray
    # (n,) class indices, where noise was injected
    truth: np.ndarray | None
    # [classes] of a hospital's site.toml
    class_names: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def image(self, row: int) -> np.ndarray:
        """(H, W, 3) uint8: the input of the network; a note, where there are features only."""
        if not self.table.has_images:
            return draw_note("no image", str(self.table.ids[self.rows[row]]))
        return np.asarray(self.table.images[self.rows[row]])

    def content(self, row: int) -> np.ndarray:
        """Bytes that identify a sample: its pixels or, without images, its features; uint8."""
        if self.table.has_images or self.table.features is None:
            return self.image(row)
        vector = np.ascontiguousarray(self.table.features[self.rows[row]])
        return vector.view(np.uint8)

    def features(self, rows: np.ndarray, run: Path) -> np.ndarray | None:
        """(m, D) float32 of these rows, (m,); None where the folder contains no model.

        Features of the frozen backbone, or of the run's own network.
        """
        if self.config.model.frozen:
            return np.asarray(frozen_features(self.config, self.table)[self.rows[rows]])
        from fedgsca.label_audit.model_outputs import evaluate_rows

        evaluation = evaluate_rows(self, rows, run)
        return None if evaluation is None else evaluation.features

    @property
    def checked(self) -> CheckedLabels | None:
        """Labels that a person has checked; None: none of them."""
        return None if self.table.checked is None else self.table.checked.part(self.rows)

    @property
    def root(self) -> Path | None:
        """The folder with the original files; None where the source is not a folder."""
        _, path = split_source(self.source)
        return path if path.is_dir() else None


def open_sites(
    run: Path,
    *,
    source: str | None = None,
    labels: str | None = None,
    class_names: Mapping[str, str] | None = None,
) -> dict[str, SiteData]:
    """Open all sites with evidence in a run's folder, or in the folder of a hospital's own state.

    `source` and `labels` name the data of a hospital, or the new place of data that was moved since
    the run; `class_names` are a hospital's own names of classes.
    """
    names = sites_with_evidence(run)
    config = build(read_header(run, names[0]).config)
    if config.data.source == SITES_SOURCE:
        own_names = class_names or {}
        return {name: _open_hospital(config, name, source, labels, own_names) for name in names}
    if source is None:
        _check_source_exists(config.data.source)
    changes = {}
    if source is not None:
        changes["source"] = source
    if labels is not None:
        changes["labels"] = labels
    config = build(merge(config.to_tree(), {"data": changes}))
    division = divide(config)
    truth = division.truth
    sites = {}
    for name in names:
        sites[name] = SiteData(
            config=config,
            site=name,
            source=absolute_source(config.data.source),
            labels=config.data.labels,
            table=division.table,
            rows=division.rows[name],
            given=division.given[name],
            truth=truth.get(name),
        )
    return sites


def _check_source_exists(source: str) -> None:
    """The path in the run may be relative to another folder, or the data may have been moved."""
    kind, path = split_source(source)
    if source not in available_readers() and not path.exists():
        raise DataError(
            "audit.data-not-found",
            f"the run was trained on {source}, which does not exist here",
            fix=f"name its present place: --data {kind}PATH",
        )


def _open_hospital(
    config: Config,
    name: str,
    source: str | None,
    labels: str | None,
    class_names: Mapping[str, str],
) -> SiteData:
    from fedgsca.experiment.deployment import site_table

    if source is None:
        raise ConfigError(
            "audit.data-required",
            f"the site {name} has its own images, and the run does not say where they are",
            fix="add --data FOLDER",
        )
    table = site_table(config, source, Path(labels) if labels else None, class_names)
    rows = table.rows("train")
    return SiteData(
        config=config,
        site=name,
        source=absolute_source(source),
        labels=labels,
        table=table,
        rows=rows,
        given=table.trained_on[rows],
        truth=None,
        class_names=class_names,
    )


def select_site(run: Path, sites: Mapping[str, SiteData], name: str) -> SiteData:
    """The site with this name, or an error that lists the sites of the run."""
    if name not in sites:
        raise RunFolderError(
            "audit.unknown-site",
            f"{run} has no evidence of a site named {name!r}",
            fix=f"{did_you_mean(name, sites)}use one of: {', '.join(sorted(sites))}",
        )
    return sites[name]


def select_test_split(site_data: SiteData) -> SiteData:
    """The test images beside a site's training images, with the labels that score every model."""
    rows = site_data.table.rows("test")
    given = site_data.table.labels[rows]
    return replace(site_data, site="test", rows=rows, given=given, truth=None)


def check_data(site_data: SiteData, fingerprint: str) -> None:
    """Refuse images or labels other than those of the run: its evidence is about other samples."""
    if site_data.table.fingerprint != fingerprint:
        raise DataError(
            "audit.data-changed",
            f"the data in {site_data.source} is not the data of the run: images, labels or split"
            " have changed",
            fix="restore the data, or run `fedgsca run` and `fedgsca audit` again on the new data",
        )


def absolute_source(source: str) -> str:
    """The source with an absolute path; the reader before it and built-in names stay."""
    kind, path = split_source(source)
    return kind + str(path.resolve()) if path.exists() else source


def split_source(source: str) -> tuple[str, Path]:
    """'npz:a.npz' -> ('npz:', Path('a.npz')); without a reader the first part is empty."""
    kind, colon, path = source.partition(":")
    if not path:
        return "", Path(source).expanduser()
    return kind + colon, Path(path).expanduser()
