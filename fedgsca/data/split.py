"""A test set for sources that come without one."""

from __future__ import annotations

import contextlib

import numpy as np

from fedgsca.errors import DataError
from fedgsca.rng import stream
from fedgsca.support.text import plural


def split_rows(
    labels: np.ndarray,
    groups: np.ndarray | None,
    fraction: float,
    seed: int,
    *,
    source: str = "the data",
) -> np.ndarray:
    """(n,) of "train" | "test": about `fraction` of every class, complete groups if there are any.

    Every class has at least one training image; without groups, a class of two or more images also
    has at least one test image. With a fraction of 0 all images are for training. `source` names
    the data in an error.
    """
    if fraction == 0:
        return np.full(len(labels), "train")
    if groups is None:
        is_test = _draw_test_rows(labels, fraction, seed)
        available = plural(len(labels), "image")
    else:
        is_test = _draw_test_groups(labels, groups, fraction, seed)
        available = plural(len(np.unique(groups)), "group")
    if not is_test.any():
        raise DataError(
            "data.too-few-for-test-set",
            f"{source}: no test set can be set aside from only {available}",
            fix="add images, or mark the test images in a split column",
        )
    return np.where(is_test, "test", "train")


def three_way(
    labels: np.ndarray, groups: np.ndarray | None, seed: int, val: float = 0.1, test: float = 0.2
) -> np.ndarray:
    """(n,) of "train" | "val" | "test", 7:1:2 by default.

    If there are too few groups for a third part, there are no validation images.
    """
    split = split_rows(labels, groups, test, seed).astype("<U5")
    train = np.flatnonzero(split == "train")
    train_groups = None if groups is None else groups[train]
    with contextlib.suppress(DataError):
        inner = split_rows(labels[train], train_groups, val / (1 - test), seed)
        split[train[inner == "test"]] = "val"
    return split


def _draw_test_rows(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """(n,) bool"""
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels).tolist():
        members = stream(seed, "split", label).permutation(np.flatnonzero(labels == label))
        count = min(len(members) - 1, max(1, round(fraction * len(members))))
        is_test[members[:count]] = True
    return is_test


def _draw_test_groups(
    labels: np.ndarray, groups: np.ndarray, fraction: float, seed: int
) -> np.ndarray:
    """(n,) bool. Greedy, from the largest group on.

    A group joins the test set when that brings the class counts nearer to `fraction` of each class.
    """
    names, member = np.unique(groups, return_inverse=True)
    _, class_index = np.unique(labels, return_inverse=True)
    counts = np.zeros((len(names), int(class_index.max()) + 1))  # (groups, classes)
    np.add.at(counts, (member, class_index), 1)
    total = counts.sum(axis=0)
    test_counts = np.zeros_like(total)
    in_test = np.zeros(len(names), dtype=bool)
    order = stream(seed, "split", "groups").permutation(len(names))
    order = order[np.argsort(-counts[order].sum(axis=1), kind="stable")]
    for group in order.tolist():
        candidate_counts = test_counts + counts[group]
        # relative to the class size, so that a rare class counts as much as a common one
        old_distance = np.sum(((test_counts - fraction * total) / total) ** 2)
        new_distance = np.sum(((candidate_counts - fraction * total) / total) ** 2)
        if new_distance < old_distance and (candidate_counts < total).all():
            test_counts = candidate_counts
            in_test[group] = True
    if not in_test.any():
        # every group is larger than the share: the smallest one that leaves all classes in training
        for group in order[::-1].tolist():
            if (counts[group] < total).all():
                in_test[group] = True
                break
    return in_test[member]
