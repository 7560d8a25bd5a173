"""Kvasir-Capsule: `<root>/<Class>/<video>_<frame>.jpg`, and four ways to split it.

    fedgp       FedGP's csv files: ten classes, clients A to D, 7:1:2 by frame. Frames of one video
                are on both sides.
    frame       the same protocol drawn here, for those who do not have the csv files
    video       the same images, 7:1:2 with every video on one side
    official-K  trained on the authors' split_K.csv and tested on the other one: eleven classes

Draws do not depend on the experiment's seed: all seeds share one test set.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedgsca.data.file_list import FileList, FolderCount, ImageRow, show_cases
from fedgsca.data.partition import three_way
from fedgsca.data.reader import READERS, Reader, ReaderOptions
from fedgsca.data.readers.kvasir_csv import (
    CAP,
    CLASSES,
    CLIENTS,
    IMAGES,
    OFFICIAL,
    ClassFolders,
    class_of,
    has_fedgp,
    list_fedgp,
    list_official,
    video_of,
)
from fedgsca.data.readers.published import (
    check_root,
    drop_missing,
    find_lists_folder,
    list_folders,
    list_image_names,
)
from fedgsca.data.table import SPLITS
from fedgsca.errors import DataError
from fedgsca.rng import stream
from fedgsca.support.text import plural, suggest

_CONTENT = "the class folders (Normal clean mucosa, Pylorus, Ulcer, ...)"


def list_kvasir(root: Path, options: ReaderOptions) -> FileList:
    """The images of the requested split; problems are collected in the result, not raised."""
    file_list = FileList(
        root, source=f"kvasir:{root}", name="kvasir", classes=CLASSES, group_word="video"
    )
    file_list.columns = ("file", "label", "group", "split")
    try:
        check_root(root, file_list.source, _has_class_folders, _CONTENT)
        folders = _find_class_folders(file_list)
        _list_split(file_list, folders, options)
        names = {folder: set(images) for folder, images in folders.images.items()}
        drop_missing(file_list, names, options.skip_unreadable)
    except DataError as error:
        file_list.add_problem(error)
    return file_list


def _has_class_folders(root: Path) -> bool:
    return sum(bool(class_of(path.name)) for path in list_folders(root)) >= 3


def _find_class_folders(file_list: FileList) -> ClassFolders:
    folders: dict[str, str] = {}
    for path in list_folders(file_list.root):
        if class_of(path.name):
            folders[class_of(path.name)] = path.name
    images = {folder: list_image_names(file_list.root / folder) for folder in folders.values()}
    for name, count in IMAGES.items():
        if name in folders:
            folder = folders[name]
            file_list.folders.append(FolderCount(f"{folder}/", len(images[folder]), count))
    return ClassFolders(folders, images)


def _list_split(file_list: FileList, folders: ClassFolders, options: ReaderOptions) -> None:
    """Fill the list with the requested split; by default FedGP's, if its csv files are there."""
    root = file_list.root
    places = [root, root / "splits", root / "official_splits"]
    if options.splits is not None:
        places = [options.splits]
    split = options.split
    if split is None:
        has_csv = options.splits is not None or find_lists_folder(places, has_fedgp) is not None
        split = "fedgp" if has_csv else "frame"
    is_official = split.startswith("official")
    _check_class_folders(file_list, folders, OFFICIAL if is_official else CLASSES)
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
    if is_official:
        list_official(file_list, folders, places, int(split[-1]))
    else:
        _draw_split(file_list, folders, split)


def _check_class_folders(
    file_list: FileList, folders: ClassFolders, classes: tuple[str, ...]
) -> None:
    """Report class folders that are missing or empty."""
    names = [path.name for path in list_folders(file_list.root)]
    other_names = [name for name in names if not class_of(name)]
    missing = []
    empty = []
    for name in classes:
        if name not in folders.folder:
            suggestion = suggest(name, other_names)
            missing.append(name if suggestion is None else f"{name} (is it {suggestion!r}?)")
        elif not folders.images[folders.folder[name]]:
            empty.append(folders.folder[name])
    if missing:
        file_list.add_problem(
            DataError(
                "data.class-folder-not-found",
                f"{file_list.root}: {plural(len(missing), 'class folder')} not found: "
                f"{show_cases(missing)}",
                fix="complete the download, or rename the folders to their published names",
            )
        )
    if empty:
        file_list.add_problem(
            DataError(
                "data.empty-class-folder",
                f"{file_list.root}: {plural(len(empty), 'class folder')} without images: "
                f"{show_cases(empty)}",
                fix="complete the download",
            )
        )


def _draw_split(file_list: FileList, folders: ClassFolders, split: str) -> None:
    """At most CAP images of a class, then 7:1:2 by frame or by video.

    By frame there are also four equal clients.
    """
    for label in CLASSES:
        names = folders.images.get(folders.folder.get(label, ""), [])
        selection = stream(0, "kvasir", "cap", label).permutation(len(names))[:CAP]
        for i in sorted(selection.tolist()):
            row = ImageRow(folders.path(label, names[i]), label, video_of(names[i]))
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


READERS.register(
    "kvasir",
    Reader(
        form="kvasir:ROOT",
        summary="Kvasir-Capsule: one folder per class",
        list_images=list_kvasir,
        splits=("fedgp", "frame", "video", "official-0", "official-1"),
        labels=("clean", "symm-*", "pair-*"),
        order=50,
    ),
)
