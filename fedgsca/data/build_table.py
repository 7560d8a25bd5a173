"""From a list of image files to a table: decode into the cache, then set test images aside."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgsca.data.cache import CacheEntry, Extra, cached_rows
from fedgsca.data.dicom import number_patients
from fedgsca.data.file_list import WORKERS, FileList, ImageRow, is_file, measure_files, show_cases
from fedgsca.data.image_files import (
    VERSION,
    ImageFacts,
    UnreadableImageError,
    decode_with_patient,
    inspect_image,
    white_level,
)
from fedgsca.data.partition import choose_split
from fedgsca.data.reader import ReaderOptions
from fedgsca.data.table import ImageTable, check_table, with_fingerprint
from fedgsca.errors import DataError
from fedgsca.support.checked_labels import NO_ORIGINAL, mark_checked
from fedgsca.support.console import activity
from fedgsca.support.files import sha256_file
from fedgsca.support.text import join_words, plural

_FACTS = f"{VERSION} facts-2"  # names what is measured of a file
DEFAULT_SIZE = 224  # what the ImageNet backbones expect
_BLOCK = 64  # images decoded at a time: bounds the memory, keeps all cores busy


class BadFile(NamedTuple):
    """A file that cannot be decoded, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class DecodedImages:
    """The images of a file list: row i of the array is the image of rows[i]."""

    entry: CacheEntry
    rows: list[ImageRow]
    bad_files: list[BadFile]
    # of all rows of the file list
    facts: list[ImageFacts]
    notes: tuple[str, ...]
    # for `rows`, DICOM only: a number for every patient, -1 where none is named
    patients: list[int] | None = None
    # the value of 16-bit grey that became white, where there are such images
    white: int | None = None


class NothingReadableError(DataError):
    """Not one image of the list can be decoded."""

    def __init__(self, file_list: FileList, bad_files: list[BadFile]) -> None:
        error = unreadable_error(file_list, bad_files)
        super().__init__(error.code, error.message, fix=error.fix)
        self.bad_files = bad_files


def read_file_list(file_list: FileList, options: ReaderOptions) -> ImageTable:
    """The list as a table; ids are the files' paths below the folder.

    Raises DataError for problems of the list and, unless they may be skipped, unreadable images.
    """
    file_list.raise_problems()
    images = decode_images(file_list, options.image_size, options.cache_dir)
    if images.bad_files and not options.skip_unreadable:
        raise unreadable_error(file_list, images.bad_files)
    return build_table(file_list, images, options)


# ---- decoding ----


def decode_images(
    file_list: FileList, image_size: int | None, cache_dir: Path | None
) -> DecodedImages:
    """Decode once into the cache; unreadable files are left out and listed.

    Later calls only compare the sizes and times of the files.
    """
    names = [row.file for row in file_list.rows]
    try:
        all_names = [*names, *file_list.undrawn_files]
        all_measurements = measure_files(file_list.root, all_names, _measure, _FACTS, cache_dir)
    except FileNotFoundError:  # a reader that does not check this, or a file deleted meanwhile
        raise _missing_error(file_list) from None
    measurements = all_measurements[: len(names)]
    all_facts = [ImageFacts(**measurement["facts"]) for measurement in all_measurements]
    facts = all_facts[: len(names)]
    size = image_size or default_size(all_facts)
    peak = max((fact.peak for fact in all_facts), default=0)
    white = white_level(peak)
    digests = [str(measurement["sha256"]) for measurement in measurements]
    key = _cache_key(names, digests, size, white)

    def decode_rows(extra: Extra) -> Iterator[np.ndarray]:
        bad_files: list[BadFile] = []
        patients: list[str] = []
        yield from _decode_blocks(file_list, names, size, white, bad_files, patients)
        extra["bad"] = bad_files
        if any(patients):
            extra["patients"] = number_patients(patients)

    entry = cached_rows(key, (size, size, 3), np.uint8, decode_rows, len(names), cache_dir)
    bad_files = [BadFile(*bad) for bad in entry.extra["bad"]]
    bad_names = {bad.name for bad in bad_files}
    return DecodedImages(
        entry,
        rows=[row for row in file_list.rows if row.file not in bad_names],
        bad_files=bad_files,
        facts=facts,
        notes=(*entry.notes, *_decoding_notes(facts, size, white)),
        patients=entry.extra.get("patients"),
        white=white if peak else None,
    )


def _cache_key(names: list[str], digests: list[str], size: int, white: int) -> str:
    """Names and contents of all files, and what the decoder does to them."""
    lines = [f"{name}\t{digest}" for name, digest in zip(names, digests, strict=True)]
    content = "\n".join(lines)
    key = hashlib.sha256(f"{VERSION} {size} {white}\n{content}".encode()).hexdigest()
    return f"folder {key}"


