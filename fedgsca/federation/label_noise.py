"""The labels that the sites of a simulation are given: drawn by noise, or read from a file.

Open-set noise replaces images instead: see the second half.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from fedgsca.config import Config
from fedgsca.data.cache import Extra, cached_array, cached_rows
from fedgsca.data.load import load
from fedgsca.data.relabel import read_given
from fedgsca.data.table import ImageTable, images_digest, with_fingerprint
from fedgsca.errors import ConfigError
from fedgsca.federation.samples import frozen_features
from fedgsca.noise import NO_CLASS, NoiseContext, SiteNoise, corrupt_site, parse_noise
from fedgsca.noise import candidates as candidate_sets
from fedgsca.noise.transition import read_annotators, read_matrix
from fedgsca.rng import stream
from fedgsca.support.checked_labels import NO_ORIGINAL, CheckedLabels, mark_checked

_FOLDS = 5
SLIP = 0.02
_IMAGES_PER_CLASS = 200  # to measure which classes look alike
Rows = dict[str, np.ndarray]  # site -> table rows


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
        labels, checked = read_given(table, path)
        return replace(_recorded_labels(table, labels, rows), checked=checked)
    return _draw_labels(config, table, rows, noise)


def _draw_labels(
    config: Config, table: ImageTable, rows: Rows, noise: Mapping[str, SiteNoise]
) -> GivenLabels:
    context, notes = make_context(config, table, noise.values())
    likeness = context.likeness
    labels = {}
    for name, site_rows in rows.items():
        if noise[name].definition.replaces_images:  # see replace_images
            labels[name] = table.labels[site_rows]
            continue
        groups = None
        if noise[name].definition.needs_groups:
            groups = _groups_of(table, site_rows, noise[name])
        site_likeness = None if likeness is None else likeness[site_rows]
        labels[name] = corrupt_site(
            table.labels[site_rows],
            noise[name],
            replace(context, likeness=site_likeness, groups=groups),
            stream(config.seed, "noise", name),
        )
        if table.checked is not None:
            # noise is what nobody has noticed: a label that a person has checked stays correct
            is_checked = table.checked.mask[site_rows]
            labels[name] = np.where(is_checked, table.labels[site_rows], labels[name])
    return GivenLabels(noise, labels, notes)


def make_context(
    config: Config, table: ImageTable, noises: Iterable[SiteNoise]
) -> tuple[NoiseContext, tuple[str, ...]]:
    """What these kinds may know, with the likeness of all images of the table; and notes."""
    noises = list(noises)
    notes = []
    candidates = matrix = annotators = likeness = None
    if any(noise.definition.needs_candidates for noise in noises):
        candidates, origin = find_candidates(config, table)
        notes.append(f"classes that are easily mistaken for each other (noise C, U): {origin}")
    if config.noise.matrix:
        matrix = read_matrix(config.noise.matrix, table.num_classes)
    if config.noise.annotators:
        annotators = read_annotators(config.noise.annotators, table.num_classes)
    if any(noise.definition.needs_likeness for noise in noises):
        likeness = measure_likeness(table)
        notes.append("hard images: those on which an independent reader errs, of other features")
    context = NoiseContext(
        table.num_classes,
        candidates,
        matrix,
        annotators=annotators,
        likeness=likeness,
        classes=table.classes,
        order=tuple(table.classes.index(name) for name in table.order),
    )
    return context, tuple(notes)


def _groups_of(table: ImageTable, rows: np.ndarray, noise: SiteNoise) -> np.ndarray:
    if table.groups is None:
        raise ConfigError(
            "noise.no-groups",
            f"noise {noise} differs by group, but the images of {table.name} have no groups",
            fix="add a group column (patient, slide or video) to labels.csv, or use other noise",
        )
    return np.asarray(table.groups[rows])


# ---- which images are hard to read ----
# Readers err on hard images, and what is hard must not be taken from the features that methods and
# audits see: they would recognise it. So a reader is simulated that sees something else: colours
# on a coarse grid and the directions of edges. It has learnt from other images with their true
# labels (folds of whole groups), and its doubts are as large as its errors.


def measure_likeness(table: ImageTable) -> np.ndarray:
    """(n, C): log-probabilities of the classes by an independent reader; 0 outside training.

    Data without images is read by its features. The same for every network and seed.
    """
    train = table.rows("train")
    labels = table.labels[train]
    view = table.image_digest or images_digest(table.images)
    if not table.has_images and table.features is not None:
        view = images_digest(table.features)
    key = hashlib.sha256(f"reader-2|{table.num_classes}|{view}".encode())
    key.update(train.astype("<i8").tobytes() + labels.astype("<i8").tobytes())
    folds = _reader_folds(table, train)
    key.update(folds.astype("<i8").tobytes())

    def fill(out: np.ndarray) -> None:
        if table.has_images:
            views = describe_images(table.images, train)
        else:
            views = np.asarray(table.features, np.float64)[train]
        out[:] = 0.0
        out[train] = read_by_others(views, labels, folds, table.num_classes)

    shape = (len(table), table.num_classes)
    return cached_array(key.hexdigest(), shape, np.float64, fill)


def _reader_folds(table: ImageTable, train: np.ndarray) -> np.ndarray:
    """(m,): the fold of every training image; those of a group are in one fold."""
    if table.groups is None:
        units = np.arange(len(train))
    else:
        units = np.unique(table.groups[train], return_inverse=True)[1]
    fold_numbers = stream(0, "reader", "folds").integers(0, _FOLDS, int(units.max()) + 1)
    return np.asarray(fold_numbers[units])


def describe_images(images: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(m, 320): colours in 8 x 8 cells, and edges of 8 directions in 4 x 4 cells."""
    blocks = []
    for start in range(0, len(rows), _BLOCK):
        pixels = np.asarray(images[rows[start : start + _BLOCK]], np.float32)
        grey = pixels.mean(axis=3)
        down, right = np.gradient(grey, axis=(1, 2))
        strength = np.hypot(down, right)
        direction = np.floor(np.arctan2(down, right) / np.pi * 4).astype(int) % 8
        edges = strength[..., None] * (direction[..., None] == np.arange(8))
        cells = [_mean_cells(pixels, 8), np.sqrt(_mean_cells(edges, 4))]
        blocks.append(np.concatenate(cells, axis=1))
    return np.concatenate(blocks).astype(np.float64)


