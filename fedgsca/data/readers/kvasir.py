"""Kvasir-Capsule: `<root>/<Class>/<video>_<frame>.jpg`, and three ways to split it.

    fedgp       FedGP's csv files: ten classes, clients A to D, 7:1:2 by frame. Frames of one video
                are on both sides.
    frame       the same protocol drawn here, for those who do not have the csv files
    video       the same images, 7:1:2 with every video on one side

Draws do not depend on the experiment's seed: all seeds share one test set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedgsca.data.file_list import FileList, FolderCount, ImageRow
from fedgsca.data.partition import three_way
from fedgsca.data.reader import READERS, Reader, ReaderOptions
from fedgsca.data.readers.published import (
    check_root,
    drop_missing,
    find_lists_folder,
    list_folders,
    list_image_names,
    list_published,
)
from fedgsca.data.table import SPLITS
from fedgsca.errors import DataError
from fedgsca.rng import stream
from fedgsca.support.csv_table import read_csv_table, require_columns
from fedgsca.support.text import fold_name, suggest, suggestion_note

CAP = 3000  # FedGP uses at most this many images of a class; the two largest have more
# Images published per class. The first ten, in this order, are FedGP's classes.
IMAGES = {
    "Normal clean mucosa": 34338,
    "Ileocecal valve": 4189,
    "Reduced mucosal view": 2906,
    "Pylorus": 1529,
    "Ulcer": 854,
    "Angiectasia": 866,
    "Foreign body": 776,
    "Lymphangiectasia": 592,
    "Erosion": 506,
    "Blood - fresh": 446,
    "Erythema": 159,
    "Polyp": 55,
    "Blood - hematin": 12,
    "Ampulla of vater": 10,
}
CLASSES = tuple(IMAGES)[:10]
# Other spellings: those of the authors' lists and of the paper.
SPELLINGS = {
    "Normal": "Normal clean mucosa",
    "Mucosal atrophy": "Reduced mucosal view",
    "Foreign bodies": "Foreign body",
    "Erythematous": "Erythema",
    "Blood": "Blood - fresh",
}
_CLASS_BY_SPELLING = {fold_name(name): name for name in IMAGES} | {
    fold_name(spelling): name for spelling, name in SPELLINGS.items()
}
CLIENTS = {"A": 2536, "B": 2536, "C": 2532, "D": 2529}
_VAL = (300, 300, 290, 153, 85, 87, 78, 59, 51, 45)
_TEST = (600, 600, 581, 306, 171, 173, 155, 118, 101, 89)
_CONTENT = "the class folders (Normal clean mucosa, Pylorus, Ulcer, ...)"


@dataclass(frozen=True)
class ClassFolder:
    """The folder of a class under the name it has in this copy, and the images in it."""

    name: str
    images: list[str]

    def path(self, file: str) -> str:
        """The path of an image below the root."""
        return f"{self.name}/{file}"


# class -> its folder
Folders = Mapping[str, ClassFolder]


def list_kvasir(root: Path, options: ReaderOptions) -> FileList:
    """The images of the requested split; problems are collected in the result, not raised."""

    def fill(file_list: FileList) -> None:
        check_root(root, file_list.source, _has_class_folders, _CONTENT)
        folders = _find_class_folders(root)
        for name, count in IMAGES.items():
            if name in folders:
                folder = folders[name]
                tree = FolderCount(f"{folder.name}/", len(folder.images), count)
                file_list.folders.append(tree)
        _list_split(file_list, folders, options)
        names = {folder.name: set(folder.images) for folder in folders.values()}
        drop_missing(file_list, names, options.skip_unreadable)

    return list_published("kvasir", root, CLASSES, "video", fill)


def _has_class_folders(root: Path) -> bool:
    return sum(bool(class_of(path.name)) for path in list_folders(root)) >= 3


def _find_class_folders(root: Path) -> Folders:
    folders = {class_of(path.name): path for path in list_folders(root)}
    folders.pop("", None)
    return {name: ClassFolder(path.name, list_image_names(path)) for name, path in folders.items()}


def _list_split(file_list: FileList, folders: Folders, options: ReaderOptions) -> None:
    """Fill the list with the requested split; by default FedGP's, if its csv files are there."""
    root = file_list.root
    places = [root, root / "splits"]
    if options.splits is not None:
        places = [options.splits]
    split = options.split
    if split is None:
        has_csv = options.splits is not None or find_lists_folder(places, has_fedgp) is not None
        split = "fedgp" if has_csv else "frame"
    _check_class_folders(file_list, folders)
    if split == "fedgp":
        list_fedgp(file_list, folders, places, options.label or "clean")
        return
    if options.label not in (None, "clean"):
        raise DataError(
            "data.label-needs-split",
            f"data.label = {options.label!r} is only available with FedGP's csv files, "
            f"but data.split is {split!r}",
            fix="use --set data.split=fedgp",
        )
    _draw_split(file_list, folders, split)


