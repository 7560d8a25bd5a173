"""Chaoyang: patches of colon slides.

`<root>/train.json` and `test.json` have entries {"name": "train/<slide>-IMG...-1.JPG", "label": 1}.
A list of the training images with label_A, label_B and label_C contains the labels of three
pathologists. The label that a site trains on is then one of

    drawn      the label of one pathologist, drawn for every image with the experiment's seed; the
               majority is the reference
    pathologist   one pathologist per site: complete slides go to the sites of A, B and C, and each
               site has the labels of its pathologist; the majority is the reference
    released   the label in train.json; nothing is known about its errors. The paper's class counts
               are those of these labels
    majority   the label of two of the three

The digit at the end of a file's name is the released label: ids are made without it, so that
nothing can read it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from fedgsca.data.file_list import FileList, FolderCount, ImageRow, normal_path
from fedgsca.data.reader import READERS, Reader, ReaderOptions
from fedgsca.data.readers.published import (
    check_root,
    drop_missing,
    find_lists_folder,
    list_image_names,
    list_published,
)
from fedgsca.errors import DataError
from fedgsca.rng import stream
from fedgsca.support.text import plural

CLASSES = ("normal", "serrated", "adenocarcinoma", "adenoma")
# images per class by the released label
PUBLISHED_COUNTS = {"train": (1111, 842, 1404, 664), "test": (705, 321, 840, 273)}
PATHOLOGISTS = ("label_A", "label_B", "label_C")
# the sites of `data.label=pathologist`
SITES = ("pathologist A", "pathologist B", "pathologist C")
_CONTENT = "train.json, test.json and the folders train and test"
_CLASS_NUMBERS = frozenset("0123")

JsonEntry = Mapping[str, object]


@dataclass(frozen=True)
class ChaoyangImage:
    """One entry of a list."""

    name: str
    label: int | None
    # the labels of the three pathologists, or nothing
    votes: tuple[int, ...] = ()

    def majority(self) -> int | None:
        """The label of two of the three pathologists; the released label where all differ."""
        label, count = Counter(self.votes).most_common(1)[0]
        return label if count > 1 else self.label


def list_chaoyang(root: Path, options: ReaderOptions) -> FileList:
    """One row per patch; problems are collected in the result, not raised."""

    def fill(file_list: FileList) -> None:
        check_root(root, file_list.source, lambda place: _fits(place, options.splits), _CONTENT)
        folder = _find_lists(root, options.splits)
        train = _read_training_lists(file_list, folder)
        test = _read_list(file_list, folder / "test.json")
        file_list.source_files.append(folder / "test.json")
        _label_training_images(file_list, train, options)
        for image in test:
            if image.label is not None:
                row = ImageRow(image.name, CLASSES[image.label], _slide(image.name), "test")
                file_list.rows.append(row)
        _check_names(file_list)
        file_list.rows = _hide_labels(file_list.rows)
        _check_files(file_list, options.skip_unreadable)

    return list_published("chaoyang", root, CLASSES, "slide", fill)


def _fits(root: Path, lists: Path | None) -> bool:
    has_folders = (root / "train").is_dir() or (root / "test").is_dir()
    names = ("train.json", "json/train.json", "test.json")
    has_lists = lists is not None or any((root / name).is_file() for name in names)
    return has_folders and has_lists


def _find_lists(root: Path, folder: Path | None) -> Path:
    """The folder of the json files: the one given with data.splits, the root, or root/json."""
    places = [root, root / "json"] if folder is None else [folder]
    lists = find_lists_folder(places, lambda place: any(place.glob("*.json")))
    if lists is None:
        raise DataError(
            "data.lists-not-found",
            f"there is no .json file in {' or '.join(map(str, places))}",
            fix="copy train.json and test.json there",
        )
    return lists


def _slide(name: str) -> str:
    return PurePosixPath(name).name.partition("-IMG")[0]


# ---- the lists ----


def _read_training_lists(file_list: FileList, folder: Path) -> list[ChaoyangImage]:
    """train.json, joined with the pathologists' labels from whichever list has them."""
    train_path = folder / "train.json"
    lists: dict[Path, list[ChaoyangImage]] = {}
    if train_path.is_file():
        lists[train_path] = _read_list(file_list, train_path)
    for path in sorted(folder.glob("*.json")):
        if path.name not in ("train.json", "test.json"):
            images = _read_list(file_list, path)
            if any(image.votes for image in images):
                lists[path] = images
    base = lists.get(train_path) or next(iter(lists.values()), [])
    if not base:
        raise DataError(
            "data.lists-not-found",
            f"{train_path} does not exist or is empty",
            fix="copy the published train.json there",
        )
    file_list.source_files += lists
    votes: dict[str, tuple[int, ...]] = {}
    for images in lists.values():
        votes |= {image.name: image.votes for image in images if image.votes}
    file_list.report(
        "data.lists-differ",
        sorted(set(votes) - {image.name for image in base}),
        "image",
        "with pathologists' labels, but not in train.json",
        fix="copy both lists from the same release",
    )
    return [replace(image, votes=votes.get(image.name, ())) for image in base]