def _mean_cells(values: np.ndarray, side: int) -> np.ndarray:
    """(b, side * side * channels): means of (b, H, W, channels) over a grid of cells."""
    edges = [np.linspace(0, length, side + 1).astype(int)[:-1] for length in values.shape[1:3]]
    sums = np.add.reduceat(np.add.reduceat(values, edges[0], axis=1), edges[1], axis=2)
    return np.asarray(sums.reshape(len(values), -1)) * (side * side / values[0, ..., 0].size)


def read_by_others(
    views: np.ndarray, labels: np.ndarray, folds: np.ndarray, num_classes: int
) -> np.ndarray:
    """(n, C): log-probabilities by linear discriminants that have seen the other folds.

    views (n, D), labels (n,), folds (n,). All classes have the same prior, and one temperature
    makes the probabilities of the true labels as large as possible. Of the probability,
    SLIP is spread over all classes: any image can be misread.
    """
    scores = np.zeros((len(labels), num_classes))
    for fold in range(_FOLDS):
        is_other = folds != fold
        if is_other.any() and not is_other.all():
            scores[~is_other] = _discriminate(
                views[is_other], labels[is_other], views[~is_other], num_classes
            )
    rows = np.arange(len(labels))
    fits = {}
    for temperature in np.geomspace(1, 300, 40).tolist():
        log_probs = _log_softmax(scores / temperature)
        fits[float(log_probs[rows, labels].mean())] = log_probs
    return np.asarray(np.log((1 - SLIP) * np.exp(fits[max(fits)]) + SLIP / num_classes))


