"""From a list of image files to a table: decode into the cache, leave out what cannot be read, set a test set aside."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsca.data.cache import Cached, cached_rows
from fedgsca.data.decode.dicom import numbered
from fedgsca.data.decode.image_files import (
    VERSION,
    Facts,
    Unreadable,
    decode_for,
    inspect,
    white_level,
)
from fedgsca.data.file_facts import WORKERS, measure_files, sha256_file
from fedgsca.data.file_list import Listing, Row
from fedgsca.data.split import split_rows
from fedgsca.data.table import Table, check, fingerprint
from fedgsca.errors import DataError

if TYPE_CHECKING:
    from fedgsca.data.load import Options

DEFAULT_SIZE = 224  # what the ImageNet backbones expect
_BLOCK = 64  # images decoded at a time: bounds the memory, keeps all cores busy

Bad = tuple[str, str]  # (file, reason)


@dataclass(frozen=True)
class Pixels:
    """The decoded images of a listing: rows of the array belong to `kept`, in order."""

    cached: Cached
    kept: list[Row]
    bad: list[Bad]
    facts: list[Facts]  # of all rows of the listing
    notes: tuple[str, ...]
    patients: list[int] | None = (
        None  # of the kept rows, DICOM only: a number for every patient, -1 where none is named
    )
    white: int | None = (
        None  # the value of 16-bit grey that became white, where there are such images
    )


def read_listing(listing: Listing, options: Options) -> Table:
    """The list as a table; ids are the files' paths below the folder."""
    listing.refuse()
    pixels = read_pixels(listing, options.image_size, options.cache_dir)
    if pixels.bad and not options.skip_unreadable:
        raise unreadable(listing, pixels.bad)
    return build_table(listing, pixels, options.seed, options.test_fraction)


def read_pixels(listing: Listing, image_size: int | None, cache_dir: Path | None) -> Pixels:
    """Decode once into the cache; unreadable files are left out and listed. Later calls only look at sizes and times."""
    names = [row.file for row in listing.rows]
    measured = measure_files(listing.root, names, _measure, VERSION, cache_dir)
    facts = [Facts(**entry["facts"]) for entry in measured]
    size = image_size or default_size(facts)
    white = white_level(max((f.peak for f in facts), default=0))
    content = "\n".join(
        f"{name}\t{entry['sha256']}" for name, entry in zip(names, measured, strict=True)
    )
    key = hashlib.sha256(f"{VERSION} {size} {white}\n{content}".encode()).hexdigest()

    def rows(extra: dict[str, Any]) -> Iterator[np.ndarray]:
        extra["bad"], patients = [], list[str]()
        yield from _decoded(listing, names, size, white, extra["bad"], patients)
        if any(patients):
            extra["patients"] = numbered(patients)

    cached = cached_rows(f"folder {key}", (size, size, 3), np.uint8, rows, len(names), cache_dir)
    bad = [(str(name), str(reason)) for name, reason in cached.extra["bad"]]
    lost = {name for name, _ in bad}
    kept = [row for row in listing.rows if row.file not in lost]
    notes = (*cached.notes, *_notes(facts, size, white))
    deep = white if any(f.peak for f in facts) else None
    return Pixels(cached, kept, bad, facts, notes, cached.extra.get("patients"), deep)


def no_pixels(listing: Listing) -> Pixels:
    """Stand-ins, one black pixel per image: for counts and leakage without decoding anything."""
    black = np.broadcast_to(np.zeros((1, 1, 1, 3), np.uint8), (len(listing.rows), 1, 1, 3))
    return Pixels(Cached(black, digest=""), list(listing.rows), [], [], ())


def default_size(facts: list[Facts]) -> int:
    """224, or the images' own size when all are smaller and of one size."""
    sizes = {(f.width, f.height) for f in facts if not f.problem}
    if len(sizes) == 1 and max(next(iter(sizes))) < DEFAULT_SIZE:
        return min(next(iter(sizes)))
    return DEFAULT_SIZE


def build_table(listing: Listing, pixels: Pixels, seed: int, test_fraction: float) -> Table:
    """Labels, groups, sites and splits around the decoded images."""
    rows, notes = pixels.kept, [*listing.notes, *pixels.notes]
    classes = listing.classes or class_order([row.label for row in rows])
    number = {name: i for i, name in enumerate(classes)}
    labels = np.array([number[row.label] for row in rows], dtype=np.int64)
    groups = _groups(listing, pixels, notes)
    if "split" in listing.columns:
        split = np.array([row.split for row in rows])
    else:
        split = split_rows(labels, groups, test_fraction, seed)
        how = "by class" if groups is None else "by class, whole groups together"
        share = f"{np.sum(split == 'test')} of {len(rows)} images"
        notes.append(f"no split column: {share} set aside as test set with seed {seed}, {how}")
    given = (
        np.array([number[row.given] for row in rows], dtype=np.int64)
        if "given" in listing.columns
        else None
    )
    if pixels.bad:
        notes.append(
            f"{len(pixels.bad)} of {len(listing.rows)} images cannot be read and are left out"
        )
    if len({name.casefold() for name in classes}) < len(classes):
        notes.append("some classes differ only in capitals: " + ", ".join(classes))
    array = pixels.cached.array
    return check(
        Table(
            name=listing.name or listing.root.resolve().name,
            images=array,
            labels=labels,
            classes=classes,
            split=split,
            ids=np.array([row.name or row.file for row in rows]),
            fingerprint=fingerprint(array, labels, classes, split, digest=pixels.cached.digest),
            groups=groups,
            site=np.array([row.site for row in rows]) if "site" in listing.columns else None,
            given=given,
            group_word=listing.group_word,
            notes=tuple(notes),
            white=pixels.white,
        )
    )


