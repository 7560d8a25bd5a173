"""OIA-ODIR: two eyes of every patient, eight classes, labels in Excel tables.

In the authors' layout or in Kaggle's:

    <root>/{Training Set,Off-site Test Set,On-site Test Set}/{Images,Annotation/*(English).xlsx}
    <root>/[ODIR-5K/]{Training Images,data.xlsx}          without labels of the test images

An image has one label here: by `patient` the first class of the patient's row, for both eyes; by
`eye` the first class among the eye's own keywords. Both eyes of a patient are on the same side of
every split.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedgsca.data.file_list import FileList, FolderCount, ImageRow
from fedgsca.data.partition import split_rows
from fedgsca.data.reader import READERS, Reader, ReaderOptions
from fedgsca.data.readers.published import (
    check_root,
    drop_missing,
    list_folders,
    list_image_names,
    list_published,
)
from fedgsca.errors import DataError
from fedgsca.support.csv_table import CsvRow, CsvTable, read_xlsx_tables, require_columns
from fedgsca.support.text import fold_name, plural

LETTERS = "NDGCAHMO"  # the columns of the table, in the order of CLASSES
# patients, two images each
SETS = {"Training Set": 3500, "Off-site Test Set": 500, "On-site Test Set": 1000}
NORMAL_EYES = {"patient": 2280, "eye": 3098}  # of the training set, by either rule
_KAGGLE = ("Training Images", "ODIR-5K_Training_Images", "ODIR-5K_Training_Dataset")
_CONTENT = "Training Set/ (from the authors) or Training Images/ and data.xlsx (from Kaggle)"
_RULES = {
    "patient": "the first class of the patient's row, for both eyes",
    "eye": "the first class of the eye's own keywords",
}


@dataclass(frozen=True)
class OdirPart:
    """One of the published sets: a folder of images and its table."""

    name: str
    images: Path
    table: Path
    patients: int  # as published


def list_odir(root: Path, options: ReaderOptions) -> FileList:
    """One row per eye; problems are collected in the result, not raised."""

    def fill(file_list: FileList) -> None:
        check_root(root, file_list.source, _find_training_folder, _CONTENT)
        parts = _find_parts(root)
        rule = options.label or "patient"
        names = {}
        for part in parts:
            folder = part.images.relative_to(root).as_posix()
            names[folder] = set(list_image_names(part.images))
            tree = FolderCount(f"{folder}/", len(names[folder]), 2 * part.patients)
            file_list.folders.append(tree)
            _read_part(file_list, part, folder, rule)
        file_list.check_duplicates()
        default_split = "published" if len(parts) > 1 else "patient"
        if (options.split or default_split) == "published":
            _split_as_published(file_list, parts, rule)
        else:
            _split_by_patient(file_list, parts[0], options.test_fraction)
        file_list.notes.append(f"label {rule}: {_RULES[rule]}")
        drop_missing(file_list, names, options.skip_unreadable)

    return list_published("odir", root, CLASSES, "patient", fill)


# ---- folders and tables ----


def _find_folder(root: Path, *names: str) -> Path | None:
    """The first sub-folder with one of these names, in any spelling."""
    spellings = {fold_name(name) for name in names}
    for path in list_folders(root):
        if fold_name(path.name) in spellings:
            return path
    return None


def _find_training_folder(root: Path) -> Path | None:
    """The training folder of either layout."""
    folder = _find_folder(root, "Training Set", *_KAGGLE)
    if folder is not None:
        return folder
    kaggle_root = _find_folder(root, "ODIR-5K")
    return None if kaggle_root is None else _find_folder(kaggle_root, *_KAGGLE)


def _find_parts(root: Path) -> list[OdirPart]:
    """The training set first, then the test sets that are present."""
    training = _find_training_folder(root)
    assert training is not None
    if fold_name(training.name) != fold_name("Training Set"):
        table = _find_table(training.parent)
        return [OdirPart(training.name, training, table, SETS["Training Set"])]
    parts = []
    for name, patients in SETS.items():
        folder = _find_folder(root, name)
        if folder is None:
            continue
        images = _find_folder(folder, "Images")
        if images is None:
            raise DataError(
                "data.folder-not-found",
                f"the folder Images does not exist in {folder}",
                fix="complete the download, or rename the folder to its published name",
            )
        table = _find_table(_find_folder(folder, "Annotation", "Annotations") or folder)
        parts.append(OdirPart(folder.name, images, table, patients))
    return parts


def _find_table(folder: Path) -> Path:
    """The English table; office programs leave hidden copies (~$...) beside it."""
    tables = []
    for path in sorted(folder.iterdir()):
        name = path.name.lower()
        if name.endswith(".xlsx") and not name.startswith(("~", ".")) and "chinese" not in name:
            tables.append(path)
    if not tables:
        raise DataError(
            "data.lists-not-found",
            f"there is no annotation table (.xlsx) in {folder}",
            fix="copy the table '... annotation (English).xlsx' or data.xlsx there",
        )
    # an English table first, then data.xlsx, then by name
    return min(
        tables, key=lambda path: ("english" not in path.name.lower(), path.name != "data.xlsx")
    )


# ---- rows ----


def _read_part(file_list: FileList, part: OdirPart, folder: str, rule: str) -> None:
    """Append the rows of one set; their split is the set's name for now."""
    columns = ["ID", "Left-Fundus", "Right-Fundus"]
    if rule == "patient":
        columns += LETTERS
    else:
        columns += ["Left-Diagnostic Keywords", "Right-Diagnostic Keywords"]
    file_list.source_files.append(part.table)
    incomplete_lines = []
    unlabelled_lines = []
    undiagnosed_eyes = 0
    for line, cells in _read_table(part.table, columns):
        if rule == "patient" and not _class_of_patient(cells):
            unlabelled_lines.append(f"line {line}")
        for eye in ("left", "right"):
            file = cells[f"{eye}fundus"]
            if rule == "patient":
                label = _class_of_patient(cells)
            else:
                label = class_of_eye(cells[f"{eye}diagnostickeywords"])
            if not file or not cells["id"]:
                incomplete_lines.append(f"line {line}")
            elif label:
                image = ImageRow(f"{folder}/{file}", label, cells["id"], part.name)
                file_list.rows.append(image)
            if rule == "eye" and file and not label:
                undiagnosed_eyes += 1
    file_list.report(
        "data.empty-cell",
        incomplete_lines,
        "line",
        f"of {part.table.name} without a patient or a file",
        fix="fill in ID, Left-Fundus and Right-Fundus",
    )
    file_list.report(
        "data.unlabelled-image",
        unlabelled_lines,
        "line",
        f"of {part.table.name} without a 1 in the columns {LETTERS}",
        fix="copy the published table again",
    )
    if undiagnosed_eyes:
        file_list.notes.append(
            f"{part.name}: {plural(undiagnosed_eyes, 'eye')} without a diagnosis (poor or no "
            "fundus image) left out"
        )


