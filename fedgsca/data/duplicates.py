"""Exact copies of one image: across splits they leak, under two labels one of them is wrong."""

from __future__ import annotations

import hashlib

import numpy as np

from fedgsca.data.table import Table


def copies(table: Table) -> list[np.ndarray]:
    """Row numbers of every set of two or more identical images."""
    seen: dict[bytes, list[int]] = {}
    for row in range(len(table)):
        key = hashlib.blake2b(np.ascontiguousarray(table.images[row]).data, digest_size=16).digest()
        seen.setdefault(key, []).append(row)
    return [np.array(rows) for rows in seen.values() if len(rows) > 1]


def same_image(table: Table) -> list[str]:
    """Warnings about identical images, as counts."""
    found = copies(table)
    across = [rows for rows in found if len(np.unique(table.split[rows])) > 1]
    mixed = [rows for rows in found if len(np.unique(table.labels[rows])) > 1]
    warnings = []
    if across:
        test = sum(int(np.sum(table.split[rows] == "test")) for rows in across)
        warnings.append(
            f"{len(across)} images stand in more than one split, {test} of the copies in the test set"
        )
    if mixed:
        warnings.append(
            f"{len(mixed)} images occur more than once with different labels ({sum(map(len, mixed))} copies)"
        )
    inside = len(found) - len(across)
    if inside:
        warnings.append(f"{inside} images occur more than once within one split")
    return warnings