def _check_class_folders(file_list: FileList, folders: Folders) -> None:
    """Report class folders that are missing or empty."""
    names = [path.name for path in list_folders(file_list.root)]
    other_names = [name for name in names if not class_of(name)]
    missing = []
    for name in CLASSES:
        if name not in folders:
            suggestion = suggest(name, other_names)
            missing.append(name if suggestion is None else f"{name} (is it {suggestion!r}?)")
    file_list.report(
        "data.class-folder-not-found",
        missing,
        "class folder",
        "not found",
        fix="complete the download, or rename the folders to their published names",
    )
    class_folders = [folders[name] for name in CLASSES if name in folders]
    file_list.report(
        "data.empty-class-folder",
        [folder.name for folder in class_folders if not folder.images],
        "class folder",
        "without images",
        fix="complete the download",
    )


def _draw_split(file_list: FileList, folders: Folders, split: str) -> None:
    """At most CAP images of a class, then 7:1:2 by frame or by video.

    By frame there are also four equal clients.
    """
    for label in filter(folders.get, CLASSES):
        names = folders[label].images
        selection = stream(0, "kvasir", "cap", label).permutation(len(names))[:CAP]
        for i in sorted(selection.tolist()):
            row = ImageRow(folders[label].path(names[i]), label, video_of(names[i]))
            file_list.rows.append(row)
    if file_list.problems:
        return
    labels = np.array([CLASSES.index(row.label) for row in file_list.rows])
    groups = np.array([row.group for row in file_list.rows])
    parts = three_way(labels, groups if split == "video" else None, 0)
    sites = _deal(labels, parts)
    if split == "video":
        sites = np.full(len(labels), "")
    rows = []
    for row, part, site in zip(file_list.rows, parts, sites, strict=True):
        rows.append(replace(row, split=str(part), site=str(site)))
    file_list.rows = rows
    counts = ", ".join(f"{part} {np.sum(parts == part)}" for part in SPLITS)
    if split == "video":
        file_list.notes.append(f"split video: drawn here, every video in one part ({counts})")
        return
    file_list.columns += ("site",)
    file_list.notes.append(
        f"split frame: FedGP's protocol drawn here ({counts}), not its published split. Frames of "
        "one video are in both training and test; data.split=video keeps them apart"
    )


