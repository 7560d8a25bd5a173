"""Exact copies of one image: across splits they leak, under two labels one of them is wrong."""

from __future__ import annotations

import hashlib

import numpy as np

from fedgsca.data.table import ImageTable
from fedgsca.support.text import plural


def find_duplicates(table: ImageTable) -> list[np.ndarray]:
    """Row numbers of every set of two or more identical images."""
    rows_by_digest: dict[bytes, list[int]] = {}
    for row in range(len(table)):
        pixels = np.ascontiguousarray(table.images[row]).data
        digest = hashlib.blake2b(pixels, digest_size=16).digest()
        rows_by_digest.setdefault(digest, []).append(row)
    return [np.array(rows) for rows in rows_by_digest.values() if len(rows) > 1]


def duplicate_warnings(table: ImageTable) -> list[str]:
    """Warnings about identical images, as counts."""
    duplicates = find_duplicates(table)
    across_splits = [rows for rows in duplicates if len(np.unique(table.split[rows])) > 1]
    across_labels = [rows for rows in duplicates if len(np.unique(table.labels[rows])) > 1]
    warnings = []
    if across_splits:
        test_copies = sum(int(np.sum(table.split[rows] == "test")) for rows in across_splits)
        warnings.append(
            f"duplicate images across splits: {plural(len(across_splits), 'image')}, "
            f"{plural(test_copies, 'copy', 'copies')} in the test set"
        )
    if across_labels:
        copies = sum(map(len, across_labels))
        warnings.append(
            f"duplicate images with different labels: {plural(len(across_labels), 'image')}, "
            f"{plural(copies, 'copy', 'copies')} in total"
        )
    within_split = len(duplicates) - len(across_splits)
    if within_split:
        warnings.append(f"duplicate images within one split: {plural(within_split, 'image')}")
    return warnings
