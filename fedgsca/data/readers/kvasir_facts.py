"""What is known about Kvasir-Capsule: classes, spellings, published counts; and the class folders of a copy of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedgsca.data.file_list import Listing
from fedgsca.data.readers.published import fold

CAP = 3000  # FedGP keeps this many images of the two largest classes
# images published per class; the first ten, in this order, are FedGP's classes, the first eleven those of the official splits
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
CLASSES, OFFICIAL = tuple(IMAGES)[:10], tuple(IMAGES)[:11]
# other spellings: the official splits', the paper's
SPELLINGS = {
    "Normal": "Normal clean mucosa",
    "Mucosal atrophy": "Reduced mucosal view",
    "Foreign bodies": "Foreign body",
    "Erythematous": "Erythema",
    "Blood": "Blood - fresh",
}
_KNOWN = {fold(name): name for name in IMAGES} | {
    fold(name): known for name, known in SPELLINGS.items()
}
CLIENTS = {"A": 2536, "B": 2536, "C": 2532, "D": 2529}
_VAL = (300, 300, 290, 153, 85, 87, 78, 59, 51, 45)
_TEST = (600, 600, 581, 306, 171, 173, 155, 118, 101, 89)


@dataclass(frozen=True)
class Tree:
    """The class folders as they are called here, and the images in them."""

    folder: Mapping[str, str]  # class -> folder
    images: Mapping[str, list[str]]  # folder -> names

    def file(self, label: str, name: str) -> str:
        return f"{self.folder[label]}/{name}"


def class_of(name: str) -> str:
    """The published name of a class in any spelling, or nothing."""
    return _KNOWN.get(fold(name), "")


def video_of(name: str) -> str:
    """`<video>_<frame>.jpg`."""
    return name.rpartition("_")[0] or name


def add_published(listing: Listing) -> None:
    """The counts of FedGP's split."""
    total = [min(CAP, IMAGES[c]) for c in CLASSES]
    train = [n - v - t for n, v, t in zip(total, _VAL, _TEST, strict=True)]
    for split, numbers in (("train", train), ("val", _VAL), ("test", _TEST)):
        listing.published[split] = dict(zip(CLASSES, numbers, strict=True)) | {"all": sum(numbers)}