def _deal(labels: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """(n,) of "A" to "D" for training rows, "" for others: class by class, dealt like cards."""
    train = stream(0, "kvasir", "clients").permutation(np.flatnonzero(parts == "train"))
    train = train[np.argsort(labels[train], kind="stable")]
    sites = np.full(len(labels), "", dtype="<U1")
    sites[train] = np.array(list(CLIENTS))[np.arange(len(train)) % len(CLIENTS)]
    return sites


# ---- classes, and the FedGP's csv files ----


def class_of(name: str) -> str:
    """The published name of a class in any spelling; an empty text if there is no such class."""
    return _CLASS_BY_SPELLING.get(fold_name(name), "")


def video_of(name: str) -> str:
    """The video of an image called `<video>_<frame>.jpg`."""
    return name.rpartition("_")[0] or name


def add_published_counts(file_list: FileList) -> None:
    """Add the counts of FedGP's split to the list."""
    total = [min(CAP, IMAGES[name]) for name in CLASSES]
    train = [n - v - t for n, v, t in zip(total, _VAL, _TEST, strict=True)]
    for split, numbers in (("train", train), ("val", _VAL), ("test", _TEST)):
        counts = dict(zip(CLASSES, numbers, strict=True))
        file_list.published_counts[split] = counts | {"all": sum(numbers)}


def has_fedgp(folder: Path) -> bool:
    """Whether some of FedGP's csv files are in this folder."""
    if any(folder.glob("*train-4clients-*-shuffle*.csv")):
        return True
    return (folder / "test-shuffle.csv").is_file()


def list_fedgp(file_list: FileList, folders: Folders, places: list[Path], label: str) -> None:
    """Clients A to D, validation and test; `label` is "clean" or the name of a noisy set."""
    folder = find_lists_folder(places, has_fedgp)
    if folder is None:
        raise DataError(
            "data.lists-not-found",
            "FedGP's csv files (train-4clients-A-shuffle.csv, ...) are not in "
            f"{' or '.join(map(str, places))}",
            fix="use --set data.splits=FOLDER with the folder that contains them, or "
            "--set data.split=frame to draw the same protocol",
        )
    parts = _fedgp_files(label)
    missing_files = [name for name in parts if not (folder / name).is_file()]
    noisy_sets = "" if label == "clean" else f"; noisy sets there: {_noisy_sets(folder)}"
    file_list.report(
        "data.lists-not-found",
        missing_files,
        "csv file",
        f"not found in {folder}",
        fix=f"copy them from FedGP{noisy_sets}",
    )
    if missing_files:
        return
    for name, (split, site) in parts.items():
        file_list.rows += _read_fedgp_csv(file_list, folders, folder / name, split, site)
    file_list.check_duplicates()
    add_published_counts(file_list)
    file_list.published_sites = dict(CLIENTS)
    file_list.notes.append(
        "split fedgp: FedGP's csv files, by frame. Frames of one video are in both training and "
        "test; data.split=video keeps them apart"
    )
    file_list.columns += ("site",)
    if label != "clean":
        file_list.columns += ("given",)
        file_list.notes.append(
            f"training labels: FedGP's noisy set {label}; its clean labels are the truth"
        )


def _fedgp_files(label: str) -> dict[str, tuple[str, str]]:
    """File name -> (split, client)."""
    parts = {}
    for site in CLIENTS:
        name = f"train-4clients-{site}-shuffle.csv"
        if label != "clean":
            name = f"noisy-train-4clients-{site}-shuffle-{label}.csv"
        parts[name] = ("train", site)
    parts["valid-shuffle.csv"] = ("val", "")
    parts["test-shuffle.csv"] = ("test", "")
    return parts


def _noisy_sets(folder: Path) -> str:
    paths = folder.glob("noisy-*shuffle-*.csv")
    names = {path.stem.partition("shuffle-")[2] for path in paths}
    return ", ".join(sorted(names)) or "none"


def _read_fedgp_csv(
    file_list: FileList, folders: Folders, path: Path, split: str, site: str
) -> list[ImageRow]:
    """Rows of one csv: imgname,category,clean_label[,noisy_label,...].

    imgname is `<label>_<video>_<frame>.jpg`.
    """
    table = read_csv_table(path)
    file_list.source_files.append(path)
    columns = ["imgname", "category", "clean_label"]
    if path.name.startswith("noisy"):
        columns.append("noisy_label")
    require_columns(path, table, columns, fix="copy the file from FedGP again")
    rows = []
    unknown_classes = []
    contradictions = []
    for line, cells in table.rows:
        label = class_of(cells["category"])
        number, _, name = cells["imgname"].partition("_")
        given = cells[fold_name(columns[-1])]
        if label not in CLASSES:
            note = suggestion_note(cells["category"], CLASSES)
            unknown_classes.append(f"{cells['category']!r} in line {line}{note}")
            continue
        is_consistent = number == cells["cleanlabel"] == str(CLASSES.index(label))
        if not is_consistent or not given.isdecimal() or int(given) >= len(CLASSES):
            contradictions.append(f"line {line}")
        elif label in folders:
            file = folders[label].path(name)
            rows.append(ImageRow(file, label, video_of(name), split, site, CLASSES[int(given)]))
    file_list.report(
        "data.unknown-class",
        unknown_classes,
        "unknown class",
        f"in {path.name}",
        nouns="unknown classes",
        fix=f"use only the classes {', '.join(CLASSES)}",
    )
    file_list.report(
        "data.inconsistent-list",
        contradictions,
        "line",
        f"of {path.name} with a file name, class and number that disagree",
        fix="copy the file from FedGP again",
    )
    return rows


READERS.register(
    "kvasir",
    Reader(
        form="kvasir:ROOT",
        summary="Kvasir-Capsule: one folder per class",
        list_images=list_kvasir,
        splits=("fedgp", "frame", "video"),
        labels=("clean", "symm-*", "pair-*"),
        order=50,
    ),
)
