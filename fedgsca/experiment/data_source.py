"""Images and labels as the configuration asks for them, before they are divided among sites."""

from __future__ import annotations

from pathlib import Path

from fedgsca.config import SITES_SOURCE, Config
from fedgsca.data.load import load
from fedgsca.data.table import ImageTable
from fedgsca.errors import ConfigError


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
    return read_source(
        config,
        data.source,
        seed=0 if data.source == "synthetic" else config.seed,
        labels=Path(data.labels) if data.labels else None,
        train=data.train,
        test=data.test,
        long_tail=data.long_tail,
        need_test=data.test_share > 0,
    )


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
) -> ImageTable:
    """Any source, read with the configuration's size, split and rules for a published data set.

    The parameters are those of `fedgsca.data.load.load`; `seed` defaults to the experiment's.
    """
    data = config.data
    return load(
        source,
        image_size=data.image_size,
        skip_unreadable=data.skip_unreadable,
        split=data.split,
        label=data.label,
        splits=data.splits,
        seed=config.seed if seed is None else seed,
        labels=labels,
        train=train,
        test=test,
        long_tail=long_tail,
        difficulty=data.difficulty,
        test_fraction=data.test_share,
        need_test=need_test,
    )