def _groups(listing: Listing, pixels: Pixels, notes: list[str]) -> np.ndarray | None:
    """The group column, else the patients of DICOM files; an image without either is a group of its own."""
    rows, patients = pixels.kept, pixels.patients
    if "group" in listing.columns:
        return np.array([row.group or row.file for row in rows])
    if patients is None:
        return None
    if len(set(patients)) == 1:  # "ANONYMOUS" everywhere says nothing about who is who
        notes.append("all DICOM files name the same patient; the name is not used as a group")
        return None
    notes.append(
        f"{len(set(patients) - {-1})} patients, by the id in the DICOM files, are kept together as groups"
    )
    return np.array(
        [
            row.file if patient < 0 else f"patient {patient}"
            for row, patient in zip(rows, patients, strict=True)
        ]
    )


def class_order(labels: list[str]) -> tuple[str, ...]:
    """Class names in index order: by number if all are numbers, else by the alphabet."""
    names = set(labels)
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def list_bad(
    listing: Listing, *, image_size: int | None = None, cache_dir: Path | None = None
) -> list[Bad]:
    """Files of the list that cannot be decoded, with the reason; missing files are the listing's problem, not this one's."""
    present = replace(
        listing, rows=[row for row in listing.rows if row.file and _inside(listing.root, row.file)]
    )
    try:
        return read_pixels(present, image_size, cache_dir).bad if present.rows else []
    except NothingReadable as error:
        return error.bad


def _inside(root: Path, file: str) -> bool:
    """A file below the folder; a row that points elsewhere, also through a link, is not opened."""
    path = (root / file).resolve()
    return path.is_relative_to(root.resolve()) and path.is_file()


class NothingReadable(DataError):
    """Not one image of the folder can be decoded."""

    def __init__(self, listing: Listing, bad: list[Bad]) -> None:
        base = unreadable(listing, bad)
        super().__init__(base.code, base.message, fix=base.fix)
        self.bad = bad


def _measure(path: Path) -> dict[str, Any]:
    try:
        return {"sha256": sha256_file(path), "facts": asdict(inspect(path))}
    except OSError as error:  # no permission, failing disk: one unreadable image, not a crash
        return {"sha256": "", "facts": asdict(Facts(problem=error.strerror or str(error)))}


def _decoded(
    listing: Listing, names: list[str], size: int, white: int, bad: list[Bad], patients: list[str]
) -> Iterator[np.ndarray]:
    """Blocks of decoded images, their patients beside them; whatever cannot be decoded is appended to `bad` instead."""

    def one(name: str) -> tuple[np.ndarray, str] | str:
        try:
            return decode_for(listing.root / name, size, white)
        except Unreadable as error:
            return str(error)

    with ThreadPoolExecutor(WORKERS) as pool:  # Pillow decodes outside the interpreter lock
        for start in range(0, len(names), _BLOCK):
            chunk = names[start : start + _BLOCK]
            results = list(pool.map(one, chunk))
            bad.extend(
                (name, result)
                for name, result in zip(chunk, results, strict=True)
                if isinstance(result, str)
            )
            good = [result for result in results if not isinstance(result, str)]
            if good:
                patients.extend(patient for _, patient in good)
                yield np.stack([image for image, _ in good])
    if len(bad) == len(names):
        raise NothingReadable(listing, bad)


def _notes(facts: list[Facts], size: int, white: int) -> list[str]:
    """What was done to the pixels, so that nobody has to guess."""
    sound = [f for f in facts if not f.problem]
    deep = sum(f.mode.startswith("I") for f in sound)
    pages = sum(f.pages > 1 for f in sound)
    stretched = sum(f.stretched for f in sound)
    sizes = {(f.width, f.height) for f in sound}
    notes = []
    if deep:
        peak = max(f.peak for f in sound)
        notes.append(
            f"{deep} images with 16-bit grey values, scaled so that {white} is white (largest value: {peak})"
        )
    if stretched:
        notes.append(
            f"{stretched} DICOM files have no window; each is shown between its 0.5 and 99.5 percentile"
        )
    if pages:
        notes.append(f"{pages} TIFF files hold more than one page; the first is used")
    if sizes != {(size, size)}:
        notes.append(
            f"images brought to {size}x{size} pixels: shorter side resized, middle cut out"
        )
    return notes


def unreadable(listing: Listing, bad: list[Bad]) -> DataError:
    """The error for images that cannot be decoded: how many, the first five and why."""
    first = "; ".join(f"{name} ({reason})" for name, reason in bad[:5])
    return DataError(
        "todo.folder-1",
        f"{len(bad)} of {len(listing.rows)} images in {listing.root} cannot be read, first: {first}",
        fix=f"fedgsca data check {listing.source or listing.root} --list-bad names all; "
        "replace them, or leave them out with `fedgsca run ... --skip-unreadable`",
    )
