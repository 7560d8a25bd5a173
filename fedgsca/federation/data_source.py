"""Images and labels as the configuration asks for them, before they are divided among sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.config import OWN_FEATURES, SITES_SOURCE, Config
from fedgsca.data.load import load
from fedgsca.data.partition import split_rows
from fedgsca.data.readers.features_npz import FILE_NAME, attach_features
from fedgsca.data.table import ImageTable, with_fingerprint
from fedgsca.errors import ConfigError, DataError

# what was read within `load_once`: the parameters of `load` -> the table
_tables: ContextVar[dict[str, ImageTable] | None] = ContextVar("_tables", default=None)


@contextmanager
def load_once() -> Iterator[None]:
    """Within the block, the same images are read once, however many steps or runs ask for them."""
    if _tables.get() is not None:
        yield
        return
    token = _tables.set({})
    try:
        yield
    finally:
        _tables.reset(token)


def _load(source: str, **options: Any) -> ImageTable:
    tables = _tables.get()
    if tables is None:
        return load(source, **options)
    key = repr((source, sorted(options.items())))
    if key not in tables:
        tables[key] = load(source, **options)
    return tables[key]


def load_table(config: Config) -> ImageTable:
    """The data of a simulation."""
    data = config.data
    if data.source == SITES_SOURCE:
        raise ConfigError(
            "data.no-shared-source",
            "data.source is 'sites': every site has its own images, so there is nothing to"
            " simulate",
            fix="run it as a deployment (`fedgsca deploy`), or name a data source with --data",
        )
    table = read_source(
        config,
        data.source,
        seed=0 if data.source == "synthetic" else config.seed,
        labels=Path(data.labels) if data.labels else None,
        train=data.train,
        test=data.test,
        long_tail=data.long_tail,
        need_test=data.test_share > 0,
    )
    return table if data.val is None else hold_out_validation(table, data.val)


def hold_out_validation(table: ImageTable, share: float) -> ImageTable:
    """The table with about `share` of the training images of every class as validation images.

    Groups stay together, and the seed of the experiment does not matter.
    """
    if len(table.rows("val")):
        raise ConfigError(
            "data.has-validation-images",
            f"{table.name} has validation images already, so data.val cannot choose others",
            fix="leave data.val out",
        )
    train = table.rows("train")
    groups = None if table.groups is None else table.groups[train]
    parts = split_rows(table.labels[train], groups, share, 0, source=table.name)
    split = np.array(table.split)
    split[train[parts == "test"]] = "val"
    return with_fingerprint(table, split=split)


def read_source(
    config: Config,
    source: str,
    *,
    seed: int | None = None,
    labels: Path | None = None,
    train: int | None = None,
    test: int | None = None,
    long_tail: float | None = None,
    need_test: bool = True,
    class_names: Mapping[str, str] | None = None,
) -> ImageTable:
    """Any source, read with the configuration's size, split and rules for a published data set.

    The parameters are those of `fedgsca.data.load.load`; `seed` defaults to the experiment's.
    """
    data = config.data
    table = _load(
        source,
        image_size=data.image_size,
        skip_unreadable=data.skip_unreadable,
        split=data.split,
        label=data.label,
        splits=Path(data.splits).expanduser() if data.splits else None,
        seed=config.seed if seed is None else seed,
        labels=labels,
        train=train,
        test=test,
        long_tail=long_tail,
        difficulty=data.difficulty,
        test_fraction=data.test_share,
        need_test=need_test,
        class_names=class_names,
        # a hospital may lack some grades: its classes are ordered with those of the consortium
        order=() if data.classes else data.order or (),
    )
    if config.model.name != OWN_FEATURES:
        return table
    return _with_own_features(config, table, source)


def own_feature_file(config: Config, source: str) -> Path | None:
    """The file with features beside images: the configured one, or features.npz in the folder."""
    if config.data.features is not None:
        return Path(config.data.features).expanduser()
    _, _, location = source.rpartition(":")
    path = Path(location).expanduser() / FILE_NAME
    return path if path.is_file() else None


def _with_own_features(config: Config, table: ImageTable, source: str) -> ImageTable:
    """The table with the user's own features, of the width that the experiment has."""
    path = own_feature_file(config, source)
    if table.has_images and path is not None:
        table = attach_features(table, path)
    width = config.model.feature_width
    if table.features is not None and width not in (None, table.features.shape[1]):
        raise DataError(
            "data.feature-width",
            f"{table.name} has {table.features.shape[1]} features per image, and the experiment has"
            f" {width} (model.feature_width)",
            fix="compute the features with the network that all parties have agreed on",
        )
    return table