def _discriminate(
    views: np.ndarray, labels: np.ndarray, unseen_views: np.ndarray, num_classes: int
) -> np.ndarray:
    """(m, C): linear discriminant scores of views (m, D) from n views with their labels."""
    centre, scale = views.mean(axis=0), np.maximum(views.std(axis=0), 1e-9)
    views = (views - centre) / scale
    unseen_views = (unseen_views - centre) / scale
    means = np.zeros((num_classes, views.shape[1]))
    for c in np.unique(labels):
        means[c] = views[labels == c].mean(axis=0)
    inner = views - means[labels]
    covariance = inner.T @ inner / len(views)
    # half of the variance shrinks towards independence: there may be few images
    covariance = 0.5 * covariance + 0.5 * np.eye(len(covariance))
    weights = np.linalg.solve(covariance, means.T)
    return np.asarray(unseen_views @ weights - 0.5 * np.sum(means.T * weights, axis=0))


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    scores = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))


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


# ---- images of no class (open-set noise) ----
# Every image of a site with noise O is replaced with the site's rate as probability, independently.
# The image that takes its place keeps its label, so the given labels follow the class distribution
# of the site; its true label is NO_CLASS. It comes from another data source (`noise.open_set`) or
# is a texture: the pixels of a random training image of the site in random order, averaged over
# 3 x 3 neighbours, all in integers. The new images are appended to the table, so that rows of the
# source stay as they are; the rows of the sites point to them.


_VERSION = "open-set-1"
_BLOCK = 256  # images


@dataclass(frozen=True)
class _Replacement:
    """The images of no class at one site."""

    site: str
    # (m,) positions among the site's images
    positions: np.ndarray
    # (m,) rows of the foreign source or, for textures, of the site's table
    origins: np.ndarray


def replace_images(
    config: Config, table: ImageTable, rows: Rows, noise: Mapping[str, SiteNoise]
) -> tuple[ImageTable, Rows, tuple[str, ...]]:
    """The table and the rows of all sites with images of no class, and notes for the run.

    Without open-set noise, everything is returned as it was.
    """
    names = [name for name in rows if noise[name].definition.replaces_images]
    if not names:
        return table, rows, ()
    if table.features is not None:
        raise ConfigError(
            "noise.open-set-needs-network",
            "open-set noise replaces images, and there are no features of the new ones",
            fix="use a network instead of your own features, or other noise",
        )
    foreign, notes = _read_foreign(config, table)
    plan = []
    for name in names:
        plan.append(_draw_replacement(config.seed, name, rows[name], noise[name].rate, foreign))
    large_table = _append_images(config.seed, table, foreign, plan)
    new_rows = dict(rows)
    start = len(table)
    for part in plan:
        site_rows = rows[part.site].copy()
        site_rows[part.positions] = np.arange(start, start + len(part.positions))
        new_rows[part.site] = site_rows
        start += len(part.positions)
    return large_table, new_rows, notes


def _read_foreign(config: Config, table: ImageTable) -> tuple[ImageTable | None, tuple[str, ...]]:
    """The source of foreign images in the size of the table; None: textures are made."""
    source = config.noise.open_set
    if source is None:
        return None, ("images of no class (noise O): textures made from the site's own images",)
    foreign = load(
        source,
        image_size=table.images.shape[1],
        test_fraction=0.0,
        skip_unreadable=config.data.skip_unreadable,
        need_test=False,
    )
    if foreign.images.shape[1:] != table.images.shape[1:]:
        raise ConfigError(
            "noise.open-set-shape",
            f"the images of {source} are {foreign.images.shape[1:3]} pixels, and those of "
            f"{table.name} are {table.images.shape[1:3]}",
            fix="set data.image_size, so that both are square",
        )
    notes = [f"images of no class (noise O): from {foreign.name}"]
    common_classes = sorted(set(foreign.classes) & set(table.classes))
    if common_classes:
        notes.append(
            f"{foreign.name} (noise.open_set) also has a class named {common_classes[0]!r}, so "
            "its images may belong to a class of the experiment"
        )
    return foreign, tuple(notes)


