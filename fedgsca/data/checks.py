"""`fedgsca data check`: everything that can be said about a source before a run, without stopping at the first problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.duplicates import same_image
from fedgsca.data.file_facts import sha256_file
from fedgsca.data.file_list import Branch
from fedgsca.data.load import Options, Reader, complete, find_reader, read_table
from fedgsca.data.partition import leakage
from fedgsca.data.readers.published import count_published
from fedgsca.data.table import SPLITS, Table
from fedgsca.errors import FedgscaError

_FEW = 10  # training images below which a class can hardly be learnt


@dataclass(frozen=True)
class Finding:
    """A problem that stops a run, and what to do about it."""

    text: str
    fix: str


@dataclass(frozen=True)
class Report:
    """The result of a check; `ok` means that a run would start."""

    source: str
    name: str = ""
    classes: tuple[str, ...] = ()
    counts: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict
    )  # split -> class -> images
    shape: tuple[int, ...] = ()  # (height, width, channels) as trained on
    stored: tuple[
        tuple[str, int], ...
    ] = ()  # ("2592x1728", 6311): sizes of the files, most frequent first
    groups: int | None = None
    group_word: str = "group"
    sites: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[Finding, ...] = ()
    bad: tuple[tuple[str, str], ...] = ()  # unreadable files with the reason
    tree: tuple[Branch, ...] = ()  # published data sets: the folders found
    lists: tuple[tuple[str, str], ...] = ()  # (file, sha256) of the lists that were read
    list_sha256: str = ""  # over file, label, split and site of every image: two copies of a data set can be compared
    published: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict
    )  # split -> class or "all" -> images
    published_sites: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {"ok": self.ok, **asdict(self)}


def check_source(
    source: str,
    *,
    image_size: int | None = None,
    seed: int = 0,
    test_fraction: float = 0.2,
    cache_dir: Path | None = None,
    labels: Path | None = None,
    split: str | None = None,
    label: str | None = None,
    splits: Path | None = None,
    fast: bool = False,
) -> Report:
    """Look at the whole source. Problems of the data are collected, never raised; warnings do not stop a run.

    `fast` decodes no image: files must be there, but may be damaged.
    """
    options = Options(
        image_size, seed, cache_dir, None, None, test_fraction, False, split, label, splits
    )
    try:
        reader, rest = find_reader(source)
        reader.refuse(options)
        if reader.listing is not None:
            return _check_listing(source, reader, Path(rest).expanduser(), options, labels, fast)
        return _about(source, complete(read_table(reader, rest, options), labels))
    except FedgscaError as error:
        return Report(source, problems=(Finding(error.message, error.fix),))


def _check_listing(
    source: str, reader: Reader, root: Path, options: Options, labels: Path | None, fast: bool
) -> Report:
    """Problems of the list and of the images together; the rest of the report is about what could be used."""
    from fedgsca.data.readers import folder

    assert reader.listing is not None
    listing = reader.listing(root, options)
    problems = [Finding(str(problem), problem.fix) for problem in listing.problems]
    bad = (
        []
        if fast
        else folder.list_bad(listing, image_size=options.image_size, cache_dir=options.cache_dir)
    )
    if bad:
        error = folder.unreadable(listing, bad)
        problems.append(Finding(error.message, error.fix))
    usable = (
        reader.listing(root, replace(options, skip_unreadable=True))
        if listing.problems
        else listing
    )
    report = Report(source, name=root.name, notes=tuple(listing.notes))
    stored: tuple[tuple[str, int], ...] = ()
    if not usable.problems and len(bad) < len(usable.rows):
        pixels = (
            folder.no_pixels(usable)
            if fast
            else folder.read_pixels(usable, options.image_size, options.cache_dir)
        )
        stored = tuple(
            Counter(f"{f.width}x{f.height}" for f in pixels.facts if not f.problem).most_common()
        )
        try:
            table = complete(
                folder.build_table(usable, pixels, options.seed, options.test_fraction), labels
            )
            report = _about(source, table, fast)
        except FedgscaError as error:
            problems.append(Finding(error.message, error.fix))
    return replace(
        report,
        stored=stored,
        problems=tuple(problems),
        bad=tuple(bad),
        tree=tuple(usable.tree),
        lists=tuple((path.name, sha256_file(path)) for path in usable.lists),
        list_sha256=usable.sha256() if not usable.problems and usable.lists + usable.tree else "",
        published=usable.published,
        published_sites=usable.published_sites,
        warnings=report.warnings + (tuple(count_published(usable)) if report.counts else ()),
    )


def _about(source: str, table: Table, fast: bool = False) -> Report:
    counts = {
        split: {name: int(np.sum(table.labels[rows] == i)) for i, name in enumerate(table.classes)}
        for split in SPLITS
        if len(rows := table.rows(split))
    }
    placed = np.empty(0) if table.site is None else table.site[table.site != ""]
    names, sizes = np.unique(placed, return_counts=True)
    warnings = (
        _class_warnings(counts)
        + leakage(table)
        + ([] if fast else same_image(table) + _flat_images(table))
    )
    return Report(
        source=source,
        name=table.name,
        classes=table.classes,
        counts=counts,
        shape=() if fast else tuple(table.images.shape[1:]),
        groups=None if table.groups is None else len(np.unique(table.groups)),
        group_word=table.group_word,
        sites={
            str(name): int(size) for name, size in zip(names.tolist(), sizes.tolist(), strict=True)
        },
        fingerprint="" if fast else table.fingerprint,
        notes=table.notes,
        warnings=tuple(warnings),
    )


def _class_warnings(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    warnings = []
    for split, classes in counts.items():
        absent = [name for name, count in classes.items() if count == 0]
        if absent:
            warnings.append(f"{split}: no image of {', '.join(absent)}")
    train = counts["train"]
    few = [f"{name} ({count})" for name, count in train.items() if 0 < count < _FEW]
    if few:
        warnings.append(f"fewer than {_FEW} training images of {', '.join(few)}")
    present = [count for count in train.values() if count]
    if max(present) > 20 * min(present):
        warnings.append(
            f"classes differ more than twentyfold in size: {min(present)} to {max(present)} training images"
        )
    return warnings


def _flat_images(table: Table) -> list[str]:
    """Images of one colour only: black frames, failed exports."""
    flat = sum(int(image.min()) == int(image.max()) for image in table.images)
    return [f"{flat} images show a single colour and nothing else"] if flat else []
