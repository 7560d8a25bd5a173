"""A test set for sources that come without one."""

from __future__ import annotations

import contextlib

import numpy as np

from fedgsca.errors import DataError
from fedgsca.rng import stream


def split_rows(
    labels: np.ndarray, groups: np.ndarray | None, fraction: float, seed: int
) -> np.ndarray:
    """(n,) of "train" | "test": about `fraction` of every class, whole groups where groups are known.

    Every class keeps at least one training image, and where it has two and no groups, one test image.
    """
    test = (
        _test_groups(labels, groups, fraction, seed)
        if groups is not None
        else _test_rows(labels, fraction, seed)
    )
    if not test.any():
        what = "images" if groups is None else "groups"
        raise DataError(
            "todo.split-1",
            f"too few {what} ({len(np.unique(groups)) if groups is not None else len(labels)}) to set a test set aside",
            fix="add images, or mark the test images in a split column",
        )
    return np.where(test, "test", "train")


def three_way(
    labels: np.ndarray, groups: np.ndarray | None, seed: int, val: float = 0.1, test: float = 0.2
) -> np.ndarray:
    """(n,) of "train" | "val" | "test", 7:1:2 unless asked otherwise. Groups too few for a third part: no validation images."""
    split = split_rows(labels, groups, test, seed).astype("<U5")
    rest = np.flatnonzero(split == "train")
    with contextlib.suppress(DataError):
        inner = split_rows(
            labels[rest], None if groups is None else groups[rest], val / (1 - test), seed
        )
        split[rest[inner == "test"]] = "val"
    return split


def _test_rows(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels).tolist():
        members = stream(seed, "split", label).permutation(np.flatnonzero(labels == label))
        count = min(len(members) - 1, max(1, round(fraction * len(members))))
        test[members[:count]] = True
    return test


def _test_groups(labels: np.ndarray, groups: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Greedy: a group joins the test set when that brings the class counts nearer to `fraction` of each class."""
    names, member = np.unique(groups, return_inverse=True)
    _, coded = np.unique(labels, return_inverse=True)
    counts = np.zeros((len(names), int(coded.max()) + 1))  # (groups, classes)
    np.add.at(counts, (member, coded), 1)
    total = counts.sum(axis=0)
    taken, chosen = np.zeros_like(total), np.zeros(len(names), dtype=bool)
    order = stream(seed, "split", "groups").permutation(len(names))
    order = order[np.argsort(-counts[order].sum(axis=1), kind="stable")]
    for group in order.tolist():
        with_it = taken + counts[group]
        # relative to the class size, so that a rare class counts as much as a common one
        nearer = np.sum(((with_it - fraction * total) / total) ** 2) < np.sum(
            ((taken - fraction * total) / total) ** 2
        )
        if nearer and (with_it < total).all():
            taken, chosen[group] = with_it, True
    if not chosen.any():  # every group is larger than the share: take the smallest that leaves all classes in training
        possible = [g for g in order[::-1].tolist() if (counts[g] < total).all()]
        chosen[possible[:1]] = True
    return chosen[member]
