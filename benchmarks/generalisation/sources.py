"""The data sets of the suite as a data source, `suite:PART:RECIPE:PATH`.

A quarter of the training images of every class, complete groups where there are any, become
validation images, unless the source has its own. In the part "validation" they take the place of
the test images, which are removed: nothing of them can be looked at. In the part "test" both exist.

The images are the same for every seed of a run; seeds change sites, noise and training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from fedgsca.config import OWN_FEATURES, Config
from fedgsca.data.cache import cached_array
from fedgsca.data.load import draw_long_tail, draw_stratified, load, take_rows
from fedgsca.data.partition import split_rows
from fedgsca.data.reader import READERS, Reader, ReaderOptions
from fedgsca.data.table import ImageTable
from fedgsca.federation.samples import feature_key, frozen_features
from fedgsca.rng import stream

VALIDATION_SHARE = 0.25


@dataclass(frozen=True)
class Recipe:
    """How a data set of the suite is made from its source."""

    # rendered images; None: those of the source
    train: int | None = None
    test: int | None = None
    difficulty: float | None = None
    # of the training images that are no validation images: at most so many, and a long tail
    limit: int | None = None
    long_tail: float | None = None


RECIPES: Mapping[str, Recipe] = {
    "built-in": Recipe(train=1200, test=600),
    "built-in-long-tail": Recipe(train=1600, test=600, difficulty=1.0, long_tail=50),
    "pathmnist": Recipe(limit=1400),
    "pathmnist-long-tail": Recipe(long_tail=50),
    "ham10000": Recipe(),
    "deepdrid": Recipe(),
    # for a smoke test
    "tiny": Recipe(train=192, test=48),
    "tiny-long-tail": Recipe(train=288, test=48, difficulty=1.0, long_tail=10),
}


@dataclass(frozen=True)
class SuiteTable:
    """A data set of the suite and where it comes from."""

    table: ImageTable
    # the table has these rows of it
    source: ImageTable
    rows: np.ndarray


def source_name(part: str, recipe: str, path: str = "") -> str:
    """What data.source says; `path` is empty for the built-in images."""
    return f"suite:{part}:{recipe}:{path}"


def cut_validation(table: ImageTable) -> np.ndarray:
    """(n,): the table's split, with validation images cut from training if there are none."""
    split = table.split.astype("<U5")
    if (split == "val").any():
        return split
    rows = table.rows("train")
    groups = None if table.groups is None else table.groups[rows]
    parts = split_rows(table.labels[rows], groups, VALIDATION_SHARE, 0, source=table.name)
    split[rows[parts == "test"]] = "val"
    return split


def choose_rows(
    labels: np.ndarray, split: np.ndarray, part: str, recipe: Recipe
) -> tuple[np.ndarray, np.ndarray]:
    """The rows that a part may see, ascending, and their split."""
    train = np.flatnonzero(split == "train")
    if recipe.limit is not None and recipe.limit < len(train):
        train = draw_stratified(labels, train, recipe.limit, stream(0, "suite", "limit"))
    if recipe.long_tail is not None:
        rng = stream(0, "suite", "long tail")
        train = draw_long_tail(labels, train, recipe.long_tail, rng)
    others = np.flatnonzero(split == "val")
    if part == "test":
        others = np.flatnonzero(split != "train")
    rows = np.sort(np.concatenate([train, others]))
    names = split[rows]
    if part == "validation":
        names = np.where(names == "val", "test", names)
    return rows, names


@lru_cache(maxsize=16)
def open_suite_table(location: str, image_size: int | None = None) -> SuiteTable:
    """The table of PART:RECIPE:PATH; read once per process."""
    part, name, path = location.split(":", 2)
    recipe = RECIPES[name]
    if path:
        source = load(path, image_size=image_size)
    else:
        source = load(
            "synthetic",
            image_size=image_size,
            train=recipe.train,
            test=recipe.test,
            difficulty=recipe.difficulty,
        )
    split = cut_validation(source)
    rows, names = choose_rows(source.labels, split, part, recipe)
    # take_rows computes the fingerprint, which must include the new split
    table = take_rows(replace(source, split=split), rows)
    table = replace(table, split=names, name=name, fingerprint=f"{table.fingerprint}-{part}")
    return SuiteTable(table, source, rows)


def share_features(config: Config) -> None:
    """Copy the frozen features of a source to its parts: they are computed once.

    Images that sites show in their own way have features of their own.
    """
    if config.model.frozen and config.data.shift == "none" and not config.data.order:
        location = config.data.source.partition(":")[2]
        suite_table = open_suite_table(location, config.data.image_size)
        features = frozen_features(config, suite_table.source)[suite_table.rows]

        def fill(out: np.ndarray) -> None:
            out[:] = features

        if config.model.name != OWN_FEATURES:
            key = feature_key(config, suite_table.table)
            cached_array(key, features.shape, np.float32, fill)


def read_suite(location: str, options: ReaderOptions) -> ImageTable:
    """The reader; the seed of the run does not change the images."""
    return open_suite_table(location, options.image_size).table


READERS.register(
    "suite",
    Reader(
        form="suite:PART:RECIPE:PATH",
        summary="data sets of benchmarks.generalisation",
        read=read_suite,
    ),
)