def _read_table(path: Path, columns: Sequence[str]) -> list[CsvRow]:
    """The rows of the first sheet that have something in these columns."""
    tables = read_xlsx_tables(path)
    table = tables[0][1] if tables else CsvTable((), (), ())
    fix = f"write {', '.join(columns)} in the first line of the first sheet"
    require_columns(path, table, columns, fix=fix)
    names = [fold_name(name) for name in columns]
    return [row for row in table.rows if any(map(row.cells.get, names))]


def _class_of_patient(cells: Mapping[str, str]) -> str:
    """The first class with a 1 in its column; an empty text if there is none."""
    for name, letter in zip(CLASSES, LETTERS, strict=True):
        if cells[letter.lower()] == "1":
            return name
    return ""


# ---- splits ----


def _split_as_published(file_list: FileList, parts: list[OdirPart], rule: str) -> None:
    """The training set against both test sets, as in the paper."""
    if len(parts) == 1:
        raise DataError(
            "data.no-test-images",
            f"there is no test set with labels in {file_list.root}",
            fix="add the Off-site and On-site Test Set, or use --set data.split=patient",
        )
    folders = {fold_name(part.name) for part in parts}
    file_list.report(
        "data.folder-not-found",
        [name for name in SETS if fold_name(name) not in folders],
        "folder",
        "not found",
        fix="complete the download, or use --set data.split=patient to split the training "
        "set alone",
    )
    training = parts[0].name
    rows = []
    for row in file_list.rows:
        rows.append(replace(row, split="train" if row.split == training else "test"))
    file_list.rows = rows
    file_list.notes.append("split published: Training Set against Off-site and On-site Test Set")
    if rule == "patient":
        file_list.published_counts = {"train": {"all": 7000}, "test": {"all": 3000}}
    else:
        file_list.published_counts = {"train": {}}
    file_list.published_counts["train"]["Normal"] = NORMAL_EYES[rule]


