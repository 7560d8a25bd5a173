"""Kvasir-Capsule: `<root>/<Class>/<video>_<frame>.jpg`, and four ways to divide it.

    fedgp       FedGP's csv files: ten classes, clients A to D, 7:1:2 by frame. Frames of one video stand on both sides.
    frame       the same protocol drawn here, for those who do not have the csv files
    video       the same images, 7:1:2 with every video on one side
    official-K  trained on the authors' split_K.csv and tested on the other one: eleven classes

Draws do not depend on the experiment's seed: seeds are compared on one test set.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.data.file_list import Branch, Listing, Row
from fedgsca.data.readers.kvasir_csv import has_fedgp, list_fedgp, list_official
from fedgsca.data.readers.kvasir_facts import (
    CAP,
    CLASSES,
    CLIENTS,
    IMAGES,
    OFFICIAL,
    Tree,
    class_of,
    video_of,
)
from fedgsca.data.readers.published import (
    drop_missing,
    folders,
    images_in,
    lists_folder,
    nearest,
    open_root,
)
from fedgsca.data.split import three_way
from fedgsca.errors import DataError
from fedgsca.rng import stream

if TYPE_CHECKING:
    from fedgsca.data.load import Options

_WANTED = "the class folders (Normal clean mucosa, Pylorus, Ulcer, ...)"


def list_kvasir(root: Path, options: Options) -> Listing:
    """The list of the split that was asked for; problems are inside, not raised."""
    listing = Listing(
        root, source=f"kvasir:{root}", name="kvasir", classes=CLASSES, group_word="video"
    )
    listing.columns = ("file", "label", "group", "split")
    try:
        open_root(root, listing.source, _fits, _WANTED)
        tree = _tree(listing)
        _choose(listing, tree, options)
        drop_missing(
            listing, {f: set(names) for f, names in tree.images.items()}, options.skip_unreadable
        )
    except DataError as error:
        listing.stopped(error)
    return listing


def _fits(root: Path) -> bool:
    return sum(bool(class_of(p.name)) for p in folders(root)) >= 3


def _tree(listing: Listing) -> Tree:
    found = {class_of(p.name): p.name for p in folders(listing.root) if class_of(p.name)}
    images = {name: images_in(listing.root / name) for name in found.values()}
    listing.tree = [
        Branch(f"{found[c]}/", len(images[found[c]]), n) for c, n in IMAGES.items() if c in found
    ]
    return Tree(found, images)


def _choose(listing: Listing, tree: Tree, options: Options) -> None:
    places = (
        [options.splits]
        if options.splits
        else [listing.root, listing.root / "splits", listing.root / "official_splits"]
    )
    split = options.split or (
        "fedgp" if options.splits or lists_folder(places, has_fedgp) else "frame"
    )
    _need_folders(listing, tree, OFFICIAL if split.startswith("official") else CLASSES)
    if split == "fedgp":
        list_fedgp(listing, tree, places, options.label or "clean")
        return
    if options.label not in (None, "clean"):
        raise DataError(
            "todo.kvasir-1",
            f"the labels {options.label} belong to FedGP's csv files",
            fix="--set data.split=fedgp",
        )
    if split.startswith("official"):
        list_official(listing, tree, places, int(split[-1]))
    else:
        _drawn(listing, tree, split)


def _need_folders(listing: Listing, tree: Tree, classes: tuple[str, ...]) -> None:
    strange = [p.name for p in folders(listing.root) if not class_of(p.name)]
    missing = [
        f"{c}{nearest(c, strange).replace('did you mean', 'is it')}"
        for c in classes
        if c not in tree.folder
    ]
    listing.problem(
        "class folders are missing",
        missing,
        "complete the download, or give the folders their published names",
    )
    empty = [
        tree.folder[c] for c in classes if c in tree.folder and not tree.images[tree.folder[c]]
    ]
    listing.problem("class folders hold no images", empty, "complete the download")


def _drawn(listing: Listing, tree: Tree, split: str) -> None:
    """At most CAP images of a class, then 7:1:2 by frame or by video; by frame also four equal clients."""
    for c in CLASSES:
        names = tree.images.get(tree.folder.get(c, ""), [])
        chosen = stream(0, "kvasir", "cap", c).permutation(len(names))[:CAP]
        listing.rows += [
            Row(tree.file(c, names[i]), c, video_of(names[i])) for i in sorted(chosen.tolist())
        ]
    if listing.problems:
        return
    labels = np.array([CLASSES.index(row.label) for row in listing.rows])
    groups = np.array([row.group for row in listing.rows])
    parts = three_way(labels, groups if split == "video" else None, 0)
    sites = _deal(labels, parts)
    listing.rows = [
        Row(row.file, row.label, row.group, str(part), str(site) if split == "frame" else "")
        for row, part, site in zip(listing.rows, parts, sites, strict=True)
    ]
    counts = ", ".join(f"{part} {np.sum(parts == part)}" for part in ("train", "val", "test"))
    if split == "video":
        listing.notes.append(f"split video: drawn here, every video in one part ({counts})")
        return
    listing.columns += ("site",)
    listing.notes.append(
        f"split frame: FedGP's protocol drawn here ({counts}), not its published split. Frames of one video stand in training "
        "and test; data.split=video keeps them apart"
    )


def _deal(labels: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """(n,) of A to D: the training rows class by class like cards."""
    train = stream(0, "kvasir", "clients").permutation(np.flatnonzero(parts == "train"))
    train = train[np.argsort(labels[train], kind="stable")]
    sites = np.full(len(labels), "", dtype="<U1")
    sites[train] = np.array(list(CLIENTS))[np.arange(len(train)) % len(CLIENTS)]
    return sites
