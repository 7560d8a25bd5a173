"""Which images a source contains and what they are, before any of them is decoded.

A reader of image files returns a FileList. Problems are collected in it, not raised, so that a
person can repair a list in one go and not line by line.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fedgsca.data.cache import cache_folder
from fedgsca.errors import DataError, FedgscaError
from fedgsca.support.console import activity
from fedgsca.support.files import write_atomic
from fedgsca.support.text import join_words, one_line, plural

MAX_CLASSES = 10_000
MAX_CLASS_NAME = 200  # characters
_MAX_CASES = 5  # examples in one message
_MAX_CASE = 200  # characters of each
_MAX_PATH = 4096  # no longer path can be opened; resolving one takes quadratic time


@dataclass(frozen=True)
class ImageRow:
    """One image of the list; columns that the source lacks are empty."""

    file: str
    label: str
    group: str = ""
    split: str = ""
    site: str = ""
    # the label that a site trains on, where `label` is better: a reference or the truth
    given: str = ""
    # the image's id, where the name of the file would reveal the label
    name: str = ""
    # a person has checked the label
    checked: bool = False
    # the label before the check
    original: str = ""


@dataclass(frozen=True)
class FolderCount:
    """How many images a folder contains, and how many were published."""

    folder: str
    images: int
    published_images: int | None = None


@dataclass
class FileList:
    """Images in order, with every problem and every remark."""

    root: Path
    rows: list[ImageRow] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    # collected with `add_problem`, raised together by `raise_problems`
    problems: list[DataError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # as typed after --data
    source: str = ""
    # of the data set; default: the folder's
    name: str = ""
    # in the published order; default: sorted
    classes: tuple[str, ...] = ()
    # what a group is: patient, slide, video
    group_word: str = "group"
    # a class name in the source -> the name in `rows`, where names.toml gives it another one
    class_names: dict[str, str] = field(default_factory=dict)
    # class names from the lowest grade to the highest, where names.toml says so
    order: tuple[str, ...] = ()
    # the folders of a published data set
    folders: list[FolderCount] = field(default_factory=list)
    # files of the source beyond `rows`: they count for the common size and depth of all images
    undrawn_files: tuple[str, ...] = ()
    # the csv, xlsx or json files that were read
    source_files: list[Path] = field(default_factory=list)
    # split -> class (or "all") -> images
    published_counts: dict[str, dict[str, int]] = field(default_factory=dict)
    # site -> training images
    published_sites: dict[str, int] = field(default_factory=dict)

    def add_problem(self, problem: DataError) -> None:
        """Collect a problem; this is how a reader reports one."""
        self.problems.append(problem)

    def report(
        self,
        code: str,
        cases: Collection[str],
        noun: str,
        place: str,
        *,
        fix: str,
        nouns: str | None = None,
    ) -> None:
        """Collect a problem of several cases, if there are any: how many, where, the first few."""
        if cases:
            count = plural(len(cases), noun, nouns)
            message = f"{self.root}: {count} {place}: {show_cases(cases)}"
            self.add_problem(DataError(code, message, fix=fix))

    def check_duplicates(self, lines: Sequence[int] | None = None) -> None:
        """Report files that occur in more than one row.

        `lines` are the line numbers of the rows in a person's own list; a published data set has
        none, because nobody should edit its lists.
        """
        positions: dict[str, list[int]] = {}
        for position, row in enumerate(self.rows):
            if row.file:
                positions.setdefault(row.file, []).append(position)
        cases = []
        has_conflict = False
        for name, repeats in positions.items():
            if len(repeats) > 1:
                is_same = len({self.rows[position].label for position in repeats}) == 1
                has_conflict |= not is_same
                numbers = None if lines is None else [lines[position] for position in repeats]
                cases.append(f"{shorten(name)} ({repeats_text(numbers, is_same)})")
        fix = "copy the published list again" if lines is None else repeats_fix(has_conflict)
        self.report("data.duplicate-file", cases, "file", "listed more than once", fix=fix)

    def check_classes(self) -> None:
        """Report labels that are no names of classes: endless ones, or almost one per image."""
        names = {row.label for row in self.rows} | {row.given for row in self.rows} - {""}
        long_names = sorted(name for name in names if len(name) > MAX_CLASS_NAME)
        self.report(
            "data.class-name-too-long",
            [f"{one_line(name, 60)} ({len(name):,} characters)" for name in long_names],
            "label",
            f"longer than the name of a class may be, {MAX_CLASS_NAME} characters",
            fix="use short names; a quotation mark that is not closed joins many lines",
        )
        if len(names) > MAX_CLASSES:
            self.add_problem(
                DataError(
                    "data.too-many-labels",
                    f"{self.root}: there are {len(names):,} different labels, but there may be at "
                    f"most {MAX_CLASSES:,} classes",
                    fix="check which column contains the labels",
                )
            )

    def raise_problems(self) -> None:
        """Raise what was collected: a single problem as it is, several as one error."""
        if not self.problems:
            return
        if len(self.problems) == 1:
            raise self.problems[0]
        messages = [self.without_root(problem.message) for problem in self.problems]
        fixes = dict.fromkeys(problem.fix for problem in self.problems)
        raise DataError(
            "data.several-problems",
            f"{self.root} has {len(messages)} problems: {'; '.join(messages)}",
            fix="; ".join(fixes),
        )

    def without_root(self, message: str) -> str:
        """A message without the folder at its beginning, for a list of several messages."""
        return message.removeprefix(f"{self.root}: ")


def shorten(name: str) -> str:
    """A name that leaves room for a remark in a case of `show_cases`."""
    return one_line(name, _MAX_CASE // 2)


def repeats_text(lines: Sequence[int] | None, is_same: bool) -> str:
    """Where the rows of one file are and whether they agree: "lines 2 and 9, the same label"."""
    labels = "the same label" if is_same else "different labels"
    if lines is None:
        return labels
    numbers = [str(line) for line in lines[:_MAX_CASES]]
    if len(lines) > _MAX_CASES:
        numbers.append(f"{len(lines) - _MAX_CASES} more")
    return f"lines {join_words(numbers)}, {labels}"


def repeats_fix(has_conflict: bool) -> str:
    """What to do about a list that names a file more than once."""
    choice = "; where the labels differ, keep the correct one" if has_conflict else ""
    return f"keep one line per image{choice}"


def show_cases(cases: Collection[str]) -> str:
    """The first few cases for a message: "a.png, b.png, ..."."""
    examples = [one_line(case, _MAX_CASE) for case in list(cases)[:_MAX_CASES]]
    if len(cases) > _MAX_CASES:
        examples.append("...")
    return ", ".join(examples)


def normal_path(name: str) -> str:
    """One spelling per file: forward slashes, no './'."""
    return str(PurePosixPath(name.replace("\\", "/"))) if name else ""


def is_file(path: Path) -> bool:
    """Whether the path is a file. A name that no file can have, or a link in a circle, is none."""
    try:
        return len(str(path)) <= _MAX_PATH and path.is_file()
    except (OSError, ValueError):  # too long, or with a NUL character
        return False


def linked_outside(root: Path, names: Iterable[str]) -> list[str]:
    """Names below `root` that symbolic links lead out of it: to files of somebody else."""
    real_root = os.path.realpath(root)
    folders: dict[str, bool] = {}  # whether a folder is inside
    outside = []
    for name in names:
        path = root / name
        if not is_file(path):
            continue  # reported as missing
        folder = str(path.parent)
        if folder not in folders:
            folders[folder] = _is_below(os.path.realpath(folder), real_root)
        is_inside = folders[folder]
        if path.is_symlink():
            is_inside = _is_below(os.path.realpath(path), real_root)
        if not is_inside:
            outside.append(name)
    return outside


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def list_files(root: Path) -> list[str]:
    """All files below a folder by name, without hidden ones and what macOS adds to archives."""
    paths = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if is_file(p))
    return [path for path in paths if not _is_hidden(path.split("/"))]


def _is_hidden(parts: Iterable[str]) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in parts)


def check_class_count(path: Path, labels: np.ndarray) -> None:
    """A single absurd label must not ask for as many classes."""
    largest = int(labels.max(initial=-1))
    if largest >= MAX_CLASSES:
        raise DataError(
            "data.too-many-classes",
            f"{path}: the largest label is {largest:,}, but there may be at most {MAX_CLASSES:,}"
            " classes",
            fix="number the classes 0, 1, 2, ... without gaps",
        )


# ---- facts about each file: checksum, size, depth; measured once per version of the file ----


# A file that changes twice within one tick of the clock looks unchanged, so a file that was
# modified less than this many seconds ago is measured again next time.
_SETTLING_SECONDS = 2.0
WORKERS = max(1, min(4, os.cpu_count() or 1))

# file -> its size and time of modification, in nanoseconds, and the value measured then
Measurements = dict[str, tuple[list[int], Any]]


def measure_files(
    root: Path,
    names: Sequence[str],
    measure: Callable[[Path], Any],
    version: str,
    cache_dir: Path | None = None,
) -> list[Any]:
    """`measure(root / name)` for every name, in order.

    Files with the same size and time as before are not measured again. Values must survive JSON.
    The stored measurements only save time: if they are lost, damaged or cannot be written, the
    files are measured again.
    """
    place = hashlib.sha256(f"{version} {root.resolve()}".encode()).hexdigest()[:32]
    path = cache_folder(cache_dir) / f"files-{place}.json"
    measurements = _read_measurements(path)
    pending = {}
    for name in dict.fromkeys(names):
        status = (root / name).stat()
        stamp = [status.st_size, status.st_mtime_ns]
        if name not in measurements or measurements[name][0] != stamp:
            pending[name] = stamp
    if pending:
        latest = time.time_ns() - int(_SETTLING_SECONDS * 1e9)
        # hashing and decoding release the interpreter lock
        with ThreadPoolExecutor(WORKERS) as pool, activity("checking files", len(pending)) as tick:
            values = pool.map(lambda name: measure(root / name), pending, chunksize=8)
            for (name, stamp), value in zip(pending.items(), values, strict=True):
                measurements[name] = (stamp, value)
                tick(1)
        content = {name: entry for name, entry in measurements.items() if entry[0][1] < latest}
        # the cache of arrays reports an unusable folder; here it only costs time
        with contextlib.suppress(FedgscaError):
            write_atomic(path, json.dumps(content).encode())
    return [measurements[name][1] for name in names]


def _read_measurements(path: Path) -> Measurements:
    try:
        entries = json.loads(path.read_bytes()).items()
        return {name: (stamp, value) for name, (stamp, value) in entries if len(stamp) == 2}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
