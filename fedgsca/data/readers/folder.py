"""A folder of images with a labels.csv, or with one sub-folder per class; also DICOM files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path, PurePosixPath

from fedgsca.data.class_names import FILE as NAMES_FILE
from fedgsca.data.class_names import FolderNames, check_class_names, read_folder_names
from fedgsca.data.file_list import (
    FileList,
    ImageRow,
    is_file,
    linked_outside,
    list_files,
    normal_path,
    show_cases,
)
from fedgsca.data.image_files import SUFFIXES, is_image
from fedgsca.data.reader import READERS, Reader, ReaderOptions
from fedgsca.data.table import SPLITS
from fedgsca.data.table_import import column_of
from fedgsca.data.withdrawn import is_withdrawn, read_withdrawn
from fedgsca.errors import DataError
from fedgsca.support.csv_table import CsvTable, parse_checked, read_csv_table, rename_columns
from fedgsca.support.text import fold_name, plural, suggest

COLUMNS = ("file", "label", "group", "split", "site", "checked", "original")
_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def list_folder(root: Path, options: ReaderOptions | None = None) -> FileList:
    """List the images of a folder; problems are collected in the result, not raised.

    No option applies: the parameter is there because all readers are called alike.
    """
    file_list = FileList(root)
    if not root.is_dir():
        file_list.add_problem(
            DataError(
                "data.folder-not-found",
                f"the folder {root} does not exist",
                fix="check the path given with --data",
            )
        )
        return file_list
    try:
        names = read_folder_names(root, COLUMNS)
        table = find_labels_csv(root)
        if table is not None:
            _read_labels_csv(file_list, table, names)
        else:
            _read_class_folders(file_list)
        _check_encoding(file_list)
        _rename_labels(file_list, names)
    except DataError as error:  # a csv that cannot be read at all
        file_list.add_problem(error)
    return file_list


def _rename_labels(file_list: FileList, names: FolderNames) -> None:
    """Give the classes the names and the order of names.toml."""
    file_list.order = names.order
    if not names.classes:
        return
    labels = [row.label for row in file_list.rows if row.label]
    check_class_names(file_list.root, labels, names.classes)
    rows = []
    for row in file_list.rows:
        label = names.classes.get(row.label, row.label)
        original = names.classes.get(row.original, row.original)
        rows.append(replace(row, label=label, original=original))
    file_list.rows = rows
    file_list.class_names = dict(names.classes)
    file_list.notes.append(f"class names from {NAMES_FILE}")


def _check_encoding(file_list: FileList) -> None:
    """Report names of files or folders that are not UTF-8: no csv or report could contain them."""
    files = [row.file for row in file_list.rows]
    odd_names = [file for file in files if file != file.encode(errors="replace").decode()]
    file_list.rows = [row for row in file_list.rows if row.file not in set(odd_names)]
    file_list.report(
        "data.name-not-utf8",
        odd_names,
        "file name",
        "not in UTF-8",
        fix="rename the files, for example with convmv",
    )


def find_labels_csv(root: Path) -> Path | None:
    """The labels.csv of a folder, in any capitals; None if it has none."""
    for path in sorted(root.iterdir()):
        if path.name.lower() == "labels.csv" and is_file(path):
            return path
    return None


# ---- labels.csv ----


def _read_labels_csv(file_list: FileList, path: Path, names: FolderNames) -> None:
    table = rename_columns(read_csv_table(path), names.columns)
    file_list.notes.extend(table.notes)
    file_list.columns = tuple(name for name in COLUMNS if name in table.columns)
    if not _check_header(file_list, table, names.ignore):
        return
    if not table.rows:
        file_list.add_problem(
            DataError(
                "data.empty-list",
                f"{file_list.root}: {path.name} lists no images",
                fix="add one line per image",
            )
        )
    withdrawn = read_withdrawn(file_list.root)
    lines = []
    for (line, cells), mark in zip(table.rows, _read_checked(file_list, path, table), strict=True):
        split = cells.get("split", "")
        row = ImageRow(
            normal_path(cells["file"]),
            cells["label"],
            cells.get("group", ""),
            _SPLITS.get(fold_name(split), split),
            cells.get("site", ""),
            checked=mark,
            original=cells.get("original", "") if mark else "",
        )
        if withdrawn is None or not is_withdrawn(withdrawn, file_list.root, row):
            file_list.rows.append(row)
            lines.append(line)
    num_left = len(table.rows) - len(lines)
    if num_left:
        file_list.notes.append(f"{plural(num_left, 'line')} of withdrawn patients left out")
    _check_files(file_list, lines)
    _check_cells(file_list, lines)


def _read_checked(file_list: FileList, path: Path, table: CsvTable) -> list[bool]:
    """Which labels a person has checked; invalid cells are a problem of the list."""
    if "checked" in table.columns:
        try:
            return parse_checked(path, table.rows)
        except DataError as error:
            file_list.add_problem(error)
    return [False] * len(table.rows)


def _check_header(file_list: FileList, table: CsvTable, ignore: Collection[str]) -> bool:
    """Report unknown and missing columns; whether the rows can be read."""
    unknown_columns = []
    for column, name in zip(table.columns, table.header, strict=True):
        if column not in COLUMNS and column not in ignore:
            suggestion = column_of(name) or suggest(name, COLUMNS)
            hint = "" if suggestion is None else f" (did you mean {suggestion}?)"
            unknown_columns.append(f"{name!r}{hint}")
    file_list.report(
        "data.unknown-column",
        unknown_columns,
        "unknown column",
        "in labels.csv",
        fix="let `fedgsca data import` read the table; or rename or remove these columns,"
        f" or name them in {NAMES_FILE} below [columns] or ignore; use only {', '.join(COLUMNS)}",
    )
    missing_columns = [name for name in ("file", "label") if name not in table.columns]
    file_list.report(
        "data.missing-column",
        missing_columns,
        "missing column",
        "in labels.csv",
        fix="write file,label[,group][,split][,site][,checked][,original] in the first line"
        " of labels.csv",
    )
    return not missing_columns


def _check_files(file_list: FileList, lines: list[int]) -> None:
    """Report paths outside the folder, duplicates, missing files and files that are not images."""
    root = file_list.root
    names = dict.fromkeys(row.file for row in file_list.rows if row.file)
    inside_names = [name for name in names if not _leaves_folder(name)]
    file_list.report(
        "data.link-outside-folder",
        linked_outside(root, inside_names),
        "path",
        "in labels.csv lead out of the folder over a symbolic link",
        fix="copy the files into the folder, or give the folder that really contains them",
    )
    file_list.report(
        "data.path-outside-folder",
        [name for name in names if _leaves_folder(name)],
        "path",
        "in labels.csv outside the folder",
        fix="write paths relative to the folder of labels.csv, without ..",
    )
    file_list.check_duplicates(lines)
    file_list.check_classes()
    missing_files = dict.fromkeys(name for name in inside_names if not is_file(root / name))
    file_list.report(
        "data.file-not-found",
        missing_files,
        "file",
        "not found",
        fix="copy the files there or remove their lines from labels.csv",
    )
    present_files = [name for name in inside_names if name not in missing_files]
    file_list.report(
        "data.unknown-file-type",
        [name for name in present_files if not is_image(root / name)],
        "file",
        "of an unknown type",
        fix=f"use images of a supported type: {', '.join(SUFFIXES)}",
    )


def _leaves_folder(name: str) -> bool:
    """Absolute paths, paths with .., and Windows drives."""
    return name.startswith("/") or ".." in PurePosixPath(name).parts or ":" in name.split("/")[0]


def _check_cells(file_list: FileList, lines: list[int]) -> None:
    """Report empty cells and unknown splits."""
    for column in ("file", "label", "split", "site"):
        file_list.report(
            "data.empty-cell",
            _empty_cells(file_list, column, lines),
            "empty cell",
            f"in column {column!r} of labels.csv",
            fix=f"fill in the {column} or remove the line",
        )
    splits = dict.fromkeys(row.split for row in file_list.rows if row.split)
    file_list.report(
        "data.unknown-split",
        [split for split in splits if split not in SPLITS],
        "unknown split",
        "in labels.csv",
        fix="use one of: train, val, test",
    )
    labels = {row.label for row in file_list.rows}
    unknown_originals = {row.original for row in file_list.rows} - labels - {""}
    if unknown_originals:
        # not an error: a review may have changed the last label of a class
        file_list.notes.append(
            f"{plural(len(unknown_originals), 'class', 'classes')} in column 'original' that no"
            f" image has, so these original labels count as unknown:"
            f" {show_cases(sorted(unknown_originals))}"
        )
    ungrouped_cells = _empty_cells(file_list, "group", lines)
    if ungrouped_cells:
        file_list.notes.append(
            f"{plural(len(ungrouped_cells), 'image')} without a group: each counts as its own group"
        )


def _empty_cells(file_list: FileList, column: str, lines: list[int]) -> list[str]:
    """ "line 3" for every empty cell; nothing if the file does not have the column."""
    if column not in file_list.columns:
        return []
    cells = []
    for line, row in zip(lines, file_list.rows, strict=True):
        if not getattr(row, column):
            cells.append(f"line {line}")
    return cells


# ---- folders as labels ----


def _read_class_folders(file_list: FileList) -> None:
    """`<class>/<image>`; `<split>/<class>/<image>` if all top folders are named after splits."""
    root = file_list.root
    files = list_files(root)
    images = [name for name in files if is_image(root / name)]
    linked_images = linked_outside(root, images)
    if linked_images:
        images = [name for name in images if name not in linked_images]
        file_list.notes.append(
            f"{plural(len(linked_images), 'image')} ignored: symbolic links that lead out of the"
            f" folder ({show_cases(linked_images)})"
        )
    hint = _list_hint(files)
    if not images:
        file_list.add_problem(
            DataError(
                "data.no-images",
                f"{root}: the folder contains no images{hint}",
                fix=f"put {', '.join(SUFFIXES)} files there",
            )
        )
        return
    top_folders = {name.split("/")[0] for name in images if "/" in name}
    by_split = bool(top_folders) and {fold_name(top) for top in top_folders} <= set(_SPLITS)
    depth = 2 if by_split else 1
    loose_images = [name for name in images if name.count("/") < depth]
    file_list.report(
        "data.unlabelled-image",
        loose_images,
        "image",
        "without a label",
        fix=f"add a labels.csv, or sort the images into one folder per class{hint}",
    )
    file_list.columns = ("file", "label", "split") if by_split else ("file", "label")
    for name in images:
        parts = name.split("/")
        if len(parts) > depth:
            split = _SPLITS[fold_name(parts[0])] if by_split else ""
            file_list.rows.append(ImageRow(name, parts[depth - 1], split=split))
    file_list.notes.append("no labels.csv: the names of the folders are the labels")
    ignored_count = len(files) - len(images)
    if ignored_count:
        file_list.notes.append(f"{plural(ignored_count, 'file')} ignored: not an image type")


def _list_hint(files: list[str]) -> str:
    """A question about a table under another name, which may be the list."""
    tables = [name for name in files if name.endswith((".csv", ".xlsx", ".json"))]
    return f" (is {tables[0]} the list? it must be called labels.csv)" if tables else ""


READERS.register(
    "folder",
    Reader(
        form="FOLDER",
        summary="images with a labels.csv, or one folder per class",
        list_images=list_folder,
        recognises=Path.is_dir,
        order=30,
    ),
)
READERS.register(
    "dicom",
    Reader(
        form="dicom:FOLDER",
        summary="the same with DICOM files; FOLDER alone also works",
        list_images=list_folder,
        order=40,
    ),
)
