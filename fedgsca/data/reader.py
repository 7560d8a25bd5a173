"""Data readers: one kind of source each, found by a registry.

A new reader is one file in fedgsca/data/readers/ (or in a package of its own, see
fedgsca/support/registry.py) that ends with

    READERS.register("mydata", Reader(form="mydata:ROOT", summary="my data set", list_images=...))

A reader of image files only says which images there are and what they are (`list_images`);
decoding, cache and checks are common to all. Any other reader returns the table itself (`read`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from fedgsca.data.file_list import FileList
from fedgsca.data.table import ImageTable
from fedgsca.data.withdrawn import drop_withdrawn
from fedgsca.errors import ConfigError, DataError
from fedgsca.support.registry import Registry
from fedgsca.support.text import did_you_mean

SMALLEST_SIZE, LARGEST_SIZE = 8, 2048  # pixels


@dataclass(frozen=True)
class ReaderOptions:
    """What a person can ask a reader for; each reader uses what applies to it."""

    # pixels; None: the source's own size
    image_size: int | None = None
    seed: int = 0
    cache_dir: Path | None = None
    # how many images to render, or to draw from a larger set, stratified and seeded; None: all
    train: int | None = None
    test: int | None = None
    # then class sizes fall geometrically: the most frequent class has this many times the training
    # images of the rarest; None: as it is
    long_tail: float | None = None
    # of rendered images, 0 to 1
    difficulty: float | None = None
    # the share of images that become test images, where the source marks none
    test_fraction: float = 0.2
    skip_unreadable: bool = False
    # one of the reader's `splits`
    split: str | None = None
    # one of the reader's `labels`
    label: str | None = None
    # the folder with the reader's lists, if it is not the root
    splits: Path | None = None

    def __post_init__(self) -> None:
        size = self.image_size
        if size is not None and not SMALLEST_SIZE <= size <= LARGEST_SIZE:
            raise DataError(
                "data.image-size",
                f"the image size must be between {SMALLEST_SIZE} and {LARGEST_SIZE} pixels, "
                f"got {size}",
                fix="choose another data.image_size, such as 64 or 224",
            )
        if not 0 <= self.test_fraction < 1:
            raise DataError(
                "data.test-fraction",
                f"the test fraction must be at least 0 and below 1, got {self.test_fraction}",
                fix="choose a number such as 0.2",
            )

    @property
    def is_part(self) -> bool:
        """Whether not all images of the source may be in the table."""
        limits = (self.train, self.test, self.long_tail)
        return self.skip_unreadable or any(limit is not None for limit in limits)


@dataclass(frozen=True)
class Reader:
    """One kind of source: how it is written after --data, what it is, and how it is read."""

    # as typed after --data: "kvasir:ROOT"; without a path it is the reader's name
    form: str
    # one line for `fedgsca data list`
    summary: str
    # either this: what follows --data (without "name:") to a table
    read: Callable[[str, ReaderOptions], ImageTable] | None = None
    # or this: a folder to the list of its images
    list_images: Callable[[Path, ReaderOptions], FileList] | None = None
    # values of data.split and data.label; may contain *
    splits: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    # whether images can be rendered with more or less difficulty
    has_difficulty: bool = False
    # whether a plain path, without "name:", is for this reader
    recognises: Callable[[Path], bool] | None = None
    # position in lists for people
    order: int = 100

    def list_files(self, root: Path, options: ReaderOptions) -> FileList:
        """The images of a folder, without those of patients who have left (withdrawn.py)."""
        assert self.list_images is not None
        file_list = self.list_images(root, options)
        drop_withdrawn(file_list)
        return file_list

    def check_options(self, options: ReaderOptions) -> None:
        """Raise ConfigError for an option that this reader does not have or a wrong value."""
        self._check_value("split", options.split, self.splits)
        self._check_value("label", options.label, self.labels)
        if options.difficulty is not None and not self.has_difficulty:
            raise ConfigError(
                "data.option-not-supported",
                f"the source {self.form} does not support data.difficulty",
                fix="remove data.difficulty: only rendered images have one",
            )
        if options.splits is not None and not (self.splits or self.labels):
            raise ConfigError(
                "data.option-not-supported",
                f"the source {self.form} does not support data.splits",
                fix="remove data.splits",
            )

    def _check_value(self, key: str, value: str | None, patterns: tuple[str, ...]) -> None:
        if value is None or any(fnmatchcase(value, pattern) for pattern in patterns):
            return
        if not patterns:
            raise ConfigError(
                "data.option-not-supported",
                f"the source {self.form} does not support data.{key} (got {value!r})",
                fix=f"remove data.{key}",
            )
        raise ConfigError(
            "data.unknown-option-value",
            f"unknown value {value!r} of data.{key} for the source {self.form}",
            fix=f"{did_you_mean(value, patterns)}use one of: {', '.join(patterns)}",
        )


READERS: Registry[Reader] = Registry("fedgsca.data.readers")


def available_readers() -> dict[str, Reader]:
    """All readers by name, in the order in which they are listed."""
    items = READERS.load().items()
    return dict(sorted(items, key=lambda item: (item[1].order, item[0])))
