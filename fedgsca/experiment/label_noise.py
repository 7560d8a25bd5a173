"""The labels that the sites of a simulation are given: drawn by noise, or read from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedgsca.checked_labels import CheckedLabels
from fedgsca.config import Config
from fedgsca.data.table import ImageTable
from fedgsca.errors import ConfigError
from fedgsca.experiment.frozen_features import frozen_features
from fedgsca.noise import SiteNoise, corrupt, parse_noise
from fedgsca.noise import candidates as candidate_sets
from fedgsca.noise.label_files import read_annotators, read_given, read_matrix
from fedgsca.rng import stream

_THUMBNAIL = 8  # cells per side
_IMAGES_PER_CLASS = 200  # to measure which classes look alike
Rows = Mapping[str, np.ndarray]  # site -> table rows


@dataclass(frozen=True)
class GivenLabels:
    """The labels of every site, and how they came to be wrong."""

    noise: Mapping[str, SiteNoise]
    labels: Mapping[str, np.ndarray]  # site -> (n,) given labels
    notes: tuple[str, ...] = ()  # for the run's warnings
    # by table row: labels that a person has checked, where a file of given labels says so
    checked: CheckedLabels | None = None


def give_labels(config: Config, table: ImageTable, rows: Rows) -> GivenLabels:
    """Given labels of every site.

    A site's random stream is addressed by its name: adding a site does not change the noise of
    another one.
    """
    noise = dict(zip(rows, parse_noise(config.noise.spec, len(rows)), strict=True))
    has_noise = any(not site_noise.is_clean for site_noise in noise.values())
    if table.given is not None:
        if config.noise.given or has_noise:
            raise ConfigError(
                "noise.labels-already-noisy",
                f"some labels of {table.name} are wrong already (data.label), so no noise can be"
                " added to them",
                fix="leave noise.spec at 0 and noise.given out, or choose another data.label:"
                " clean, majority or released",
            )
        return _recorded_labels(table, table.given, rows)
    if config.noise.given:
        if has_noise:
            raise ConfigError(
                "noise.two-sources",
                "noise.given and noise.spec are both set",
                fix="leave noise.spec at 0: the file has the labels as given",
            )
        path = Path(config.noise.given)
        labels, checked = read_given(path, table.ids, table.classes, table.labels)
        return replace(_recorded_labels(table, labels, rows), checked=checked)
    return _draw_labels(config, table, rows, noise)


def _draw_labels(
    config: Config, table: ImageTable, rows: Rows, noise: Mapping[str, SiteNoise]
) -> GivenLabels:
    candidates = None
    notes: tuple[str, ...] = ()
    if any(site_noise.needs_candidates for site_noise in noise.values()):
        candidates, origin = find_candidates(config, table)
        notes = (f"classes that are easily mistaken for each other (noise C): {origin}",)
    matrix = read_matrix(config.noise.matrix, table.num_classes) if config.noise.matrix else None
    annotators = None
    if config.noise.annotators:
        annotators = read_annotators(config.noise.annotators, table.num_classes)
    likeness = None
    if any(site_noise.definition.needs_likeness for site_noise in noise.values()):
        likeness = measure_likeness(config, table)
        notes = (*notes, f"likeness of images and classes: {_feature_words(config)}")
    labels = {}
    for name, site_rows in rows.items():
        if noise[name].replaces_images:  # see foreign_images.py
            labels[name] = table.labels[site_rows]
            continue
        groups = None
        if noise[name].definition.needs_groups:
            groups = _groups_of(table, site_rows, noise[name])
        labels[name] = corrupt(
            table.labels[site_rows],
            noise[name],
            num_classes=table.num_classes,
            candidates=candidates,
            matrix=matrix,
            annotators=annotators,
            likeness=None if likeness is None else likeness[site_rows],
            groups=groups,
            rng=stream(config.seed, "noise", name),
        )
        if table.checked is not None:
            # noise is what nobody has noticed: a label that a person has checked stays correct
            is_checked = table.checked.mask[site_rows]
            labels[name] = np.where(is_checked, table.labels[site_rows], labels[name])
    return GivenLabels(noise, labels, notes)


def _groups_of(table: ImageTable, rows: np.ndarray, noise: SiteNoise) -> np.ndarray:
    if table.groups is None:
        raise ConfigError(
            "noise.no-groups",
            f"noise {noise} differs by group, but the images of {table.name} have no groups",
            fix="add a group column (patient, slide or video) to labels.csv, or use other noise",
        )
    return np.asarray(table.groups[rows])


def _feature_words(config: Config) -> str:
    if config.model.frozen:
        return f"distances to class means of {config.model.name} features, true labels"
    return f"distances to class means of images at {_THUMBNAIL} pixels, true labels"


def measure_likeness(config: Config, table: ImageTable) -> np.ndarray:
    """(n, C): for all images of the table, minus half the squared distance to each class mean.

    In units of the mean squared distance of a training image from the mean of its own class.
    Features are those of the frozen network or, without one, small versions of the images.
    """
    train = table.rows("train")
    if config.model.frozen:
        features = np.asarray(frozen_features(config, table), dtype=np.float64)
    else:
        features = _thumbnails(table.images)
    labels = table.labels[train]
    means = np.zeros((table.num_classes, features.shape[1]))
    for c in np.unique(labels):
        means[c] = features[train[labels == c]].mean(axis=0)
    squares = np.empty((len(features), table.num_classes))
    for c in range(table.num_classes):
        squares[:, c] = np.square(features - means[c]).sum(axis=1)
    unit = squares[train, labels].mean()
    return np.asarray(-0.5 * squares / max(float(unit), 1e-12))


def _thumbnails(images: np.ndarray) -> np.ndarray:
    """(n, 8 * 8 * 3) float64: means over a grid of 8 x 8 cells."""
    rows = np.linspace(0, images.shape[1], _THUMBNAIL + 1).astype(int)[:-1]
    columns = np.linspace(0, images.shape[2], _THUMBNAIL + 1).astype(int)[:-1]
    cells = np.add.reduceat(np.asarray(images, dtype=np.float64), rows, axis=1)
    cells = np.add.reduceat(cells, columns, axis=2)
    return np.asarray(cells.reshape(len(images), -1))


def _recorded_labels(table: ImageTable, labels: np.ndarray, rows: Rows) -> GivenLabels:
    """Labels that were not drawn here: each site's part, and how often it is wrong."""
    site_labels = {name: labels[site_rows] for name, site_rows in rows.items()}
    noise = {}
    for name, site_rows in rows.items():
        rate = float(np.mean(site_labels[name] != table.labels[site_rows]))
        noise[name] = SiteNoise("F", rate)
    return GivenLabels(noise, site_labels)


