"""The data of a site: its images, the labels given to them and, in a simulation, the true labels.

The audit and the review see a site's data through this, whether the site is part of a simulation or
a hospital of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedgsca.config import SITES_SOURCE, Config, build, merge
from fedgsca.data.reader import available_readers
from fedgsca.data.table import ImageTable
from fedgsca.errors import ConfigError, DataError, RunFolderError
from fedgsca.federation.label_evidence import read_header, sites_with_evidence
from fedgsca.federation.samples import evidence_config, frozen_features
from fedgsca.federation.simulation import divide, load_images
from fedgsca.federation.site_rows import (
    has_truth,
    mark_all_checked,
    read_site_rows,
    sites_with_rows,
)
from fedgsca.hospital.ledger import Ledger
from fedgsca.hospital.settings import SiteSettings, read_settings, state_folder
from fedgsca.labels.audit_table import Audit
from fedgsca.noise import parse_noise
from fedgsca.support.checked_labels import CheckedLabels
from fedgsca.support.text import did_you_mean, one_line

SETTINGS = "site.toml"
NOTE_PIXELS = 192  # pixels
_MAX_LETTERS = 24  # of a line


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

    def features(self, rows: np.ndarray) -> np.ndarray | None:
        """(m, D) float32 of these rows, (m,), by the frozen backbone; None without one."""
        config = self.config if self.config.model.frozen else evidence_config(self.config)
        return None if config is None else frozen_features(config, self.table)[self.rows[rows]]

    @property
    def checked(self) -> CheckedLabels | None:
        """Labels that a person has checked; None: none of them."""
        return None if self.table.checked is None else self.table.checked.part(self.rows)

    @property
    def root(self) -> Path | None:
        """The folder with the original files; None where the source is not a folder."""
        _, path = split_source(self.source)
        return path if path.is_dir() else None

    @property
    def originals(self) -> Path | None:
        """The same, unless the files do not look as the site's images do (data.shift)."""
        return self.root if self.config.data.shift == "none" else None


def open_sites(
    run: Path,
    *,
    source: str | None = None,
    labels: str | None = None,
    class_names: Mapping[str, str] | None = None,
) -> dict[str, SiteData]:
    """Open all sites with evidence in a run's folder, or in the folder of a hospital's own state.

    `source` and `labels` name the data of a hospital, or the new place of data that was moved since
    the run; `class_names` are a hospital's own names of classes. Images or labels other than those
    of the run are refused: its evidence is about other samples.
    """
    names = sites_with_evidence(run)
    header = read_header(run, names[0])
    config = build(header.config)
    if config.data.source == SITES_SOURCE:
        from fedgsca.federation.deployment import site_table

        if source is None:
            raise ConfigError(
                "audit.data-required",
                f"the site {names[0]} has its own images, and the run does not say where they are",
                fix="add --data FOLDER",
            )
        own_labels = Path(labels) if labels else None
        table = site_table(config, source, own_labels, class_names or {}, run)
        place = absolute_source(source)
    else:
        changes = {"source": source, "labels": labels}
        changes = {key: value for key, value in changes.items() if value is not None}
        if changes:
            config = build(merge(config.to_tree(), {"data": changes}))
        kind, path = split_source(config.data.source)
        if source is None and config.data.source not in available_readers() and not path.exists():
            # it may be relative to another folder, or the data may have been moved
            raise DataError(
                "audit.data-not-found",
                f"the run was trained on {config.data.source}, which does not exist here",
                fix=f"name its present place: --data {kind}PATH",
            )
        table = _open_table(config, run, header.fingerprint)
        place, labels = absolute_source(config.data.source), config.data.labels
    _check_data(table, header.fingerprint, place)
    sites = {}
    for name in names:
        samples = read_site_rows(run, name)
        truth = table.labels[samples.rows] if has_truth(run, name) else None
        sites[name] = SiteData(
            config,
            name,
            place,
            labels,
            table,
            samples.rows,
            samples.given,
            truth,
            class_names or {},
        )
    return sites


def open_audited_sites(audit: Audit) -> dict[str, SiteData]:
    """The sites of the run that an audit is about; its data must be as it was then."""
    data = audit.header.data
    run = audit.path / audit.header.run
    sites = open_sites(run, source=data.source, labels=data.labels, class_names=data.class_names)
    first = next(iter(sites.values()))
    _check_data(first.table, data.fingerprint, first.source)
    return sites


def _check_data(table: ImageTable, fingerprint: str, place: str) -> None:
    if table.fingerprint != fingerprint:
        raise DataError(
            "audit.data-changed",
            f"the data in {place} is not the data of the run: images, labels or split have changed",
            fix="restore the data, or run `fedgsca run` and `fedgsca audit` again on the new data",
        )


