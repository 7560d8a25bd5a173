"""`fedgsca data check`: everything that can be said about a source before a run, without stopping at the first problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.duplicates import same_image
from fedgsca.data.load import READERS, find_reader, load
from fedgsca.data.partition import leakage
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
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # split -> class -> images
    shape: tuple[int, ...] = ()  # (height, width, channels) as trained on
    stored: tuple[tuple[str, int], ...] = ()  # ("2592x1728", 6311): sizes of the files, most frequent first
    groups: int | None = None
    sites: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[Finding, ...] = ()
    bad: tuple[tuple[str, str], ...] = ()  # unreadable files with the reason

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
) -> Report:
    """Look at the whole source. Problems of the data are collected, never raised; warnings do not stop a run."""
    try:
        reader, rest = find_reader(source)
        if reader.read is READERS["folder"].read:
            return _check_folder(source, Path(rest).expanduser(), image_size, seed, test_fraction, cache_dir, labels)
        table = load(source, image_size=image_size, seed=seed, cache_dir=cache_dir, labels=labels)
        return _about(source, table)
    except FedgscaError as error:
        return Report(source, problems=(Finding(error.message, error.fix),))


def list_bad(source: str, *, image_size: int | None = None, cache_dir: Path | None = None) -> list[tuple[str, str]]:
    """Unreadable files of a folder with the reason; other sources have none."""
    from fedgsca.data import folder

    reader, rest = find_reader(source)
    if reader.read is not READERS["folder"].read:
        return []
    return folder.list_bad(Path(rest).expanduser(), image_size=image_size, cache_dir=cache_dir)


def _check_folder(
    source: str,
    root: Path,
    image_size: int | None,
    seed: int,
    test_fraction: float,
    cache_dir: Path | None,
    labels: Path | None,
) -> Report:
    """Problems of the list and of the images together; the rest of the report needs a list without problems."""
    from fedgsca.data import folder
    from fedgsca.data.listing import list_folder

    listing = list_folder(root)
    problems = [Finding(str(problem), problem.fix) for problem in listing.problems]
    bad = folder.list_bad(root, image_size=image_size, cache_dir=cache_dir)
    if bad:
        error = folder.unreadable(root, bad, len(listing.rows))
        problems.append(Finding(error.message, error.fix))
    report = Report(source, name=root.name, notes=tuple(listing.notes))
    stored: tuple[tuple[str, int], ...] = ()
    if not listing.problems and len(bad) < len(listing.rows):
        facts = folder.read_pixels(listing, image_size, cache_dir).facts
        stored = tuple(Counter(f"{f.width}x{f.height}" for f in facts if not f.problem).most_common())
        try:
            table = load(
                source,
                image_size=image_size,
                seed=seed,
                test_fraction=test_fraction,
                cache_dir=cache_dir,
                labels=labels,
                skip_unreadable=True,
            )
            report = _about(source, table)
        except FedgscaError as error:
            problems.append(Finding(error.message, error.fix))
    return replace(report, stored=stored, problems=tuple(problems), bad=tuple(bad))


def _about(source: str, table: Table) -> Report:
    counts = {
        split: {name: int(np.sum(table.labels[rows] == i)) for i, name in enumerate(table.classes)}
        for split in SPLITS
        if len(rows := table.rows(split))
    }
    names, sizes = np.unique(table.site, return_counts=True) if table.site is not None else (np.empty(0), np.empty(0))
    return Report(
        source=source,
        name=table.name,
        classes=table.classes,
        counts=counts,
        shape=tuple(table.images.shape[1:]),
        groups=None if table.groups is None else len(np.unique(table.groups)),
        sites={str(name): int(size) for name, size in zip(names.tolist(), sizes.tolist(), strict=True)},
        fingerprint=table.fingerprint,
        notes=table.notes,
        warnings=tuple(_class_warnings(counts) + leakage(table) + same_image(table) + _flat_images(table)),
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
        warnings.append(f"classes differ more than twentyfold in size: {min(present)} to {max(present)} training images")
    return warnings


def _flat_images(table: Table) -> list[str]:
    """Images of one colour only: black frames, failed exports."""
    flat = sum(int(image.min()) == int(image.max()) for image in table.images)
    return [f"{flat} images show a single colour and nothing else"] if flat else []
