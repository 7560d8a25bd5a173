"""OIA-ODIR: two eyes of every patient, eight classes, labels in Excel tables; in the authors' layout or in Kaggle's.

    <root>/{Training Set,Off-site Test Set,On-site Test Set}/{Images,Annotation/*(English).xlsx}      published test sets
    <root>/[ODIR-5K/]{Training Images,data.xlsx}                                                      no labels of test images

An image has one label here: by `patient` the first class of the patient's row, for both eyes; by `eye` the first class among the
eye's own keywords. Both eyes of a patient stay on one side of every split.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.data.file_list import Branch, Listing, Row
from fedgsca.data.readers.odir_keywords import CLASSES, class_of_eye
from fedgsca.data.readers.published import drop_missing, fold, folders, images_in, open_root
from fedgsca.data.readers.xlsx import read_xlsx
from fedgsca.data.split import split_rows
from fedgsca.errors import DataError

if TYPE_CHECKING:
    from fedgsca.data.load import Options

LETTERS = "NDGCAHMO"  # the columns of the table, in the order of CLASSES
SETS = {
    "Training Set": 3500,
    "Off-site Test Set": 500,
    "On-site Test Set": 1000,
}  # patients, two images each
NORMAL_EYES = {"patient": 2280, "eye": 3098}  # of the training set, by either rule
_WANTED = "Training Set/ (from the authors) or Training Images/ and data.xlsx (from Kaggle)"
_EYES = ("Left", "Right")


@dataclass(frozen=True)
class Part:
    """Images and their table."""

    name: str
    images: Path
    table: Path
    patients: int  # as published


def list_odir(root: Path, options: Options) -> Listing:
    """One row per eye; problems are inside, not raised."""
    listing = Listing(
        root, source=f"odir:{root}", name="odir", classes=CLASSES, group_word="patient"
    )
    listing.columns = ("file", "label", "group", "split")
    try:
        open_root(root, listing.source, lambda place: bool(_training(place)), _WANTED)
        parts = _parts(root)
        rule = options.label or "patient"
        for part in parts:
            _read(listing, part, rule)
        _split(listing, parts, options, rule)
        have = {
            part.images.relative_to(root).as_posix(): set(images_in(part.images)) for part in parts
        }
        drop_missing(listing, have, options.skip_unreadable)
    except DataError as error:
        listing.stopped(error)
    return listing


def _folder(root: Path, *names: str) -> Path | None:
    return next((p for p in folders(root) if fold(p.name) in {fold(name) for name in names}), None)


def _training(root: Path) -> Path | None:
    """The training folder of either layout."""
    kaggle = _folder(root, "ODIR-5K")
    return _folder(root, "Training Set", *_KAGGLE) or (
        _folder(kaggle, *_KAGGLE) if kaggle else None
    )


_KAGGLE = ("Training Images", "ODIR-5K_Training_Images", "ODIR-5K_Training_Dataset")


def _parts(root: Path) -> list[Part]:
    first = _training(root)
    assert first is not None
    if fold(first.name) != fold("Training Set"):
        return [Part(first.name, first, _table(first.parent), SETS["Training Set"])]
    parts = []
    for name, patients in SETS.items():
        folder = _folder(root, name)
        if folder is not None:
            images, annotation = (
                _folder(folder, "Images"),
                _folder(folder, "Annotation", "Annotations"),
            )
            if images is None:
                raise DataError(
                    "todo.odir-1",
                    f"{folder} has no folder Images",
                    fix="complete the download, or restore the published name",
                )
            parts.append(Part(folder.name, images, _table(annotation or folder), patients))
    return parts


def _table(folder: Path) -> Path:
    """The English table; office programs leave hidden copies (~$...) beside it."""
    found = sorted(
        p
        for p in folder.iterdir()
        if p.suffix.lower() == ".xlsx" and not p.name.startswith(("~", "."))
    )
    english = [p for p in found if "chinese" not in p.name.lower()]
    if not english:
        raise DataError(
            "todo.odir-2",
            f"{folder} holds no annotation (.xlsx)",
            fix="copy the table '... annotation (English).xlsx' or data.xlsx there",
        )
    return min(
        english, key=lambda p: ("english" not in p.name.lower(), p.name != "data.xlsx", p.name)
    )


def _read(listing: Listing, part: Part, rule: str) -> None:
    columns = ["ID", *(f"{eye}-Fundus" for eye in _EYES)]
    columns += (
        list(LETTERS) if rule == "patient" else [f"{eye}-Diagnostic Keywords" for eye in _EYES]
    )
    table = read_xlsx(part.table, columns)
    listing.lists.append(part.table)
    below = part.images.relative_to(listing.root).as_posix()
    listing.tree.append(Branch(f"{below}/", len(images_in(part.images)), 2 * part.patients))
    nameless, unclear, silent = [], [], 0
    for line, cells in table:
        first = next(
            (CLASSES[i] for i, letter in enumerate(LETTERS) if cells.get(letter) == "1"), ""
        )
        if rule == "patient" and not first:
            unclear.append(f"line {line}")
        for eye in _EYES:
            file = cells[f"{eye}-Fundus"]
            label = first or (
                class_of_eye(cells[f"{eye}-Diagnostic Keywords"]) if rule == "eye" else ""
            )
            if not file or not cells["ID"]:
                nameless.append(f"line {line}")
            elif label:
                listing.rows.append(Row(f"{below}/{file}", label, cells["ID"], part.name))
            silent += rule == "eye" and bool(file) and not label
    what = part.table.name
    listing.problem(
        f"lines of {what} without a patient or a file",
        nameless,
        "fill in ID, Left-Fundus and Right-Fundus",
    )
    listing.problem(
        f"lines of {what} without a 1 in {LETTERS}", unclear, "copy the published table again"
    )
    if silent:
        listing.notes.append(
            f"{part.name}: {silent} eyes without a diagnosis (poor or no fundus image) are left out"
        )


def _split(listing: Listing, parts: list[Part], options: Options, rule: str) -> None:
    """Training Set against both test sets, as in the paper; or a fifth of the patients where there are no test sets."""
    twice = [name for name, count in Counter(row.file for row in listing.rows).items() if count > 1]
    listing.problem("images are listed more than once", twice, "keep one line per patient")
    split = options.split or ("published" if len(parts) > 1 else "patient")
    training = parts[0].name
    if split == "published":
        if len(parts) == 1:
            raise DataError(
                "todo.odir-3",
                f"{listing.root} holds no test set with labels",
                fix="add Off-site and On-site Test Set, or --set data.split=patient",
            )
        absent = [name for name in SETS if fold(name) not in {fold(part.name) for part in parts}]
        listing.problem(
            "folders are missing",
            absent,
            "complete the download, or --set data.split=patient for the training set alone",
        )
        listing.rows = [
            Row(r.file, r.label, r.group, "train" if r.split == training else "test")
            for r in listing.rows
        ]
        listing.notes.append("split published: Training Set against Off-site and On-site Test Set")
        listing.published = (
            {"train": {"all": 7000}, "test": {"all": 3000}} if rule == "patient" else {"train": {}}
        )
        listing.published["train"]["Normal"] = NORMAL_EYES[rule]
    else:
        listing.rows = [row for row in listing.rows if row.split == training]
        if listing.rows and not listing.problems:
            labels = np.array([CLASSES.index(row.label) for row in listing.rows])
            drawn = split_rows(
                labels, np.array([row.group for row in listing.rows]), options.test_fraction, 0
            )
            listing.rows = [
                Row(r.file, r.label, r.group, str(part))
                for r, part in zip(listing.rows, drawn, strict=True)
            ]
        share = f"{sum(row.split == 'test' for row in listing.rows)} of {len(listing.rows)} training images"
        listing.notes.append(
            f"split patient: {share} set aside as test set, both eyes of a patient together, the same for every seed"
        )
    words = {
        "patient": "the first class of the patient's row, for both eyes",
        "eye": "the first class of the eye's own keywords",
    }
    listing.notes.append(f"label {rule}: {words[rule]}")
