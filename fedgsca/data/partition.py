"""Who holds which images: the training rows divided over sites, and what is unusual about a division."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

import numpy as np

from fedgsca.data.duplicates import same_image as same_image
from fedgsca.data.table import Table
from fedgsca.errors import ConfigError, DataError
from fedgsca.rng import stream

Scheme = Literal["stratified", "dirichlet", "group", "column"]
Parts = dict[str, np.ndarray]  # site name -> its row numbers in the table, ascending


def partition(
    table: Table,
    *,
    sites: int,
    scheme: Scheme = "stratified",
    alpha: float = 0.5,
    seed: int = 0,
    min_samples: int | None = None,
) -> Parts:
    """Divide the training rows; each row goes to exactly one site.

    stratified: every class in equal shares. dirichlet: class shares drawn with concentration `alpha` (small = uneven), at least
    `min_samples` a site. group: whole patients, slides or videos. column: the source's own site column; `sites` is 0 or agrees.
    """
    rows = table.rows("train")
    if scheme == "column":
        parts = _by_column(table, rows, sites)
    else:
        if sites < 1:
            raise ConfigError("todo.partition-1", f"{sites} sites", fix="choose at least one site")
        if sites > len(rows):
            raise DataError(
                "todo.partition-2",
                f"{sites} sites share {len(rows)} training images",
                fix=f"choose at most {len(rows)} sites",
            )
        if scheme == "stratified":
            shares = _stratified(table, rows, sites, seed)
        elif scheme == "dirichlet":
            shares = _dirichlet(table, rows, sites, alpha, seed, min_samples)
        elif scheme == "group":
            shares = _by_group(table, rows, sites, seed)
        else:
            raise ConfigError(
                "todo.partition-3",
                f"unknown partition {scheme!r}",
                fix="choose stratified, dirichlet, group or column",
            )
        parts = {f"site-{k + 1}": np.sort(share).astype(np.int64) for k, share in enumerate(shares)}
    least = 1 if min_samples is None else min_samples
    small = [name for name, share in parts.items() if len(share) < least]
    if small:
        raise DataError(
            "todo.partition-4",
            f"{small[0]} would get {len(parts[small[0]])} images, fewer than {least}",
            fix="use fewer sites, another partition, or a smaller minimum",
        )
    return parts


def _stratified(table: Table, rows: np.ndarray, sites: int, seed: int) -> list[np.ndarray]:
    """Deal the classes one after another like cards: shares differ by at most one image per class and one in total."""
    order = _shuffled_by_class(table, rows, seed)
    return [order[k::sites] for k in range(sites)]


def _shuffled_by_class(table: Table, rows: np.ndarray, seed: int) -> np.ndarray:
    shuffled = stream(seed, "partition").permutation(rows)
    return shuffled[np.argsort(table.labels[shuffled], kind="stable")]


def _dirichlet(
    table: Table, rows: np.ndarray, sites: int, alpha: float, seed: int, min_samples: int | None
) -> list[np.ndarray]:
    if not alpha > 0:
        raise ConfigError(
            "todo.partition-5",
            f"alpha = {alpha}",
            fix="alpha must be positive; 0.1 is very uneven, 100 is nearly equal",
        )
    # ten images keep a site trainable; with many sites on little data half a fair share must do
    least = max(1, min(10, len(rows) // (2 * sites))) if min_samples is None else min_samples
    if least * sites > len(rows):
        raise DataError(
            "todo.partition-6",
            f"{sites} sites with at least {least} images each need {least * sites}, the training set has {len(rows)}",
            fix="use fewer sites or a smaller minimum",
        )
    shares: list[list[int]] = [[] for _ in range(sites)]
    for label in np.unique(table.labels[rows]).tolist():
        rng = stream(seed, "partition", "dirichlet", label)
        members = rng.permutation(rows[table.labels[rows] == label])
        weight = (
            rng.gamma(alpha, size=sites) + 1e-300
        )  # a Dirichlet draw, safe where a tiny alpha gives zeros only
        cuts = np.rint(np.cumsum(weight / weight.sum())[:-1] * len(members)).astype(np.int64)
        for share, piece in zip(shares, np.split(members, cuts), strict=True):
            share.extend(piece.tolist())
    _top_up(shares, least, stream(seed, "partition", "top up"))
    return [np.array(share, dtype=np.int64) for share in shares]


def _top_up(shares: list[list[int]], least: int, rng: np.random.Generator) -> None:
    """Move random images from the largest site to those below the minimum: no draw leaves a site empty."""
    for share in shares:
        while len(share) < least:
            donor = max(shares, key=len)
            share.append(donor.pop(int(rng.integers(len(donor)))))


def _by_group(table: Table, rows: np.ndarray, sites: int, seed: int) -> list[np.ndarray]:
    """Whole groups, largest first, each to the site that holds least so far."""
    if table.groups is None:
        raise DataError(
            "todo.partition-7",
            f"{table.name}: no group is known",
            fix="add a group column (patient, slide or video) to labels.csv",
        )
    members: dict[str, list[int]] = {}
    for row in rows.tolist():
        members.setdefault(str(table.groups[row]), []).append(row)
    if len(members) < sites:
        raise DataError(
            "todo.partition-8",
            f"{table.name}: {len(members)} groups cannot be divided over {sites} sites",
            fix=f"choose at most {len(members)} sites, or another partition",
        )
    names = stream(seed, "partition", "group").permutation(np.array(sorted(members))).tolist()
    shares: list[list[int]] = [[] for _ in range(sites)]
    for name in sorted(
        names, key=lambda n: -len(members[n])
    ):  # stable: equal sizes stay in drawn order
        min(shares, key=len).extend(members[name])
    return [np.array(share, dtype=np.int64) for share in shares]


def _by_column(table: Table, rows: np.ndarray, sites: int) -> Parts:
    if table.site is None:
        raise DataError(
            "todo.partition-9",
            f"{table.name}: no site column",
            fix="add a site column to labels.csv, or choose another partition",
        )
    names = sorted(set(map(str, table.site[rows])))
    if sites not in (0, len(names)):
        raise ConfigError(
            "todo.partition-10",
            f"{sites} sites asked, the site column names {len(names)}: {', '.join(names[:5])}",
            fix=f"sites = {len(names)}",
        )
    odd = [name for name in names if not re.fullmatch(r"\w[\w .+-]*", name)]
    if odd:  # site names become file names
        raise DataError(
            "todo.partition-11",
            f"{table.name}: {odd[0]!r} cannot name a site",
            fix="use letters, digits, spaces, '-', '_' or '.'",
        )
    return {name: rows[table.site[rows] == name].astype(np.int64) for name in names}


def describe(table: Table, parts: Parts) -> list[str]:
    """What is unusual about a partition: allowed, but a person should know."""
    warnings = []
    train = np.unique(np.concatenate(list(parts.values()))) if parts else np.empty(0, np.int64)
    present = set(table.labels[train].tolist())
    for name, rows in parts.items():
        held = set(table.labels[rows].tolist())
        lacking = [table.classes[c] for c in sorted(present - held)]
        if len(held) == 1:
            warnings.append(f"{name} holds one class only: {table.classes[held.pop()]}")
        elif lacking:
            warnings.append(f"{name} has no image of {', '.join(lacking)}")
    sizes = [len(rows) for rows in parts.values()]
    if sizes and max(sizes) > 10 * min(sizes):
        warnings.append(
            f"sites differ more than tenfold in size: {min(sizes)} to {max(sizes)} images"
        )
    if table.groups is not None:
        spread = _spread({name: table.groups[rows] for name, rows in parts.items()})
        if spread:
            what = f"{len(spread)} {table.group_word}s stand at more than one site"
            warnings.append(f"{what}; --partition group keeps them together")
    return warnings


def _spread(groups: dict[str, np.ndarray]) -> dict[str, tuple[str, ...]]:
    """Groups that occur under more than one heading, with those headings."""
    places: dict[str, list[str]] = {}
    for heading, members in groups.items():
        for name in np.unique(members).tolist():
            places.setdefault(str(name), []).append(heading)
    return {name: tuple(found) for name, found in places.items() if len(found) > 1}


def leakage(table: Table) -> list[str]:
    """Warnings about groups (patients, slides, videos) that stand in more than one split; counts only, no names."""
    if table.groups is None:
        return []
    splits = [s for s in ("train", "val", "test") if len(table.rows(s))]
    spread = _spread({s: table.groups[table.rows(s)] for s in splits})
    if not spread:
        return []
    kinds = Counter(" + ".join(places) for places in spread.values())
    text = ", ".join(f"{count} in {kind}" for kind, count in sorted(kinds.items()))
    total = len(np.unique(table.groups))
    word = table.group_word
    warnings = [
        f"{len(spread)} of {total} {word}s stand in more than one split ({text}): test results will look too good"
    ]
    train = set(table.groups[table.rows("train")].tolist())
    test = table.groups[table.rows("test")].tolist()
    shared = sum(group in train for group in test)
    if shared:
        warnings.append(
            f"{shared} of {len(test)} test images come from a {word} that is also in training"
        )
    return warnings
