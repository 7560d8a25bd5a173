"""A site's own class names in the numbering of the consortium."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedgsca.data.table import ImageTable, fingerprint
from fedgsca.errors import ClassListError


def align_classes(table: ImageTable, classes: Sequence[str]) -> ImageTable:
    """The same images with labels renumbered by class name.

    A site need not have images of every class. A class that is not in `classes` is an error: the
    shared model has no output for it.
    """
    unknown_classes = [name for name in table.classes if name not in classes]
    if unknown_classes:
        raise ClassListError(
            "data.class-not-in-consortium",
            f"{table.name}: {len(unknown_classes)} of {len(table.classes)} classes are not in the "
            f"consortium's list, the first is {unknown_classes[0]!r}",
            fix="name each of them in site.toml below [classes], for example"
            f' {json.dumps(unknown_classes[0], ensure_ascii=False)} = "{classes[0]}"; use only:'
            f" {', '.join(classes)}",
        )
    if tuple(table.classes) == tuple(classes):
        return table
    index = np.array([list(classes).index(name) for name in table.classes], np.int64)
    labels = index[table.labels]
    checked = None if table.checked is None else table.checked.renumber(index)
    return replace(
        table,
        labels=labels,
        given=_renumber(table.given, index),
        replaced_labels=_renumber(table.replaced_labels, index),
        classes=tuple(classes),
        checked=checked,
        fingerprint=fingerprint(
            table.images,
            labels,
            classes,
            table.split,
            features=table.features,
            checked=checked,
        ),
    )


def _renumber(labels: np.ndarray | None, index: np.ndarray) -> np.ndarray | None:
    return None if labels is None else index[labels]