def find_candidates(config: Config, table: ImageTable) -> tuple[dict[int, tuple[int, ...]], str]:
    """Misdiagnosis candidates of every class, and in words where they come from.

    They come from a file, a built-in table, or the similarity of classes.
    """
    choice = config.noise.candidates
    if choice not in ("auto", "features"):
        return candidate_sets.from_file(Path(choice), table.classes), f"from {choice}"
    built_in = candidate_sets.table_for(table.classes)
    if built_in is not None:
        return built_in, "the built-in table for these classes"
    train = table.rows("train")
    if choice == "features" or not table.has_images:
        if not config.model.frozen:
            raise ConfigError(
                "noise.features-need-frozen-model",
                "noise.candidates=features needs a frozen network: only that has features before"
                " training",
                fix="add --frozen, or leave noise.candidates at auto, which compares the images",
            )
        features = frozen_features(config, table)[train]
        candidates = candidate_sets.by_features(features, table.labels[train], table.num_classes)
        origin = f"the two most similar classes, measured on clean {config.model.name} features"
        return candidates, origin
    parts = []
    for label in range(table.num_classes):
        parts.append(train[table.labels[train] == label][:_IMAGES_PER_CLASS])
    sample = np.concatenate(parts)
    candidates = candidate_sets.by_similarity(
        table.images[sample], table.labels[sample], table.num_classes
    )
    return candidates, "the two most similar classes, measured on the clean images"
