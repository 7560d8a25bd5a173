"""Facts about Kvasir-Capsule: classes, spellings, published counts; and the folders of a copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedgsca.data.file_list import FileList
from fedgsca.support.text import fold_name

CAP = 3000  # FedGP uses at most this many images of a class; the two largest have more
# Images published per class. The first ten, in this order, are FedGP's classes, the first eleven
# those of the official splits.
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
OFFICIAL = tuple(IMAGES)[:11]
# Other spellings: those of the official splits and of the paper.
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


@dataclass(frozen=True)
class ClassFolders:
    """The class folders under the names they have in this copy, and the images in them."""

    folder: Mapping[str, str]  # class -> folder
    images: Mapping[str, list[str]]  # folder -> file names

    def path(self, label: str, name: str) -> str:
        """The path of an image below the root."""
        return f"{self.folder[label]}/{name}"


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