def blank_images(file_list: FileList) -> DecodedImages:
    """One black pixel per image, for counts and leakage without decoding anything."""
    black = np.broadcast_to(np.zeros((1, 1, 1, 3), np.uint8), (len(file_list.rows), 1, 1, 3))
    return DecodedImages(CacheEntry(black, digest=""), list(file_list.rows), [], [], ())


def default_size(facts: list[ImageFacts]) -> int:
    """224, or the images' own size when all are smaller and of one size."""
    sizes = {(fact.width, fact.height) for fact in facts if not fact.problem}
    if len(sizes) == 1 and max(next(iter(sizes))) < DEFAULT_SIZE:
        return min(next(iter(sizes)))
    return DEFAULT_SIZE


def find_bad_files(
    file_list: FileList, *, image_size: int | None = None, cache_dir: Path | None = None
) -> list[BadFile]:
    """Every file of the list that exists and cannot be decoded."""
    rows = [row for row in file_list.rows if row.file and _is_inside(file_list.root, row.file)]
    if not rows:
        return []
    try:
        return decode_images(replace(file_list, rows=rows), image_size, cache_dir).bad_files
    except NothingReadableError as error:
        return error.bad_files


def _is_inside(root: Path, file: str) -> bool:
    """A file below the folder; a row that points elsewhere, also through a link, is not opened."""
    if not is_file(root / file):
        return False
    path = (root / file).resolve()
    return path.is_relative_to(root.resolve()) and path.is_file()


def _measure(path: Path) -> dict[str, Any]:
    """Checksum and header of one file, in the form that the measurements are stored in."""
    try:
        return {"sha256": sha256_file(path), "facts": asdict(inspect_image(path))}
    except OSError as error:  # no permission, failing disk: one unreadable image, not a crash
        return {"sha256": "", "facts": {"problem": error.strerror or str(error)}}


def _decode_blocks(
    file_list: FileList,
    names: list[str],
    size: int,
    white: int,
    bad_files: list[BadFile],
    patients: list[str],
) -> Iterator[np.ndarray]:
    """Blocks of decoded images, (k, size, size, 3) uint8.

    Appends the patient of every image to `patients`, and files that cannot be decoded to
    `bad_files`.
    """

    def decode(name: str) -> tuple[np.ndarray, str] | BadFile:
        try:
            return decode_with_patient(file_list.root / name, size, white)
        except UnreadableImageError as error:
            return BadFile(name, str(error))

    with (
        ThreadPoolExecutor(WORKERS) as pool,  # Pillow decodes outside the interpreter lock
        activity("decoding images", len(names)) as advance,
    ):
        for start in range(0, len(names), _BLOCK):
            images = []
            for result in pool.map(decode, names[start : start + _BLOCK]):
                if isinstance(result, BadFile):
                    bad_files.append(result)
                else:
                    images.append(result[0])
                    patients.append(result[1])
            advance(len(names[start : start + _BLOCK]))
            if images:
                yield np.stack(images)
    if len(bad_files) == len(names):
        raise NothingReadableError(file_list, bad_files)


def _decoding_notes(facts: list[ImageFacts], size: int, white: int) -> list[str]:
    """What was done to the pixels, so that nobody has to guess."""
    counts: Counter[str] = Counter()
    sizes = set()
    peak = 0
    for fact in facts:
        if not fact.problem:
            counts["deep"] += fact.mode.startswith("I")
            counts["pages"] += fact.pages > 1
            counts["windowless"] += fact.needs_stretching
            sizes.add((fact.width, fact.height))
            peak = max(peak, fact.peak)
    notes = []
    if counts["deep"]:
        notes.append(
            f"{plural(counts['deep'], 'image')} with 16-bit grey values, scaled so that {white} is "
            f"white (largest value: {peak})"
        )
    if counts["windowless"]:
        notes.append(
            f"{plural(counts['windowless'], 'DICOM file')} without a window: shown between the 0.5 "
            "and the 99.5 percentile of the image"
        )
    if counts["pages"]:
        notes.append(
            f"{plural(counts['pages'], 'TIFF file')} with more than one page: the first one is used"
        )
    if sizes != {(size, size)}:
        notes.append(
            f"images resized to {size}x{size} pixels: shorter side resized, centre cropped"
        )
    return notes


def _missing_error(file_list: FileList) -> DataError:
    all_names = [*(row.file for row in file_list.rows), *file_list.undrawn_files]
    names = [name for name in all_names if not is_file(file_list.root / name)]
    return DataError(
        "data.file-not-found",
        f"{file_list.root}: {plural(len(names), 'file')} not found: {show_cases(names)}",
        fix="copy the files there or remove them from the list",
    )


def unreadable_error(file_list: FileList, bad_files: list[BadFile]) -> DataError:
    """The error for images that cannot be decoded: how many, the first five and why."""
    first = "; ".join(f"{bad.name} ({bad.reason})" for bad in bad_files[:5])
    return DataError(
        "data.unreadable-images",
        f"{len(bad_files)} of {len(file_list.rows)} images in {file_list.root} cannot be read, "
        f"first: {first}",
        fix=f"list all with `fedgsca data check {file_list.source or file_list.root} --list-bad`, "
        "then replace them, or leave them out with `fedgsca run ... --skip-unreadable`",
    )


