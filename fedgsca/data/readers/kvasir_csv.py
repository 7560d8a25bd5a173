"""The published splits of Kvasir-Capsule: FedGP's csv files and the authors' two folds."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from fedgsca.data.file_list import Listing, Row
from fedgsca.data.readers.kvasir_facts import (
    CLASSES,
    CLIENTS,
    OFFICIAL,
    SPELLINGS,
    Tree,
    add_published,
    class_of,
    video_of,
)
from fedgsca.data.readers.published import lists_folder, nearest
from fedgsca.errors import DataError
from fedgsca.support.csv_table import read_csv_table


def has_fedgp(folder: Path) -> bool:
    return (
        any(folder.glob("*train-4clients-*-shuffle*.csv"))
        or (folder / "test-shuffle.csv").is_file()
    )


def list_fedgp(listing: Listing, tree: Tree, places: list[Path], label: str) -> None:
    """Clients A to D, validation and test; `label` is clean or the name of a noisy set."""
    folder = lists_folder(places, has_fedgp)
    if folder is None:
        raise DataError(
            "todo.kvasir-csv-1",
            f"FedGP's csv files (train-4clients-A-shuffle.csv, ...) are not in {', '.join(map(str, places))}",
            fix="--set data.splits=FOLDER with them, or --set data.split=frame draws the same protocol here",
        )
    pattern = (
        "train-4clients-{}-shuffle.csv"
        if label == "clean"
        else f"noisy-train-4clients-{{}}-shuffle-{label}.csv"
    )
    wanted = {pattern.format(site): ("train", site) for site in CLIENTS}
    wanted |= {"valid-shuffle.csv": ("val", ""), "test-shuffle.csv": ("test", "")}
    absent = [name for name in wanted if not (folder / name).is_file()]
    sets = sorted(
        {
            m[1]
            for p in folder.glob("noisy-*.csv")
            if (m := re.search(r"shuffle-(.+)\.csv$", p.name))
        }
    )
    also = f"; noisy sets found there: {', '.join(sets) or 'none'}"
    listing.problem(
        f"csv files are missing in {folder}",
        absent,
        "copy them from FedGP" + (also if label != "clean" else ""),
    )
    if absent:
        return
    for name, (split, site) in wanted.items():
        listing.rows += _read_csv(listing, tree, folder / name, split, site)
    twice = [name for name, count in Counter(row.file for row in listing.rows).items() if count > 1]
    listing.problem(
        "images are listed more than once", twice, "copy the csv files from FedGP again"
    )
    add_published(listing)
    listing.published_sites = dict(CLIENTS)
    listing.columns += ("site",) if label == "clean" else ("site", "given")
    listing.notes.append(
        "split fedgp: FedGP's csv files, by frame. Frames of one video stand in training and test; data.split=video keeps them apart"
    )
    if label != "clean":
        listing.notes.append(
            f"training labels: FedGP's noisy set {label}; its clean labels are the truth"
        )


def _read_csv(listing: Listing, tree: Tree, path: Path, split: str, site: str) -> list[Row]:
    """Rows of one csv: imgname,category,clean_label[,noisy_label,...]; imgname is <label>_<video>_<frame>.jpg."""
    sheet = read_csv_table(path)
    listing.lists.append(path)
    noisy = path.name.startswith("noisy")
    needed = {"imgname": "imgname", "category": "category", "cleanlabel": "clean_label"}
    needed |= {"noisylabel": "noisy_label"} if noisy else {}
    absent = [name for plain, name in needed.items() if plain not in sheet.columns]
    if absent:
        raise DataError(
            "todo.kvasir-csv-2",
            f"{path}: no column {absent[0]} (found: {', '.join(sheet.written)})",
            fix="copy the file from FedGP again",
        )
    rows, unknown, odd = [], [], []
    for line, cells in sheet.rows:
        label, (number, _, name) = class_of(cells["category"]), cells["imgname"].partition("_")
        given = cells["noisylabel"] if noisy else cells["cleanlabel"]
        if label not in CLASSES:
            unknown.append(
                f"{cells['category']!r} in line {line}{nearest(cells['category'], CLASSES)}"
            )
        elif not (
            given.isdecimal()
            and int(given) < 10
            and number == cells["cleanlabel"] == str(CLASSES.index(label))
        ):
            odd.append(f"line {line}")
        elif label in tree.folder:
            rows.append(
                Row(tree.file(label, name), label, video_of(name), split, site, CLASSES[int(given)])
            )
    listing.problem(
        f"unknown classes in {path.name}", unknown, f"the classes are {', '.join(CLASSES)}"
    )
    listing.problem(
        f"lines of {path.name} whose name, class and number disagree",
        odd,
        "copy the file from FedGP again",
    )
    return rows


# ---- the authors' two folds ----


def list_official(listing: Listing, tree: Tree, places: list[Path], train_on: int) -> None:
    """Trained on one fold and tested on the other."""
    names = ("split_0.csv", "split_1.csv")
    folder = lists_folder(places, lambda place: all((place / name).is_file() for name in names))
    if folder is None:
        raise DataError(
            "todo.kvasir-csv-3",
            f"split_0.csv and split_1.csv are not in {', '.join(map(str, places))}",
            fix="copy both from the authors' repository, or --set data.splits=FOLDER",
        )
    listing.classes = OFFICIAL
    for number, name in enumerate(names):
        sheet = read_csv_table(folder / name)
        listing.lists.append(folder / name)
        if not {"filename", "label"} <= set(sheet.columns):
            raise DataError(
                "todo.kvasir-csv-4",
                f"{folder / name}: no columns filename and label",
                fix="copy the file again",
            )
        label_of = {cells["label"]: class_of(cells["label"]) for _, cells in sheet.rows}
        unknown = [
            f"{name!r}{nearest(name, SPELLINGS)}"
            for name, known in label_of.items()
            if known not in OFFICIAL
        ]
        listing.problem(
            f"unknown classes in {name}", unknown, f"the classes are {', '.join(OFFICIAL)}"
        )
        split = "train" if number == train_on else "test"
        for _, cells in sheet.rows:
            label = label_of[cells["label"]]
            if label in OFFICIAL and label in tree.folder:
                listing.rows.append(
                    Row(
                        tree.file(label, cells["filename"]),
                        label,
                        video_of(cells["filename"]),
                        split,
                    )
                )
    listing.notes.append(
        f"split official-{train_on}: trained on {names[train_on]}, tested on {names[1 - train_on]}"
    )
