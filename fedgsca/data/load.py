"""`--data`: from what a person types to a table.

A source is a built-in name (`synthetic`), a `.npz` file, a folder, or `name:PATH` for a layout that
cannot be recognised by looking. The readers of all sources are in a registry, see reader.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.build_table import list_column, listed_groups, number_classes, read_file_list
from fedgsca.data.class_names import order_classes, rename_classes
from fedgsca.data.file_list import FileList
from fedgsca.data.partition import choose_split
from fedgsca.data.reader import Reader, ReaderOptions, available_readers
from fedgsca.data.relabel import replace_labels
from fedgsca.data.table import ImageTable, check_table, with_fingerprint
from fedgsca.data.withdrawn import remaining_rows
from fedgsca.errors import DataError
from fedgsca.rng import stream
from fedgsca.support.text import plural, suggest


def load(
    source: str,
    *,
    labels: Path | None = None,
    need_test: bool = True,
    class_names: Mapping[str, str] | None = None,
    order: Sequence[str] = (),
    **options: Any,
) -> ImageTable:
    """The table behind a source.

    `labels` is a csv of corrected training labels. `need_test=False` accepts a source without test
    images: a hospital that only trains. `class_names` gives classes of the source other names;
    `order` are grades. `options` are fields of `ReaderOptions`.
    """
    reader_options = ReaderOptions(**options)
    reader, location = find_reader(source)
    reader.check_options(reader_options)
    table = rename_classes(read_table(reader, location, reader_options), class_names or {})
    table = order_classes(table, order)
    return complete_table(table, labels, need_test, is_part=reader_options.is_part)


def complete_table(
    table: ImageTable,
    labels: Path | None = None,
    need_test: bool = True,
    *,
    is_part: bool = False,
) -> ImageTable:
    """The last steps for every source: corrected labels, and the checks of the table.

    `is_part`: not all images of the source are in the table.
    """
    if labels is not None:
        table = replace_labels(table, labels.expanduser(), is_part=is_part)
    if need_test and not len(table.rows("test")):
        raise DataError(
            "data.no-test-images",
            f"{table.name}: there are no test images",
            fix="mark some rows with split = test, or remove the split column to set some aside",
        )
    return check_table(table)


def find_reader(source: str) -> tuple[Reader, str]:
    """The reader of a source, and the part of the source that it reads: a path, or its name."""
    readers = available_readers()
    if source in readers and readers[source].form == source:  # a name that needs no path
        return readers[source], source
    name, _, location = source.partition(":")
    if location and name in readers:
        return readers[name], location
    path = Path(source).expanduser()
    for reader in readers.values():
        if reader.recognises is not None and reader.recognises(path):
            return reader, source
    raise _unknown_source(source, path)


def read_table(reader: Reader, location: str, options: ReaderOptions) -> ImageTable:
    """The table from the reader's own function, or from its list of images."""
    if reader.list_images is not None:
        file_list = reader.list_files(Path(location).expanduser(), options)
        part = draw_before_decoding(file_list, options)
        if part is not None:
            return read_file_list(part, options)
        table = read_file_list(file_list, options)
    else:
        assert reader.read is not None
        table = reader.read(location, options)
        rows = remaining_rows(table, location)
        if rows is not None:
            note = f"{plural(len(table) - len(rows), 'image')} of withdrawn patients left out"
            table = take_rows(table, rows, (note,))
    return subsample(table, options)


def _unknown_source(source: str, path: Path) -> DataError:
    readers = available_readers()
    forms = "; ".join(f"{reader.form} ({reader.summary})" for reader in readers.values())
    suggestion = _suggest_source(source, path)
    hint = "" if suggestion is None else f"did you mean {suggestion}?\nOr "
    if path.is_file():
        return DataError(
            "data.unknown-source-type",
            f"{source}: the type of this file is not supported",
            fix=f"{hint}use one of: {forms}",
        )
    return DataError(
        "data.unknown-source",
        f"{source}: there is no data source, file or folder of this name",
        fix=f"{hint}use one of: {forms}",
    )


def _suggest_source(source: str, path: Path) -> str | None:
    """The form of a reader with a similar name, or a similar path."""
    readers = available_readers()
    name = suggest(source.partition(":")[0], readers)
    if name is not None:
        return readers[name].form
    if not path.name or not path.parent.is_dir():
        return None
    neighbours = sorted(neighbour.name for neighbour in path.parent.iterdir())
    neighbour = suggest(path.name, neighbours)
    return None if neighbour is None else str(path.parent / neighbour)


# ---- a part of a table: a stratified draw, a long tail, or given rows ----