def _read_list(file_list: FileList, path: Path) -> list[ChaoyangImage]:
    """The valid entries of a json file; others are reported as a problem."""
    images = []
    invalid_entries = []
    for entry in _read_json(path):
        labels = {key: str(entry[key]) for key in ("label", *PATHOLOGISTS) if key in entry}
        if labels and _CLASS_NUMBERS.issuperset(labels.values()):
            votes = tuple(int(labels[key]) for key in PATHOLOGISTS if key in labels)
            label = int(labels["label"]) if "label" in labels else None
            name = normal_path(str(entry["name"]))
            images.append(ChaoyangImage(name, label, votes if len(votes) == 3 else ()))
        else:
            invalid_entries.append(f"{entry['name']}: {entry}")
    file_list.report(
        "data.label-range",
        invalid_entries,
        "entry",
        f"of {path.name} with a label other than 0, 1, 2 or 3",
        nouns="entries",
        fix=f"copy the published {path.name} again",
    )
    return images


def _read_json(path: Path) -> list[JsonEntry]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise DataError(
            "data.lists-not-found",
            f"{path} does not exist",
            fix=f"copy the published {path.name} there",
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(
            "data.invalid-json",
            f"{path} cannot be read: {error}",
            fix=f"copy the published {path.name} again",
        ) from None
    is_list = isinstance(content, list)
    if not is_list or not all(isinstance(entry, dict) and "name" in entry for entry in content):
        raise DataError(
            "data.invalid-json",
            f"{path} is not a list of images",
            fix='write entries like {"name": "train/x-IMG001x001-0.JPG", "label": 0}',
        )
    return list(content)


# ---- which label ----


def _label_training_images(
    file_list: FileList, train: list[ChaoyangImage], options: ReaderOptions
) -> None:
    """Append rows of the training images with the requested label."""
    unvoted_count = sum(not image.votes for image in train)
    rule = options.label or ("released" if unvoted_count else "drawn")
    if rule != "released" and unvoted_count:
        raise DataError(
            "data.no-pathologist-labels",
            f"{unvoted_count} of {len(train)} training images do not have the labels of three "
            f"pathologists ({', '.join(PATHOLOGISTS)})",
            fix="put the list with them beside train.json, or use --set data.label=released",
        )
    unlabelled_images = []
    for image in train:
        label = image.label if rule == "released" else image.majority()
        if label is None:
            unlabelled_images.append(image.name)
        else:
            row = ImageRow(image.name, CLASSES[label], _slide(image.name), "train")
            file_list.rows.append(row)
    file_list.report(
        "data.unlabelled-image",
        unlabelled_images,
        "training image",
        "without a label",
        fix="copy the published train.json there",
    )
    votes = {image.name: image.votes for image in train}
    if rule == "drawn":
        _draw_labels(file_list, votes, options.seed)
    elif rule == "pathologist":
        _divide_among_pathologists(file_list, votes, options.seed)
    elif rule == "majority":
        tie_count = sum(len(set(image.votes)) == len(PATHOLOGISTS) for image in train)
        file_list.notes.append(
            "label majority: two of three pathologists; where all three differ "
            f"({plural(tie_count, 'image')}), the released label"
        )
    else:
        file_list.notes.append(
            "label released: the one in train.json; how many of them are wrong is not known"
        )
    _add_published_counts(file_list, rule)


def _draw_labels(file_list: FileList, votes: Mapping[str, tuple[int, ...]], seed: int) -> None:
    """One pathologist per image, drawn in the order of names, not in the order of the list."""
    names = sorted(row.file for row in file_list.rows)
    picks = stream(seed, "chaoyang", "pathologist").integers(len(PATHOLOGISTS), size=len(names))
    given = {}
    for name, pick in zip(names, picks.tolist(), strict=True):
        given[name] = CLASSES[votes[name][pick]]
    file_list.columns += ("given",)
    rows = [replace(row, given=given[row.file]) for row in file_list.rows]
    file_list.rows = rows
    file_list.notes.append(
        f"label drawn: one pathologist per image, seed {seed}; {_count_wrong(rows)} of {len(rows)} "
        "differ from the majority of three, which is the reference for numbers about labels, not a "
        "proven truth"
    )


def _count_wrong(rows: Sequence[ImageRow]) -> int:
    return sum(row.given != row.label for row in rows)


def _divide_among_pathologists(
    file_list: FileList, votes: Mapping[str, tuple[int, ...]], seed: int
) -> None:
    """Slides in random order, each to the site with the fewest images; labels of its pathologist.

    With fewer slides than sites, every image counts as a slide.
    """
    slides: dict[str, list[str]] = {}
    for row in sorted(file_list.rows, key=lambda row: row.file):
        slides.setdefault(row.group, []).append(row.file)
    if len(slides) < len(SITES):
        slides = {row.file: [row.file] for row in file_list.rows}
    names = sorted(slides)
    order = stream(seed, "chaoyang", "site").permutation(len(names))
    counts = [0] * len(SITES)
    number_of: dict[str, int] = {}
    for position in order.tolist():
        files = slides[names[position]]
        number = counts.index(min(counts))
        number_of |= dict.fromkeys(files, number)
        counts[number] += len(files)
    file_list.columns += ("given", "site")
    rows = []
    for row in file_list.rows:
        number = number_of[row.file]
        given = CLASSES[votes[row.file][number]]
        rows.append(replace(row, site=SITES[number], given=given))
    file_list.rows = rows
    parts = []
    for site in SITES:
        own_rows = [row for row in rows if row.site == site]
        parts.append(f"{site} {_count_wrong(own_rows)} of {len(own_rows)}")
    file_list.notes.append(
        f"label pathologist: one pathologist per site, complete slides, seed {seed}; labels that "
        f"differ from the majority of three: {', '.join(parts)}"
    )


def _add_published_counts(file_list: FileList, rule: str) -> None:
    counts = {split: {"all": sum(numbers)} for split, numbers in PUBLISHED_COUNTS.items()}
    counts["test"] |= dict(zip(CLASSES, PUBLISHED_COUNTS["test"], strict=True))
    if rule == "released":
        counts["train"] |= dict(zip(CLASSES, PUBLISHED_COUNTS["train"], strict=True))
    file_list.published_counts = counts


# ---- files ----


def _check_names(file_list: FileList) -> None:
    """Report names outside train/ and test/, and duplicates."""
    outside_names = []
    for row in file_list.rows:
        if row.file.partition("/")[0] not in PUBLISHED_COUNTS or ".." in row.file:
            outside_names.append(row.file)
    file_list.report(
        "data.path-outside-folder",
        outside_names,
        "name",
        "outside the folders train and test",
        fix="write names like train/x-IMG001x001-0.JPG in the lists",
    )
    file_list.check_duplicates()


def _hide_labels(rows: list[ImageRow]) -> list[ImageRow]:
    """The rows with ids without the digit that reveals the label, and with a given label."""
    counts: Counter[str] = Counter()
    result = []
    for row in rows:
        name = re.sub(r"-\d\.\w+$", "", row.file)
        counts[name] += 1
        if counts[name] > 1:
            name = f"{name}#{counts[name]}"
        result.append(replace(row, name=name, given=row.given or row.label))
    return result


def _check_files(file_list: FileList, skip_missing: bool) -> None:
    """Count the images in the folders; report or drop those that do not exist."""
    names = {}
    for folder, numbers in PUBLISHED_COUNTS.items():
        images = list_image_names(file_list.root / folder)
        names[folder] = set(images)
        if (file_list.root / folder).is_dir():
            file_list.folders.append(FolderCount(f"{folder}/", len(images), sum(numbers)))
    drop_missing(file_list, names, skip_missing)


READERS.register(
    "chaoyang",
    Reader(
        form="chaoyang:ROOT",
        summary="Chaoyang: train.json, test.json and their images",
        list_images=list_chaoyang,
        labels=("drawn", "pathologist", "released", "majority"),
        order=70,
    ),
)
