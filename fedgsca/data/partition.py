"""Which site has which images: the training rows divided among sites, and warnings about it."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from typing import Literal

import numpy as np

from fedgsca.data.table import SPLITS, ImageTable
from fedgsca.errors import ConfigError, DataError
from fedgsca.rng import stream
from fedgsca.support.text import plural

Scheme = Literal["stratified", "dirichlet", "missing", "group", "column"]
Parts = dict[str, np.ndarray]  # site name -> its row numbers in the table, ascending


def partition(
    table: ImageTable,
    *,
    sites: int,
    scheme: Scheme = "stratified",
    alpha: float = 0.5,
    missing: int | None = None,
    seed: int = 0,
    min_samples: int | None = None,
) -> Parts:
    """Divide the training rows; each row goes to exactly one site.

    stratified: every class in equal shares. dirichlet: class shares drawn with concentration
    `alpha` (small = uneven), at least `min_samples` a site. missing: equal shares, but every site
    lacks `missing` classes (default: a third of them), in turn. group: complete patients, slides or
    videos. column: the source's own site column; `sites` is 0 or agrees with it.
    """
    rows = table.rows("train")
    if scheme == "column":
        parts = _by_column(table, rows, sites)
    else:
        _check_site_count(sites, len(rows))
        if scheme == "stratified":
            shares = _stratified(table, rows, sites, seed)
        elif scheme == "dirichlet":
            shares = _dirichlet(table, rows, sites, alpha, seed, min_samples)
        elif scheme == "missing":
            shares = _missing(table, rows, sites, missing, seed)
        elif scheme == "group":
            shares = _by_group(table, rows, sites, seed)
        else:
            raise ConfigError(
                "data.unknown-partition",
                f"unknown partition {scheme!r}",
                fix="use one of: stratified, dirichlet, missing, group, column",
            )
        parts = {f"site-{k + 1}": np.sort(share).astype(np.int64) for k, share in enumerate(shares)}
    _check_sizes(parts, 1 if min_samples is None else min_samples)
    return parts


def _check_sizes(parts: Parts, minimum: int) -> None:
    for name, share in parts.items():
        if len(share) < minimum:
            raise DataError(
                "data.site-too-small",
                f"the site {name} would get {plural(len(share), 'image')}, "
                f"but the minimum is {minimum}",
                fix="use fewer sites, another partition, or a smaller minimum",
            )


def _check_site_count(sites: int, images: int) -> None:
    if sites < 1:
        raise ConfigError(
            "data.site-count",
            f"the number of sites must be at least 1, got {sites}",
            fix="set the number of sites to 1 or more",
        )
    if sites > images:
        raise DataError(
            "data.more-sites-than-images",
            f"{images} training images cannot be divided among {sites} sites",
            fix=f"choose at most {images} sites",
        )


def _stratified(table: ImageTable, rows: np.ndarray, sites: int, seed: int) -> list[np.ndarray]:
    """Deal the classes one after another like cards.

    Shares differ by at most one image per class and one in total.
    """
    rows = stream(seed, "partition").permutation(rows)
    order = rows[np.argsort(table.labels[rows], kind="stable")]
    return [order[k::sites] for k in range(sites)]


def _dirichlet(
    table: ImageTable,
    rows: np.ndarray,
    sites: int,
    alpha: float,
    seed: int,
    min_samples: int | None,
) -> list[np.ndarray]:
    if not alpha > 0:
        raise ConfigError(
            "data.alpha",
            f"the concentration alpha must be positive, got {alpha}",
            fix="choose a positive number: 0.1 is very uneven, 100 is nearly equal",
        )
    # ten images make a site trainable; with many sites on little data, half a fair share
    default = max(1, min(10, len(rows) // (2 * sites)))
    minimum = default if min_samples is None else min_samples
    if minimum * sites > len(rows):
        raise DataError(
            "data.minimum-too-large",
            f"{sites} sites with at least {minimum} images each need {minimum * sites} training "
            f"images, but there are {len(rows)}",
            fix="use fewer sites or a smaller minimum",
        )
    shares: list[list[int]] = [[] for _ in range(sites)]
    for label in np.unique(table.labels[rows]).tolist():
        rng = stream(seed, "partition", "dirichlet", label)
        members = rng.permutation(rows[table.labels[rows] == label])
        # a Dirichlet draw, safe where a tiny alpha gives zeros only
        weight = rng.gamma(alpha, size=sites) + 1e-300
        cuts = np.rint(np.cumsum(weight / weight.sum())[:-1] * len(members)).astype(np.int64)
        for share, piece in zip(shares, np.split(members, cuts), strict=True):
            share.extend(piece.tolist())
    _top_up(shares, minimum, stream(seed, "partition", "top up"))
    return [np.array(share, dtype=np.int64) for share in shares]


def _missing(
    table: ImageTable, rows: np.ndarray, sites: int, missing: int | None, seed: int
) -> list[np.ndarray]:
    """Equal shares of every class among the sites that have it; site k lacks the k-th few classes.

    The classes are taken in a random order and in turn, so that all are missing equally often.
    """
    classes = np.unique(table.labels[rows])
    count = max(1, len(classes) // 3) if missing is None else missing
    order = stream(seed, "partition", "missing").permutation(classes)
    absent = []
    for k in range(sites):
        absent.append({int(order[(k * count + j) % len(order)]) for j in range(count)})
    shares: list[list[int]] = [[] for _ in range(sites)]
    for label in classes.tolist():
        holders = [k for k in range(sites) if label not in absent[k]]
        if not holders:
            raise ConfigError(
                "data.class-nowhere",
                f"with {plural(count, 'class', 'classes')} missing at each of {sites} sites, "
                f"{table.classes[label]!r} would be at no site",
                fix="use more sites, or a smaller data.missing",
            )
        rng = stream(seed, "partition", "missing", label)
        members = rng.permutation(rows[table.labels[rows] == label])
        for number, k in enumerate(holders):
            shares[k].extend(members[number :: len(holders)].tolist())
    return [np.array(share, dtype=np.int64) for share in shares]


def _top_up(shares: list[list[int]], minimum: int, rng: np.random.Generator) -> None:
    """Move random images from the largest site to those below the minimum."""
    for share in shares:
        while len(share) < minimum:
            donor = max(shares, key=len)
            share.append(donor.pop(int(rng.integers(len(donor)))))


def _by_group(table: ImageTable, rows: np.ndarray, sites: int, seed: int) -> list[np.ndarray]:
    """Complete groups, largest first, each to the site with the fewest images so far."""
    if table.groups is None:
        raise DataError(
            "data.no-groups",
            f"{table.name} cannot be divided by group: its images have no groups",
            fix="add a group column (patient, slide or video) to labels.csv, or choose another "
            "partition",
        )
    members: dict[str, list[int]] = {}
    for row in rows.tolist():
        members.setdefault(str(table.groups[row]), []).append(row)
    if len(members) < sites:
        raise DataError(
            "data.more-sites-than-groups",
            f"{table.name}: {plural(len(members), table.group_word)} cannot be divided among "
            f"{sites} sites",
            fix=f"choose at most {len(members)} sites, or another partition",
        )
    names = stream(seed, "partition", "group").permutation(np.array(sorted(members))).tolist()
    names.sort(key=lambda name: -len(members[name]))  # stable: ties remain in the drawn order
    shares: list[list[int]] = [[] for _ in range(sites)]
    for name in names:
        min(shares, key=len).extend(members[name])
    return [np.array(share, dtype=np.int64) for share in shares]


def _by_column(table: ImageTable, rows: np.ndarray, sites: int) -> Parts:
    if table.site is None:
        raise DataError(
            "data.no-site-column",
            f"{table.name} cannot be divided by column: it has no site column",
            fix="add a site column to labels.csv, or choose another partition",
        )
    names = sorted(set(map(str, table.site[rows])))
    if sites not in (0, len(names)):
        raise ConfigError(
            "data.site-count-differs",
            f"the number of sites is {sites}, but the site column of {table.name} contains "
            f"{len(names)}: {', '.join(names[:5])}",
            fix=f"set the number of sites to {len(names)}",
        )
    for name in names:  # site names become file names
        if not re.fullmatch(r"\w[\w .+-]*", name):
            raise DataError(
                "data.site-name",
                f"{table.name}: {name!r} cannot be used as the name of a site",
                fix="use letters, digits, spaces, '-', '_' or '.'",
            )
    return {name: rows[table.site[rows] == name].astype(np.int64) for name in names}


# sites that are named one by one; more of them are one sentence
MAX_SITE_WARNINGS = 12


def partition_warnings(table: ImageTable, parts: Parts) -> list[str]:
    """What is unusual about a partition: permitted, but a person should know."""
    warnings = []
    train = np.unique(np.concatenate(list(parts.values()))) if parts else np.empty(0, np.int64)
    all_labels = set(table.labels[train].tolist())
    for name, rows in parts.items():
        site_labels = set(table.labels[rows].tolist())
        missing_classes = [table.classes[label] for label in sorted(all_labels - site_labels)]
        if len(site_labels) == 1:
            only_class = table.classes[site_labels.pop()]
            warnings.append(f"{name} has images of one class only: {only_class}")
        elif missing_classes:
            warnings.append(f"{name} has no image of {', '.join(missing_classes)}")
    if len(warnings) > MAX_SITE_WARNINGS:
        first = f"{plural(len(warnings), 'site')} of {len(parts)} lack classes"
        warnings = [f"{first}, such as {warnings[0]}"]
    sizes = [len(rows) for rows in parts.values()]
    if sizes and max(sizes) > 10 * min(sizes):
        warnings.append(
            f"sites differ more than tenfold in size: {min(sizes)} to {max(sizes)} images"
        )
    if table.groups is not None:
        groups = {name: table.groups[rows] for name, rows in parts.items()}
        shared_groups = _groups_in_several(groups)
        if shared_groups:
            warnings.append(
                f"{plural(len(shared_groups), table.group_word)} split across several sites; "
                "--partition group keeps them together"
            )
    return warnings


def _groups_in_several(groups: dict[str, np.ndarray]) -> dict[str, tuple[str, ...]]:
    """Groups that occur in more than one part, with the names of these parts."""
    parts_by_group: dict[str, list[str]] = {}
    for part, members in groups.items():
        for name in np.unique(members).tolist():
            parts_by_group.setdefault(str(name), []).append(part)
    return {name: tuple(parts) for name, parts in parts_by_group.items() if len(parts) > 1}


def leakage_warnings(table: ImageTable) -> list[str]:
    """Warnings about groups (patients, slides, videos) in more than one split.

    Counts only: names of groups may identify patients.
    """
    if table.groups is None:
        return []
    groups = {}
    for split in SPLITS:
        if len(table.rows(split)):
            groups[split] = table.groups[table.rows(split)]
    shared_groups = _groups_in_several(groups)
    if not shared_groups:
        return []
    combinations = Counter(" + ".join(splits) for splits in shared_groups.values())
    details = ", ".join(f"{count} in {splits}" for splits, count in sorted(combinations.items()))
    total = len(np.unique(table.groups))
    word = table.group_word
    warnings = [
        f"{len(shared_groups)} of {total} {word}s are in more than one split ({details}): "
        "test results will look too good"
    ]
    train_groups = set(table.groups[table.rows("train")].tolist())
    test_groups = table.groups[table.rows("test")].tolist()
    leak_count = sum(group in train_groups for group in test_groups)
    if leak_count:
        warnings.append(
            f"{leak_count} of {len(test_groups)} test images come from a {word} that is also in "
            "the training set"
        )
    return warnings


# ---- test images ----


def choose_split(
    column: np.ndarray | None,
    labels: np.ndarray,
    groups: np.ndarray | None,
    fraction: float,
    seed: int,
    *,
    source: str,
) -> tuple[np.ndarray, list[str]]:
    """(n,) the splits of the source's column, or test images set aside now, and a note on these."""
    if column is not None:
        return column, []
    split = split_rows(labels, groups, fraction, seed, source=source)
    if fraction == 0:
        return split, []
    grouping = "" if groups is None else ", whole groups together"
    return split, [
        f"no split column: {np.sum(split == 'test')} of {len(split)} images set aside as test set "
        f"with seed {seed}, by class{grouping}"
    ]


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
