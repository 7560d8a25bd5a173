"""`fedgsca data check`: all that can be said about a source before a run.

It does not stop at the first problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.build_table import (
    BadFile,
    DecodedImages,
    blank_images,
    build_table,
    decode_images,
    find_bad_files,
    spelling_warnings,
    unreadable_error,
)
from fedgsca.data.duplicates import CopyFinding, copy_warnings, find_copies
from fedgsca.data.file_list import FileList, FolderCount, shorten
from fedgsca.data.load import complete_table, find_reader, read_table
from fedgsca.data.partition import leakage_warnings
from fedgsca.data.reader import Reader, ReaderOptions
from fedgsca.data.readers.published import published_warnings
from fedgsca.data.sheets import write_findings
from fedgsca.data.table import SPLITS, ImageTable
from fedgsca.errors import FedgscaError
from fedgsca.support.files import sha256_file
from fedgsca.support.text import join_words, plural

_MAX_WINDOWLESS = 3  # names of DICOM files without a window
_MIN_TRAIN_IMAGES = 10  # a class with fewer training images can hardly be learned

# field of a report -> its key in JSON, where these differ
_JSON_KEYS = {"file_sizes": "stored", "published_counts": "published", "saved_files": "saved"}

Counts = Mapping[str, Mapping[str, int]]  # split -> class (or "all") -> images


@dataclass(frozen=True)
class SourceProblem:
    """A problem that stops a run, and how to fix it."""

    code: str
    text: str
    fix: str


@dataclass(frozen=True)
class SourceReport:
    """The result of a check; `ok` means that a run would start."""

    source: str
    name: str = ""
    classes: tuple[str, ...] = ()
    counts: Counts = field(default_factory=dict)
    # (height, width, channels) as trained on
    shape: tuple[int, ...] = ()
    # ("2592x1728", 6311): sizes of the files, most frequent first
    file_sizes: tuple[tuple[str, int], ...] = ()
    groups: int | None = None
    group_word: str = "group"
    # site -> images
    sites: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str = ""
    # labels that a person has checked
    checked: int = 0
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[SourceProblem, ...] = ()
    # files that cannot be read
    bad: tuple[BadFile, ...] = ()
    # the folders of a published data set
    tree: tuple[FolderCount, ...] = ()
    # name and sha256 of the csv, xlsx or json files that were read
    lists: tuple[tuple[str, str], ...] = ()
    published_counts: Counts = field(default_factory=dict)
    published_sites: Mapping[str, int] = field(default_factory=dict)
    # identical images, near-duplicates, and groups in several splits
    copies: tuple[CopyFinding, ...] = ()
    # files that --save has written
    saved_files: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether a run would start."""
        return not self.problems

    def to_json(self) -> dict[str, object]:
        """The report as `fedgsca data check --json` prints it."""
        tree = {_JSON_KEYS.get(name, name): value for name, value in asdict(self).items()}
        for folder in tree["tree"]:
            folder["published"] = folder.pop("published_images")
        return {"ok": self.ok, **tree}


def check_source(
    source: str,
    *,
    labels: Path | None = None,
    fast: bool = False,
    save: Path | None = None,
    **options: Any,
) -> SourceReport:
    """Check a complete source; `labels` and `options` are those of `fedgsca.data.load.load`.

    Problems of the data are collected, never raised; warnings do not stop a run. `fast` decodes no
    image: files must exist, but may be damaged. `save` is a folder for copies.csv and copies.png.
    """
    try:
        reader_options = ReaderOptions(**options)
        reader, location = find_reader(source)
        reader.check_options(reader_options)
        if reader.list_images is not None:
            root = Path(location).expanduser()
            return _check_file_list(source, reader, root, reader_options, labels, fast, save)
        table = complete_table(read_table(reader, location, reader_options), labels)
        return _describe_table(source, table, save=save)
    except FedgscaError as error:
        return SourceReport(source, problems=(_problem(error),))


def _problem(error: FedgscaError) -> SourceProblem:
    return SourceProblem(error.code, error.message, error.fix)


def _check_file_list(
    source: str,
    reader: Reader,
    root: Path,
    options: ReaderOptions,
    labels: Path | None,
    fast: bool,
    save: Path | None,
) -> SourceReport:
    """Problems of the list and of the images together, and a report about what can be used."""
    assert reader.list_images is not None
    file_list = reader.list_files(root, options)
    problems = []
    for error in file_list.problems:
        problems.append(SourceProblem(error.code, file_list.without_root(error.message), error.fix))
    bad_files: list[BadFile] = []
    if not fast:
        bad_files = find_bad_files(
            file_list, image_size=options.image_size, cache_dir=options.cache_dir
        )
    if bad_files:
        problems.append(_problem(unreadable_error(file_list, bad_files)))
    usable = file_list
    if file_list.problems:
        usable = reader.list_files(root, replace(options, skip_unreadable=True))
    report = SourceReport(source, name=root.name, notes=tuple(file_list.notes))
    if not usable.problems and len(bad_files) < len(usable.rows):
        if fast:
            images = blank_images(usable)
        else:
            images = decode_images(usable, options.image_size, options.cache_dir)
        try:
            table = build_table(usable, images, options)
            report = _describe_table(source, complete_table(table, labels), fast, save)
        except FedgscaError as error:
            problems.append(_problem(error))
        notes = report.notes + _window_notes(usable, images)
        report = replace(report, file_sizes=_count_sizes(images), notes=notes)
    report = replace(report, problems=tuple(problems), bad=tuple(bad_files))
    return _add_published(report, usable)