# formats that cannot name a patient
_PLAIN_SUFFIXES = frozenset((".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".png", ".tif", ".tiff"))


def subsample(table: ImageTable, options: ReaderOptions) -> ImageTable:
    """At most `train` and `test` images, each class in proportion, then the long tail of training.

    The same table if nothing has to be drawn.
    """
    selection, notes = select_rows(table.name, table.labels, table.split, options)
    return take_rows(table, selection, notes) if notes else table


def select_rows(
    name: str, labels: np.ndarray, split: np.ndarray, options: ReaderOptions
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The rows of the draw, ascending, and what was drawn; no notes: nothing had to be drawn."""
    selection = [np.flatnonzero(split == "val")]
    notes = []
    for part, limit in (("train", options.train), ("test", options.test)):
        rows = np.flatnonzero(split == part)
        if limit is not None and limit > len(rows):
            raise DataError(
                "data.too-few-images",
                f"{name}: data.{part} is {limit}, but there are only {len(rows)} {part} images",
                fix=f"set data.{part} to at most {len(rows)}",
            )
        if limit is not None and limit < len(rows):
            notes.append(f"{limit} of {len(rows)} {part} images drawn with seed {options.seed}")
            rows = draw_stratified(labels, rows, limit, stream(options.seed, "subsample", part))
        if part == "train" and options.long_tail is not None:
            count = len(rows)
            rows = draw_long_tail(
                labels, rows, options.long_tail, stream(options.seed, "long tail")
            )
            ratio = f"{options.long_tail:g}"
            notes.append(f"long tail 1:{ratio}, {len(rows)} of {count} training images drawn")
        selection.append(rows)
    return np.sort(np.concatenate(selection)), tuple(notes)


def draw_before_decoding(file_list: FileList, options: ReaderOptions) -> FileList | None:
    """The list with only the images that `subsample` would draw, so that no other is decoded.

    None if that cannot be known from the list: patients in DICOM files, unreadable files that may
    be left out, or nothing to draw.
    """
    rows = file_list.rows
    if not options.is_part or options.skip_unreadable or file_list.problems or not rows:
        return None
    groups = listed_groups(file_list, rows)
    suffixes = {Path(row.file).suffix.lower() for row in rows}
    if groups is None and not suffixes <= _PLAIN_SUFFIXES:
        return None
    classes, labels = number_classes(file_list, rows)
    split, notes = choose_split(
        list_column(file_list, rows, "split"),
        labels,
        groups,
        options.test_fraction,
        options.seed,
        source=str(file_list.root),
    )
    name = file_list.name or file_list.root.resolve().name
    selection, draw_notes = select_rows(name, labels, split, options)
    if not draw_notes:
        return None
    part = [replace(rows[row], split=str(split[row])) for row in selection]
    drawn_rows = set(selection.tolist())
    return replace(
        file_list,
        rows=part,
        columns=tuple(dict.fromkeys((*file_list.columns, "split"))),
        classes=classes,
        undrawn_files=tuple(row.file for i, row in enumerate(rows) if i not in drawn_rows),
        notes=[*file_list.notes, *notes, *draw_notes],
    )


def draw_stratified(
    labels: np.ndarray, rows: np.ndarray, limit: int, rng: np.random.Generator
) -> np.ndarray:
    """`limit` of the rows: shuffle, lay the classes end to end, then take evenly."""
    rows = rng.permutation(rows)
    by_class = rows[np.argsort(labels[rows], kind="stable")]
    return by_class[(np.arange(limit) * len(rows)) // limit]


def draw_long_tail(
    labels: np.ndarray, rows: np.ndarray, ratio: float, rng: np.random.Generator
) -> np.ndarray:
    """Rows whose class sizes fall geometrically, from all of the largest to 1/ratio of it.

    labels are those of the table, rows (n,) the candidates. Classes keep their order of size (ties:
    the earlier class first). A class never has more images than there are, and at least one.
    """
    classes, sizes = np.unique(labels[rows], return_counts=True)
    order = np.argsort(-sizes, kind="stable")
    steps = np.arange(len(classes)) / max(len(classes) - 1, 1)
    limits = np.maximum(1, np.rint(sizes.max() * ratio**-steps)).astype(np.int64)
    selection = []
    for label, limit in zip(classes[order].tolist(), limits.tolist(), strict=True):
        members = rng.permutation(rows[labels[rows] == label])
        selection.append(members[:limit])
    return np.sort(np.concatenate(selection))


def take_rows(table: ImageTable, rows: np.ndarray, notes: tuple[str, ...] = ()) -> ImageTable:
    """The table with only these rows, in their order. The images are copied into memory."""
    return with_fingerprint(
        table,
        images=np.asarray(table.images[rows]),
        labels=table.labels[rows],
        split=table.split[rows],
        ids=table.ids[rows],
        groups=_take(table.groups, rows),
        site=_take(table.site, rows),
        given=_take(table.given, rows),
        image_digest="",
        features=_take(table.features, rows),
        checked=None if table.checked is None else table.checked.part(rows),
        notes=table.notes + notes,
    )


def _take(column: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if column is None else column[rows]
