"""From a configuration to sites with data: load, divide among sites, add noise.

Deterministic and cached, so that a worker process or a resumed run calls it again and gets the same
sites. True labels are kept apart from the sites: only metrics read them.

This is the view of a simulation, which has everything on one machine. The views of the parties of a
deployment are in deployment.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedgsca.config import OWN_FEATURES, Config, TrainConfig
from fedgsca.data.class_names import align_classes
from fedgsca.data.load import take_rows
from fedgsca.data.partition import leakage_warnings, partition, partition_warnings
from fedgsca.data.shift import shift_images
from fedgsca.data.table import ImageTable, with_fingerprint
from fedgsca.errors import ConfigError, DataError, RunFolderError
from fedgsca.federation.data_source import load_table
from fedgsca.federation.label_noise import GivenLabels, give_labels, replace_images
from fedgsca.federation.samples import (
    brings_weights,
    evidence_config,
    make_sampler,
    split_samples,
    weight_files,
    weights_digest,
)
from fedgsca.federation.site_rows import (
    SampleRecord,
    SiteRows,
    is_changed,
    mark_all_checked,
    read_record,
    read_site_rows,
    sites_with_rows,
)
from fedgsca.methods.site import Samples
from fedgsca.noise import SiteNoise, parse_noise
from fedgsca.support.registry import is_import_path


@dataclass(frozen=True)
class Experiment:
    """Everything an engine needs to run; nothing here depends on the method."""

    config: Config
    table: ImageTable
    names: tuple[str, ...]  # all sites of the experiment
    feature_width: int
    # of the sites whose data is on this machine
    rows: Mapping[str, np.ndarray] = field(default_factory=dict)  # site -> table rows
    sites: Mapping[str, Samples] = field(default_factory=dict)  # given labels
    # site -> true labels, NO_CLASS for an image of no class; empty where no noise was injected
    truth: Mapping[str, np.ndarray] = field(default_factory=dict)
    noise: Mapping[str, SiteNoise] = field(default_factory=dict)
    test: Samples | None = None  # None: a coordinator without images, a hospital that only trains
    val: Samples | None = None
    warnings: tuple[str, ...] = ()

    def signature(self) -> str:
        """A digest of all that sites start from: images, division, given labels, weights file."""
        sha = hashlib.sha256(self.table.fingerprint.encode())
        for name in sorted(set(self.names) - set(self.sites)):
            sha.update(f"{name}\0elsewhere".encode())
        for name in sorted(self.sites):
            sha.update("\0".join([name, *map(str, self.table.ids[self.rows[name]])]).encode())
            sha.update(self.sites[name].labels.tobytes())
            checked = self.sites[name].checked
            if checked is not None:
                sha.update(checked.to_bytes())
        paths = [path for path in weight_files(self.config) if path.is_file()]
        for path in paths:
            sha.update(path.read_bytes())
        if not paths and brings_weights(self.config):
            sha.update((weights_digest(self.config) or "").encode())
        return sha.hexdigest()

    @property
    def train(self) -> TrainConfig:
        """`config.train` as it is used: with the learning rate that "auto" stands for."""
        from fedgsca.models.training import resolve_rate

        num_asked = self.config.federation.num_asked(len(self.names))
        rate = resolve_rate(self.config, self.feature_width, num_asked)
        return self.config.train.model_copy(update={"lr": rate})

    @property
    def dims(self) -> dict[str, int]:
        """The meaning of the symbols in a wire declaration.

        Classes, widths of the features of the model and of evidence heads, sites.
        """
        judge = evidence_config(self.config)
        width = self.feature_width if judge is None else feature_width_of(judge, self.table)
        num_classes = self.table.num_classes
        return {"C": num_classes, "D": self.feature_width, "E": width, "K": len(self.names)}


@dataclass(frozen=True)
class Division:
    """Which site has which images under which labels; no pixel has been read yet."""

    table: ImageTable
    rows: Mapping[str, np.ndarray]  # site -> table rows
    given: Mapping[str, np.ndarray]  # site -> given labels
    noise: Mapping[str, SiteNoise]
    warnings: tuple[str, ...]

    @property
    def truth(self) -> dict[str, np.ndarray]:
        """site -> true labels; empty where no noise was injected."""
        if all(site_noise.is_clean for site_noise in self.noise.values()):
            return {}
        return {name: self.table.labels[rows] for name, rows in self.rows.items()}


def divide(config: Config, folder: Path | None = None) -> Division:
    """Load the data, divide it among sites, and give the sites their labels.

    `folder` is that of the run: if patients have left since it began, the images that remain keep
    their sites and labels, which another draw would change.
    """
    if folder is not None and is_changed(folder):
        return _remaining_division(config, folder)
    table = load_table(config)
    rows = _divide_rows(config, table)
    given = give_labels(config, table, rows)
    if config.noise.given:  # the file has other labels than the source, and its own marks
        table = replace(table, checked=given.checked)
    warnings = _division_warnings(config, table, rows, given)
    table = _shift(config, table, rows)
    table, rows, notes = replace_images(config, table, rows, given.noise)
    division = Division(table, rows, given.labels, given.noise, (*warnings, *notes))
    return _without_wrong_labels(division) if config.noise.oracle else division


def load_images(config: Config, folder: Path | None = None) -> ImageTable:
    """The table of a simulation with the images as its sites show them, without noise.

    `folder` is that of a run: images of patients who have left it are not in the table.
    """
    if folder is not None and is_changed(folder):
        return divide(config, folder).table
    table = load_table(config)
    if config.data.shift == "none":
        return table
    return _shift(config, table, _divide_rows(config, table))


def _shift(config: Config, table: ImageTable, rows: Mapping[str, np.ndarray]) -> ImageTable:
    """The table with every site's own appearance.

    Noise is drawn before, on the images of the source: the same labels are wrong with and without
    a shift, so that the two can be compared.
    """
    # corrected labels must not give a test image another look
    labels = _with_source_labels(table).labels
    return shift_images(table, rows, config.data.shift, config.seed, labels=labels)


def _remaining_division(config: Config, folder: Path, *, may_lack: bool = False) -> Division:
    """The sites, splits and given labels that the run's folder keeps, as far as images are there.

    `may_lack`: some images may be gone since the folder was written.
    """
    record = read_record(folder)
    sites = {name: read_site_rows(folder, name) for name in sites_with_rows(folder)}
    if record is None:
        raise _changed_data(folder)
    table, is_left = _recorded_table(config, record)
    if not may_lack and not is_left.all():
        raise _changed_data(folder)
    new_row = np.cumsum(is_left) - 1
    rows, given = {}, {}
    for name, samples in sites.items():
        stays = is_left[samples.rows]
        rows[name] = new_row[samples.rows[stays]]
        given[name] = samples.given[stays]
        checked = None if samples.checked is None else samples.checked.part(np.flatnonzero(stays))
        sites[name] = SiteRows(rows[name], given[name], checked)
    noise = dict(zip(rows, parse_noise(config.noise.spec, len(rows)), strict=True))
    if config.noise.given or table.given is not None:
        for name, site_rows in rows.items():
            rate = float(np.mean(given[name] != table.labels[site_rows]))
            noise[name] = SiteNoise("F", rate)
    if config.noise.given:
        table = replace(table, checked=mark_all_checked(sites, len(table)))
    return Division(table, rows, given, noise, (*table.notes, *leakage_warnings(table)))


def _changed_data(folder: Path) -> RunFolderError:
    return RunFolderError(
        "run.data-changed",
        f"the data of {folder} has changed since patients were withdrawn from the run",
        fix="restore it; after further patients have left, run `fedgsca withdraw` again",
    )


def _recorded_table(config: Config, record: SampleRecord) -> tuple[ImageTable, np.ndarray]:
    """The images of the record that are still there, in its order, and which these are: (N,)."""
    data: dict[str, object] = {"train": None, "test": None, "long_tail": None, "val": None}
    data["image_size"] = record.image_size or None
    complete_config = config.model_copy(update={"data": config.data.model_copy(update=data)})
    table = align_classes(load_table(complete_config), record.classes)
    old_rows = record.find(table)
    rows = np.full(len(record.split), -1, np.int64)
    rows[old_rows[old_rows >= 0]] = np.flatnonzero(old_rows >= 0)
    is_left = rows >= 0
    rows = rows[is_left]
    if len(rows) < len(table) or (np.diff(rows) < 1).any():
        table = take_rows(table, rows)
    split = record.split[is_left]
    return with_fingerprint(table, split=split), is_left


def check_divisions(configs: Iterable[Config]) -> None:
    """Raise the error of the first experiment whose images cannot be divided among its sites.

    Of experiments that differ in nothing but how the same images are divided, the images are read
    once; of those that differ in the seed, the first stands for all.
    """
    division_keys = {"sites", "partition", "alpha", "missing"}
    tables: dict[str, ImageTable] = {}
    first_configs: dict[str, Config] = {}
    for config in configs:
        first_configs.setdefault(config.data.model_dump_json(), config)
    for config in first_configs.values():
        source = config.data.model_dump_json(exclude=division_keys)
        if source not in tables:
            tables[source] = load_table(config)
        _divide_rows(config, tables[source])


def _divide_rows(config: Config, table: ImageTable) -> dict[str, np.ndarray]:
    """site -> rows of the table."""
    data = config.data
    return partition(
        _with_source_labels(table),
        sites=0 if data.partition == "column" else data.sites,
        scheme=data.partition,
        alpha=data.alpha,
        missing=data.missing,
        seed=config.seed,
    )


def _with_source_labels(table: ImageTable) -> ImageTable:
    """The table with the labels of its source.

    Corrected labels must not move an image to another site, so that results before and after a
    correction can be compared.
    """
    if table.replaced_labels is None or table.given is not None:
        return table
    return replace(table, labels=table.replaced_labels)


def _division_warnings(
    config: Config, table: ImageTable, rows: dict[str, np.ndarray], given: GivenLabels
) -> tuple[str, ...]:
    data = config.data
    warnings = [*table.notes, *leakage_warnings(table)]
    # the groups of rendered images are no patients: nothing leaks when a site has a part of one
    is_rendered = data.source == "synthetic"
    warnings += partition_warnings(replace(table, groups=None) if is_rendered else table, rows)
    if table.site is not None and data.partition != "column":
        warnings.append(
            "the source names the hospital of each image; --partition column makes those the sites"
        )
    warnings += given.notes
    kinds = [site_noise.definition for site_noise in given.noise.values()]
    if data.labels and any(not (kind.is_clean or kind.is_recorded) for kind in kinds):
        warnings.append(
            f"noise {config.noise.spec} is injected into the labels of {Path(data.labels).name}"
        )
    return tuple(warnings)


def _without_wrong_labels(division: Division) -> Division:
    """The ceiling: every site knows which of its labels are wrong, and leaves those images out."""
    rows = {}
    given = {}
    for name, site_rows in division.rows.items():
        is_right = division.given[name] == division.table.labels[site_rows]
        rows[name] = site_rows[is_right]
        given[name] = division.given[name][is_right]
    return replace(division, rows=rows, given=given)


def prepare(config: Config, only: str | None = None, *, folder: Path | None = None) -> Experiment:
    """All sites on this machine.

    `only` is the name of the one site whose samples are read; test images are not read then.
    `folder` is that of the run, from which patients may have been withdrawn.
    """
    return _open_division(config, divide(config, folder), only)


def prepare_remaining(config: Config, folder: Path) -> Experiment:
    """A run whose images are partly gone, before its folder follows them (changed_samples.py)."""
    kinds = parse_noise(config.noise.spec, len(sites_with_rows(folder)))
    if config.data.shift != "none" or any(noise.definition.replaces_images for noise in kinds):
        raise DataError(
            "withdraw.changed-images",
            f"{folder}: this simulation has changed or replaced its images (data.shift, open-set"
            " noise), which a withdrawal would do again",
            fix="start a new run without the patient",
        )
    return _open_division(config, _remaining_division(config, folder, may_lack=True))


def _open_division(config: Config, division: Division, only: str | None = None) -> Experiment:
    table = division.table
    check_model(config, table)
    sampler = make_sampler(config, table)
    test = val = None
    if only is None:
        test = split_samples(table, "test", sampler)
        val = split_samples(table, "val", sampler)
        if test is None:
            raise ConfigError(
                "data.no-test-split",
                f"{table.name} has no test split",
                fix="add a split column, or let the reader make one",
            )
    sites = {}
    for name, site_rows in division.rows.items():
        if only in (None, name):
            sites[name] = sampler(site_rows, division.given[name])
    return Experiment(
        config=config,
        table=table,
        names=tuple(division.rows),
        rows=division.rows,
        sites=sites,
        truth=division.truth,
        noise=division.noise,
        test=test,
        val=val,
        feature_width=feature_width_of(config, table),
        warnings=division.warnings,
    )


def feature_width_of(config: Config, table: ImageTable) -> int:
    """Width of the feature vectors of the configured model on this data."""
    from fedgsca.models.build import feature_width

    if config.model.name != OWN_FEATURES:
        return feature_width(config.model)
    if table.features is not None:
        return int(table.features.shape[1])
    return config.model.feature_width or 0


def check_model(config: Config, table: ImageTable) -> None:
    """Refuse a network that cannot process the images, before anything is computed with it."""
    from fedgsca.models.build import spec_of
    from fedgsca.models.own_network import check_network

    name = config.model.name
    if name == OWN_FEATURES or not table.has_images:
        return  # without images, the sampler says what is wrong
    height, width = table.images.shape[1:3]
    if config.model.frozen:
        height = width = config.model.feature_size
    if is_import_path(name):
        check_network(name, table.num_classes, (int(height), int(width)))
    smallest = spec_of(name).smallest_size
    if min(height, width) < smallest:
        raise ConfigError(
            "model.images-too-small",
            f"{name} needs images of at least {smallest} pixels, got {width}x{height}",
            fix=f"--set data.image_size={smallest}, or with --frozen --set"
            f" model.feature_size={smallest}; or choose another network",
        )