def _split_by_patient(file_list: FileList, training: OdirPart, test_fraction: float) -> None:
    """A part of the training set's patients as test set; other sets are not used."""
    rows = [row for row in file_list.rows if row.split == training.name]
    if rows and not file_list.problems:
        labels = np.array([CLASSES.index(row.label) for row in rows])
        patients = np.array([row.group for row in rows])
        splits = split_rows(labels, patients, test_fraction, 0, source=str(file_list.root))
        rows = [replace(row, split=str(split)) for row, split in zip(rows, splits, strict=True)]
    file_list.rows = rows
    test_count = sum(row.split == "test" for row in rows)
    file_list.notes.append(
        f"split patient: {test_count} of {len(rows)} training images set aside as test set, both "
        "eyes of a patient together, the same for every seed"
    )


READERS.register(
    "odir",
    Reader(
        form="odir:ROOT",
        summary="OIA-ODIR, or ODIR-5K from Kaggle",
        list_images=list_odir,
        splits=("published", "patient"),
        labels=("patient", "eye"),
        order=60,
    ),
)


# ---- the class of one eye, from its diagnostic keywords ----
# Keywords are separated by full-width commas (rarely by plain ones), and their spelling varies.
# Every finding outside the seven named classes is "Other"; remarks about the picture are not
# findings.


CLASSES = ("Normal", "Diabetes", "Glaucoma", "Cataract", "AMD", "Hypertension", "Myopia", "Other")

# A keyword belongs to the first class whose pattern occurs in it; "suspected ..." counts as the
# disease.
_PATTERNS = {
    "Normal": r"\bnormal fundus",
    "Diabetes": r"diabet|proliferative retinopathy",
    "Glaucoma": r"glaucoma",
    "Cataract": r"cataract",
    "AMD": r"age related macular",
    "Hypertension": r"hypertens",
    "Myopia": r"myopi[ac]",
}
# words whose misspellings are recognised: one or two letters off
_WORDS = [
    "normal",
    "fundus",
    "abnormal",
    "diabetic",
    "proliferative",
    "nonproliferative",
    "retinopathy",
    "glaucoma",
    "cataract",
    "macular",
    "hypertensive",
    "pathological",
    "myopia",
    "myopic",
]
_NO_FINDING = {
    "lens dust",
    "low image quality",
    "no fundus image",
    "anterior segment image",
    "image offset",
    "optic disk photographically invisible",
    "optic disc photographically invisible",
}


def class_of_eye(keywords: str) -> str:
    """The first class in the order of the keywords; an empty text if there is no diagnosis."""
    for keyword in re.split(r"[,，;；、]", keywords):
        name = _class_of(keyword)
        if name:
            return name
    return ""


def _class_of(keyword: str) -> str:
    text = " ".join(keyword.casefold().replace("-", " ").split())
    if not text or text in _NO_FINDING:
        return ""
    words = " ".join(_correct_spelling(word) for word in text.split())
    for name, pattern in _PATTERNS.items():
        if re.search(pattern, words):
            return name
    return "Other"


def _correct_spelling(word: str) -> str:
    # a fixed cut-off, not support.text.suggest: the labels of a data set must never change
    matches = difflib.get_close_matches(word, _WORDS, n=1, cutoff=0.86)
    return matches[0] if matches else word