def _open_table(config: Config, run: Path, fingerprint: str) -> ImageTable:
    """The images of a simulation as its sites show them."""
    table = load_images(config, run)
    names = sites_with_rows(run)
    if table.fingerprint != fingerprint:  # images of no class are made again
        noises = parse_noise(config.noise.spec, len(names))
        if any(noise.definition.replaces_images for noise in noises):
            return divide(config).table
    if config.noise.given:  # the marks of the file of given labels count
        sites = {name: read_site_rows(run, name) for name in names}
        table = replace(table, checked=mark_all_checked(sites, len(table)))
    return table


def select_site(run: Path, sites: Mapping[str, SiteData], name: str) -> SiteData:
    """The site with this name, or an error that lists the sites of the run."""
    if name not in sites:
        raise RunFolderError(
            "audit.unknown-site",
            f"{run} has no evidence of a site named {name!r}",
            fix=f"{did_you_mean(name, sites)}use one of: {', '.join(sorted(sites))}",
        )
    return sites[name]


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


# ---- samples without images ----


def draw_note(title: str, text: str) -> np.ndarray:
    """(H, W, 3) uint8: two lines on grey; of a long text the end, which differs most."""
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (NOTE_PIXELS, NOTE_PIXELS), (236, 236, 236))
    draw = ImageDraw.Draw(page)
    line = one_line(text)
    if len(line) > _MAX_LETTERS:
        line = "\N{HORIZONTAL ELLIPSIS}" + line[-_MAX_LETTERS:]
    middle = NOTE_PIXELS / 2
    for shift, words, size in ((-18, title, 22), (16, line, 13)):
        font = ImageFont.load_default(size=size)
        draw.text((middle, middle + shift), words, fill=(70, 70, 70), font=font, anchor="mm")
    return np.asarray(page)


# ---- where the evidence is ----


@dataclass(frozen=True)
class EvidenceLocation:
    """The folder with `evidence` in it and, at a hospital, its images and labels."""

    folder: Path
    data: str | None = None
    labels: str | None = None
    class_names: Mapping[str, str] = field(default_factory=dict)


def locate_evidence(path: Path) -> EvidenceLocation:
    """Find the evidence of a run, a kit, a site.toml, or the state folder of a site."""
    settings = path / SETTINGS if path.is_dir() else path
    if settings.is_file():
        site = read_settings(settings)
        labels = str(Path(site.labels).expanduser()) if site.labels else site.labels
        folder = _folder_of_site(site, settings)
        return EvidenceLocation(folder, site.data, labels, site.classes)
    if not path.is_dir():
        raise RunFolderError(
            "run.folder-not-found",
            f"there is no folder {path}",
            fix="give a folder written by `fedgsca run --out`, or a hospital's kit or site.toml",
        )
    if (path / "evidence").is_dir():
        return EvidenceLocation(path)
    runs = sorted(folder.parent for folder in path.glob("cells/*/evidence"))
    if runs:
        example = next((run for run in runs if run.name.startswith("fedgsca-")), runs[0])
        raise RunFolderError(
            "audit.several-runs",
            f"{path} is a comparison of {len(runs)} runs, but an audit is about one run",
            fix=f"give the folder of one run: `fedgsca audit {example}`",
        )
    return EvidenceLocation(_only_experiment(path) or path)


def _folder_of_site(site: SiteSettings, settings: Path) -> Path:
    state = Path(site.state).expanduser()
    experiment = Ledger(site).newest_agreement()
    folder = state_folder(site, experiment) if experiment else _only_experiment(state)
    if folder is None or not (folder / "evidence").is_dir():
        raise RunFolderError(
            "audit.no-evidence",
            f"{folder or state}, the state folder named in {settings}, contains no evidence about"
            " labels",
            fix="start this site while the training runs; or judge its labels without the others:"
            f" fedgsca audit-folder {shlex.quote(site.data or 'FOLDER')}",
        )
    return folder


def _only_experiment(state: Path) -> Path | None:
    """The one experiment with evidence in a state folder; None if there is none."""
    folders = sorted(path.parent for path in state.glob("*/evidence"))
    if len(folders) > 1:
        names = ", ".join(str(path) for path in folders)
        raise RunFolderError(
            "audit.several-experiments",
            f"{state} contains evidence of {len(folders)} experiments",
            fix=f"give one of them: {names} (for a site with its own images, add --data)",
        )
    return folders[0] if folders else None