def _count_sizes(images: DecodedImages) -> tuple[tuple[str, int], ...]:
    sizes = [f"{fact.width}x{fact.height}" for fact in images.facts if not fact.problem]
    return tuple(Counter(sizes).most_common())


def _window_notes(file_list: FileList, images: DecodedImages) -> tuple[str, ...]:
    """The first DICOM files without a window by name.

    The notes of a table only count them: they become part of a run's report, which leaves the site.
    """
    names = []
    # --fast inspects no file: there are no facts then
    for row, fact in zip(file_list.rows, images.facts, strict=False):
        if fact.needs_stretching and not fact.problem:
            names.append(shorten(row.file))
    if not names:
        return ()
    examples = names[:_MAX_WINDOWLESS]
    if len(names) > _MAX_WINDOWLESS:
        examples.append(f"{len(names) - _MAX_WINDOWLESS} more")
    return (f"DICOM files without a window: {join_words(examples)}",)


def _add_published(report: SourceReport, file_list: FileList) -> SourceReport:
    """The report with folders, lists, and the comparison with the published numbers."""
    warnings = report.warnings
    if report.counts:
        warnings += tuple(published_warnings(file_list))
    return replace(
        report,
        warnings=warnings,
        tree=tuple(file_list.folders),
        lists=tuple((path.name, sha256_file(path)) for path in file_list.source_files),
        published_counts=file_list.published_counts,
        published_sites=file_list.published_sites,
    )


def _describe_table(
    source: str, table: ImageTable, fast: bool = False, save: Path | None = None
) -> SourceReport:
    """Counts and warnings; `fast`: the images are placeholders."""
    counts = _count_images(table)
    spelling = spelling_warnings(table.labels, table.classes)
    warnings = spelling + _class_warnings(counts) + leakage_warnings(table)
    copies = [] if fast else find_copies(table)
    if not fast:
        warnings += copy_warnings(copies) + _flat_image_warnings(table)
    files = write_findings(copies, table, save) if save is not None and not fast else []
    return SourceReport(
        source=source,
        name=table.name,
        classes=table.classes,
        counts=counts,
        shape=() if fast else tuple(table.images.shape[1:]),
        groups=None if table.groups is None else len(np.unique(table.groups)),
        group_word=table.group_word,
        sites=_count_sites(table),
        fingerprint="" if fast else table.fingerprint,
        checked=0 if table.checked is None else table.checked.count,
        notes=tuple(note for note in table.notes if note not in spelling),
        warnings=tuple(warnings),
        copies=tuple(copies),
        saved_files=tuple(map(str, files)),
    )


def _count_images(table: ImageTable) -> dict[str, dict[str, int]]:
    """split -> class -> images, without empty splits."""
    counts = {}
    for split in SPLITS:
        rows = table.rows(split)
        if len(rows):
            numbers = np.bincount(table.labels[rows], minlength=table.num_classes)
            counts[split] = dict(zip(table.classes, numbers.tolist(), strict=True))
    return counts


def _count_sites(table: ImageTable) -> dict[str, int]:
    if table.site is None:
        return {}
    names, sizes = np.unique(table.site[table.site != ""], return_counts=True)
    return dict(zip(map(str, names.tolist()), sizes.tolist(), strict=True))


def _class_warnings(counts: Counts) -> list[str]:
    """Classes without images, with few images, and of very different sizes."""
    warnings = []
    for split, classes in counts.items():
        missing_classes = [name for name, count in classes.items() if count == 0]
        if missing_classes:
            warnings.append(f"{split}: no image of {', '.join(missing_classes)}")
    train = {name: count for name, count in counts["train"].items() if count}
    small = [f"{name} ({count})" for name, count in train.items() if count < _MIN_TRAIN_IMAGES]
    if small:
        warnings.append(f"fewer than {_MIN_TRAIN_IMAGES} training images of {', '.join(small)}")
    smallest = min(train.values())
    largest = max(train.values())
    if largest > 20 * smallest:
        warnings.append(
            f"classes differ more than twentyfold in size: {smallest} to {largest} training images"
        )
    return warnings


def _flat_image_warnings(table: ImageTable) -> list[str]:
    """Images of one colour only: black frames, failed exports."""
    if not table.has_images:
        return []
    count = sum(int(image.min()) == int(image.max()) for image in table.images)
    return [f"{plural(count, 'image')} of a single colour and nothing else"] if count else []