def _draw_replacement(
    seed: int, site: str, rows: np.ndarray, rate: float, foreign: ImageTable | None
) -> _Replacement:
    """Which images of a site (table rows, (n,)) are replaced, and by what."""
    rng = stream(seed, "noise", site, "open-set")
    positions = np.flatnonzero(rng.random(len(rows)) < rate)
    if foreign is None:
        return _Replacement(site, positions, rng.choice(rows, len(positions)))
    if len(positions) > len(foreign):
        raise ConfigError(
            "noise.open-set-too-small",
            f"{site} needs {len(positions)} images of no class, and {foreign.name} has "
            f"{len(foreign)}",
            fix="name a larger source in noise.open_set, or lower the rate",
        )
    return _Replacement(site, positions, rng.permutation(len(foreign))[: len(positions)])


def _append_images(
    seed: int, table: ImageTable, foreign: ImageTable | None, plan: list[_Replacement]
) -> ImageTable:
    """The table with the foreign images at its end, kept in the cache."""
    digest = table.image_digest or images_digest(table.images)
    identity = hashlib.sha256(f"{_VERSION}|{table.images.shape}|{digest}".encode())
    if foreign is not None:
        identity.update((foreign.image_digest or images_digest(foreign.images)).encode())
    for part in plan:
        identity.update(f"|{seed}|{part.site}|".encode())
        identity.update(part.origins.astype("<i8").tobytes())

    def read_rows(extra: Extra) -> Iterator[np.ndarray]:
        for start in range(0, len(table), _BLOCK):
            yield np.asarray(table.images[start : start + _BLOCK])
        for part in plan:
            for number, row in enumerate(part.origins):
                yield _make_image(seed, table, foreign, part.site, number, row)[None]

    names: list[str] = []
    for part in plan:
        names += [f"open-set/{part.site}/{number}" for number in range(len(part.origins))]
    count = len(table) + len(names)
    shape = table.images.shape[1:]
    entry = cached_rows(identity.hexdigest(), shape, np.uint8, read_rows, count)
    no_class = np.full(len(names), NO_CLASS)
    # nobody has checked a label of an image of no class
    checked = None
    if table.checked is not None:
        mask = np.concatenate([table.checked.mask, np.zeros(len(names), bool)])
        original = np.concatenate([table.checked.original, np.full(len(names), NO_ORIGINAL)])
        checked = mark_checked(mask, original)
    return with_fingerprint(
        table,
        images=entry.array,
        labels=np.concatenate([table.labels, no_class]),
        split=np.concatenate([table.split, np.full(len(names), "train")]),
        ids=np.concatenate([table.ids, np.array(names, dtype=str)]),
        # every foreign image is a group of its own, and no hospital of the source has it
        groups=None if table.groups is None else np.concatenate([table.groups, names]),
        site=None if table.site is None else np.concatenate([table.site, [""] * len(names)]),
        replaced_labels=_extend(table.replaced_labels, no_class),
        checked=checked,
        image_digest=entry.digest,
        source_table=table,
    )


def _extend(column: np.ndarray | None, values: ArrayLike) -> np.ndarray | None:
    return None if column is None else np.concatenate([column, values])


def _make_image(
    seed: int, table: ImageTable, foreign: ImageTable | None, site: str, number: int, row: int
) -> np.ndarray:
    """(H, W, 3) uint8: the foreign image of this row, or a texture from this row of the table."""
    if foreign is not None:
        return np.asarray(foreign.images[row])
    rng = stream(seed, "noise", site, "open-set", number)
    return make_texture(np.asarray(table.images[row]), rng)


def make_texture(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(H, W, 3) uint8: the pixels of an image in random order, averaged over 3 x 3 neighbours.

    It has the colours of the image and none of its shapes. Neighbours continue at the other side.
    """
    height, width, _ = image.shape
    pixels = rng.permutation(image.reshape(-1, 3)).reshape(image.shape).astype(np.uint16)
    rows = [np.roll(pixels, shift, axis=0) for shift in range(min(3, height))]
    sum_of_rows = np.sum(rows, axis=0, dtype=np.uint16)
    columns = [np.roll(sum_of_rows, shift, axis=1) for shift in range(min(3, width))]
    total = np.sum(columns, axis=0, dtype=np.uint16)
    return np.asarray(total // (len(rows) * len(columns)), dtype=np.uint8)