# ---- the table ----


def build_table(file_list: FileList, images: DecodedImages, options: ReaderOptions) -> ImageTable:
    """Labels, groups, sites and splits around the decoded images.

    Without a split column, a fraction of the images become test images, drawn with the seed.
    """
    rows = images.rows
    columns = file_list.columns
    classes, labels = number_classes(file_list, rows)
    notes = [*file_list.notes, *images.notes]
    groups = _groups(file_list, images, notes)
    split, split_notes = choose_split(
        list_column(file_list, rows, "split"),
        labels,
        groups,
        options.test_fraction,
        options.seed,
        source=str(file_list.root),
    )
    notes += split_notes
    index = {name: i for i, name in enumerate(classes)}
    given = None
    if "given" in columns:
        given = np.array([index[row.given] for row in rows], dtype=np.int64)
    # original labels that no image has any more are unknown
    original = np.array([index.get(row.original, NO_ORIGINAL) for row in rows])
    if images.bad_files:
        notes.append(
            f"{len(images.bad_files)} of {len(file_list.rows)} images cannot be read and are left "
            "out"
        )
    notes += spelling_warnings(labels, classes)
    table = ImageTable(
        name=file_list.name or file_list.root.resolve().name,
        images=images.entry.array,
        labels=labels,
        classes=classes,
        split=split,
        ids=np.array([row.name or row.file for row in rows]),
        groups=groups,
        site=list_column(file_list, rows, "site"),
        given=given,
        has_drawn_split="split" not in columns,
        group_word=file_list.group_word,
        class_names=dict(file_list.class_names),
        order=file_list.order,
        image_digest=images.entry.digest,
        notes=tuple(notes),
        white=images.white,
        checked=mark_checked(np.array([row.checked for row in rows]), original),
    )
    return check_table(with_fingerprint(table))


def number_classes(
    file_list: FileList, rows: Sequence[ImageRow]
) -> tuple[tuple[str, ...], np.ndarray]:
    """The classes of a list, and (n,) int64 their numbers as labels of the rows."""
    names = [row.label for row in rows]
    classes = file_list.classes or sort_classes(names)
    index = {name: i for i, name in enumerate(classes)}
    return classes, np.array([index[name] for name in names], dtype=np.int64)


def list_column(file_list: FileList, rows: Sequence[ImageRow], name: str) -> np.ndarray | None:
    """(n,) str: a column of the rows; None if the list does not have it."""
    if name not in file_list.columns:
        return None
    return np.array([getattr(row, name) for row in rows])


def spelling_warnings(labels: np.ndarray, classes: tuple[str, ...]) -> list[str]:
    """Classes whose names are the same apart from capitals and spaces, with their image counts.

    `labels`: (n,) class indices. One text for each group of such classes.
    """
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    by_spelling: dict[str, list[tuple[str, int]]] = {}
    for name, count in zip(classes, counts, strict=True):
        by_spelling.setdefault("".join(name.casefold().split()), []).append((name, count))
    texts = []
    for spellings in by_spelling.values():
        if len(spellings) > 1:
            spellings.sort(key=lambda spelling: -spelling[1])
            names = join_words([f"{name} ({count})" for name, count in spellings])
            texts.append(
                f"classes that differ only in capitals or spaces: {names}; if they are one class,"
                " write one name everywhere (in labels.csv or as the folder's name)"
            )
    return texts


def listed_groups(file_list: FileList, rows: Sequence[ImageRow]) -> np.ndarray | None:
    """(n,) the group column, where an image without a group is a group of its own; or None."""
    if "group" not in file_list.columns:
        return None
    return np.array([row.group or row.file for row in rows])


def _groups(file_list: FileList, images: DecodedImages, notes: list[str]) -> np.ndarray | None:
    """(n,) the group column, else the patients of DICOM files; None if neither is present."""
    groups = listed_groups(file_list, images.rows)
    if groups is not None or images.patients is None:
        return groups
    if len(set(images.patients)) == 1:  # "ANONYMOUS" everywhere does not tell patients apart
        notes.append("all DICOM files name the same patient; the name is not used as a group")
        return None
    patient_count = len(set(images.patients) - {-1})
    notes.append(
        f"grouped by the patient id in the DICOM files: {plural(patient_count, 'patient')}"
    )
    names = []
    for row, patient in zip(images.rows, images.patients, strict=True):
        names.append(row.file if patient < 0 else f"patient {patient}")
    return np.array(names)


def sort_classes(labels: list[str]) -> tuple[str, ...]:
    """Class names in index order: by number if all are numbers, otherwise alphabetically."""
    names = set(labels)
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))
