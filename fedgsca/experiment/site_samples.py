"""From rows of a table to the samples that a site trains on: images, or frozen features."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fedgsca.config import Config
from fedgsca.data.table import ImageTable
from fedgsca.experiment.frozen_features import check_images, frozen_features
from fedgsca.site import RowView, Samples

# table rows (n,), labels (n,) -> samples
Sampler: TypeAlias = Callable[[np.ndarray, np.ndarray], Samples]

MEMORY_LIMIT = 1 << 30  # bytes; larger parts stay in the memory map


def make_sampler(config: Config, table: ImageTable) -> Sampler:
    """A function that makes samples of any rows of the table."""
    from fedgsca.models.build import spec_of

    spec = spec_of(config.model.name)
    if config.model.frozen:
        inputs = frozen_features(config, table)
    else:
        check_images(config, table)
        inputs = table.images

    def make_samples(rows: np.ndarray, labels: np.ndarray) -> Samples:
        return Samples(
            take_rows(inputs, rows),
            labels.astype(np.int64),
            table.num_classes,
            spec.mean,
            spec.std,
            None if table.groups is None else table.groups[rows],
            None if table.checked is None else table.checked.part(rows),
        )

    return make_samples


def split_samples(table: ImageTable, split: str, sampler: Sampler) -> Samples | None:
    """The samples of a split with their true labels; None if the split is empty."""
    rows = table.rows(split)
    return sampler(rows, table.labels[rows]) if len(rows) else None


def take_rows(source: np.ndarray, rows: np.ndarray, limit: int = MEMORY_LIMIT) -> np.ndarray:
    """Rows of a large array: a copy in memory if it is small, else gathered per batch."""
    row_bytes = int(np.prod(source.shape[1:])) * source.dtype.itemsize
    if len(rows) * row_bytes <= limit:
        return np.ascontiguousarray(source[rows])
    return RowView(source, rows)  # type: ignore[return-value]
