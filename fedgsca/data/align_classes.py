"""A site's own class names in the numbering of the consortium."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedgsca.data.table import Table, fingerprint
from fedgsca.errors import ClassListError


def with_classes(table: Table, classes: Sequence[str]) -> Table:
    """The same images with labels renumbered by class name.

    A site need not have images of every class. A class that the consortium does not know is an error: nobody could say
    what the shared model should answer there.
    """
    strange = [name for name in table.classes if name not in classes]
    if strange:
        raise ClassListError(
            "todo.align-classes-1",
            f"{table.name}: {len(strange)} of its classes are not in the list of the consortium, first: {strange[0]}",
            fix=f"rename or remove these labels; the classes are: {', '.join(classes)}",
        )
    if tuple(table.classes) == tuple(classes):
        return table
    number = np.array([list(classes).index(name) for name in table.classes], np.int64)
    labels = number[table.labels]
    named = fingerprint(table.images, labels, classes, table.split)
    given, replaced = (
        None if column is None else number[column] for column in (table.given, table.replaced)
    )
    return replace(
        table,
        labels=labels,
        given=given,
        replaced=replaced,
        classes=tuple(classes),
        fingerprint=named,
    )
