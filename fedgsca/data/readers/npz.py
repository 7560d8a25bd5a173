"""MedMNIST-style .npz files: {train,val,test}_images and {train,val,test}_labels.

Optional: {train,val,test}_checked, (n,) bool, the labels that a person has checked.

Members are streamed out of the zip archive block by block, so that the 12 GB files of the 224-pixel
edition pass through a small memory into the cache.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedgsca.data.cache import Extra, cached_rows
from fedgsca.data.file_list import check_class_count, measure_files
from fedgsca.data.image_files import UnreadableImageError, check_shape, fit
from fedgsca.data.reader import READERS, Reader, ReaderOptions
from fedgsca.data.readers.features_npz import archive_errors, check_marks
from fedgsca.data.table import SPLITS, ImageTable, check_table, with_fingerprint
from fedgsca.errors import DataError
from fedgsca.support.checked_labels import mark_checked
from fedgsca.support.files import sha256_file

VERSION = "npz-1"  # part of the cache key: raise it whenever the pixels that come out change
_BLOCK = 256  # images in memory at a time, fewer if they are large
_BLOCK_BYTES = 2**28

_ORGANS = (
    "bladder, femur-left, femur-right, heart, kidney-left, kidney-right, liver, lung-left, "
    "lung-right, pancreas, spleen"
)
# class names by the beginning of the file's name, separated by commas
_CLASS_NAMES = {
    "pathmnist": (
        "adipose, background, debris, lymphocytes, mucus, smooth muscle, normal colon mucosa, "
        "cancer-associated stroma, colorectal adenocarcinoma epithelium"
    ),
    "dermamnist": (
        "actinic keratoses and intraepithelial carcinoma, basal cell carcinoma, "
        "benign keratosis-like lesions, dermatofibroma, melanoma, melanocytic nevi, "
        "vascular lesions"
    ),
    "octmnist": "choroidal neovascularization, diabetic macular edema, drusen, normal",
    "pneumoniamnist": "normal, pneumonia",
    "breastmnist": "malignant, normal or benign",
    "bloodmnist": (
        "basophil, eosinophil, erythroblast, immature granulocytes, lymphocyte, monocyte, "
        "neutrophil, platelet"
    ),
    "tissuemnist": (
        "collecting duct / connecting tubule, distal convoluted tubule, "
        "glomerular endothelial cells, interstitial endothelial cells, leukocytes, podocytes, "
        "proximal tubule segments, thick ascending limb"
    ),
    "retinamnist": "grade 0, grade 1, grade 2, grade 3, grade 4",
    "organamnist": _ORGANS,
    "organcmnist": _ORGANS,
    "organsmnist": _ORGANS,
}


@dataclass(frozen=True)
class NpzMember:
    """Header of one array inside the archive."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool


def read_npz(
    path: Path, *, image_size: int | None = None, cache_dir: Path | None = None
) -> ImageTable:
    """A table of all splits in the file; ids are "train/17"."""
    if path.exists() and not path.is_file():  # a device would be read until the memory is full
        raise DataError(
            "data.npz-not-a-file",
            f"{path} is not a regular file",
            fix="check the path given with --data",
        )
    with archive_errors(path), zipfile.ZipFile(path) as archive:
        return _read_archive(path, archive, image_size, cache_dir)


def class_names(path: Path, count: int) -> tuple[str, ...]:
    """The published names for MedMNIST files (also pathmnist_224.npz), otherwise "class 0", ..."""
    for prefix, names in _CLASS_NAMES.items():
        if path.name.lower().startswith(prefix):
            return tuple(name.strip() for name in names.split(","))
    return tuple(f"class {i}" for i in range(count))


def _read_archive(
    path: Path, archive: zipfile.ZipFile, image_size: int | None, cache_dir: Path | None
) -> ImageTable:
    members = _read_members(path, archive)
    splits = [split for split in SPLITS if f"{split}_images" in members]
    images = [members[f"{split}_images"] for split in splits]
    label_blocks = []
    marks = []
    for split, member in zip(splits, images, strict=True):
        label_blocks.append(_read_labels(path, archive, members[f"{split}_labels"], member))
        marks.append(_read_marks(path, archive, members.get(f"{split}_checked"), member))
    file_size = _image_size(path, images)
    size = (image_size, image_size) if image_size else file_size

    def read_rows(extra: Extra) -> Iterator[np.ndarray]:
        for member in images:
            for block in _read_blocks(archive, member):
                yield _resize(_to_colour(block), size)

    (digest,) = measure_files(path.parent, [path.name], sha256_file, "sha256", cache_dir)
    counts = [member.shape[0] for member in images]
    entry = cached_rows(
        f"{VERSION} {digest} {size} {','.join(splits)}",
        (*size, 3),
        np.uint8,
        read_rows,
        sum(counts),
        cache_dir,
    )
    ids: list[str] = []
    for split, count in zip(splits, counts, strict=True):
        ids += [f"{split}/{i}" for i in range(count)]
    labels = np.concatenate(label_blocks)
    check_class_count(path, labels)
    table = ImageTable(
        name=path.stem,
        images=entry.array,
        labels=labels,
        classes=class_names(path, int(labels.max(initial=-1)) + 1),
        split=np.repeat(np.array(splits), counts),
        ids=np.array(ids),
        image_digest=entry.digest,
        checked=mark_checked(np.concatenate(marks)),
        notes=(*entry.notes, *_conversion_notes(images, file_size, size)),
    )
    return check_table(with_fingerprint(table))


def _conversion_notes(
    images: list[NpzMember], file_size: tuple[int, int], size: tuple[int, int]
) -> list[str]:
    """What was done to the pixels."""
    notes = []
    if len(images[0].shape) == 3 or images[0].shape[-1] == 1:
        notes.append("grey images, repeated to three channels")
    if file_size != size:
        notes.append(
            f"images resized from {file_size[1]}x{file_size[0]} to {size[1]}x{size[0]} pixels"
        )
    return notes


def _read_members(path: Path, archive: zipfile.ZipFile) -> dict[str, NpzMember]:
    """The headers of the arrays by key; validation images and {split}_checked are optional."""
    available = {name.removesuffix(".npy") for name in archive.namelist()}
    members = {}
    missing_keys = []
    for split in SPLITS:
        keys = [f"{split}_images", f"{split}_labels"]
        if split == "val" and not available.intersection(keys):
            continue
        for key in keys:
            if key in available:
                members[key] = _read_member(archive, key)
            else:
                missing_keys.append(key)
        if f"{split}_checked" in available:
            members[f"{split}_checked"] = _read_member(archive, f"{split}_checked")
    if missing_keys:
        content = ", ".join(sorted(available)[:12]) or "nothing"
        raise DataError(
            "data.npz-arrays",
            f"{path} does not contain {', '.join(missing_keys)}; it contains {content}",
            fix="use MedMNIST's names: train_images, train_labels, test_images, test_labels "
            "(val_images and val_labels are optional)",
        )
    return members


def _read_member(archive: zipfile.ZipFile, key: str) -> NpzMember:
    with archive.open(f"{key}.npy") as handle:
        return NpzMember(key, *_read_header(handle))


def _read_header(handle: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    """Shape, dtype, and whether the order is Fortran's."""
    version = np.lib.format.read_magic(handle)
    if version == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(handle)
    else:
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(handle)
    return shape, dtype, is_fortran


def _image_size(path: Path, members: list[NpzMember]) -> tuple[int, int]:
    """(height, width) shared by all splits, or an error about what is in the file instead."""
    first = members[0]
    for member in members:
        shape = member.shape
        if member.dtype != np.uint8:
            raise DataError(
                "data.image-shape",
                f"{path}: {member.name} must be uint8, got {member.dtype}",
                fix="scale the images to 0..255 and store them as uint8",
            )
        if not (len(shape) == 3 or (len(shape) == 4 and shape[-1] in (1, 3))):
            hint = "volumes are not supported"
            if len(shape) == 4 and shape[1] in (1, 3):
                hint = "move the channels to the last axis"
            raise DataError(
                "data.image-shape",
                f"{path}: {member.name} must have the shape (n, height, width) or "
                f"(n, height, width, 3), got {shape}",
                fix=f"store the images in one of these shapes; {hint}",
            )
        try:
            check_shape(shape[2], shape[1])
        except UnreadableImageError as error:
            raise DataError(
                "data.image-shape",
                f"{path}: {member.name} has the shape {shape}: {error}",
                fix="store smaller images",
            ) from None
        if shape[1:3] != first.shape[1:3]:
            raise DataError(
                "data.image-sizes-differ",
                f"{path}: {member.name} has images of {shape[1:3]} pixels, {first.name} of "
                f"{first.shape[1:3]}",
                fix="store all splits at one size",
            )
    return first.shape[1], first.shape[2]


def _read_labels(
    path: Path, archive: zipfile.ZipFile, member: NpzMember, images: NpzMember
) -> np.ndarray:
    """(n,) int64 class numbers."""
    shape = member.shape
    if len(shape) == 2 and shape[1] > 1:
        raise DataError(
            "data.multi-label",
            f"{path}: {member.name} has {shape[1]} labels per image, but each image must have "
            "exactly one",
            fix="choose one label per image and store it as (n,) or (n, 1), or use a single-label "
            "data set",
        )
    if len(shape) not in (1, 2) or shape[1:] not in ((), (1,)) or shape[0] != images.shape[0]:
        raise DataError(
            "data.column-length",
            f"{path}: {member.name} has the shape {shape}, but there are {images.shape[0]} images",
            fix="store one label per image, as (n,) or (n, 1)",
        )
    if member.dtype.kind not in "iuf":
        raise DataError(
            "data.label-type",
            f"{path}: {member.name} must contain class numbers, got {member.dtype}",
            fix="store labels as 0, 1, 2, ...",
        )
    with archive.open(f"{member.name}.npy") as handle:
        values = np.lib.format.read_array(handle, allow_pickle=False).reshape(-1)
    labels = np.where(np.isfinite(values), values, -1).astype(np.int64)
    invalid_count = int(np.sum((labels != values) | (labels < 0)))
    if invalid_count:
        raise DataError(
            "data.label-type",
            f"{path}: {invalid_count} of {len(labels)} entries of {member.name} are not class "
            "numbers",
            fix="store labels as 0, 1, 2, ...",
        )
    return labels


def _read_marks(
    path: Path, archive: zipfile.ZipFile, member: NpzMember | None, images: NpzMember
) -> np.ndarray:
    """(n,) bool: which labels a person has checked; without the array, none."""
    if member is None:
        return np.zeros(images.shape[0], bool)
    with archive.open(f"{member.name}.npy") as handle:
        marks = np.lib.format.read_array(handle, allow_pickle=False)
    return check_marks(path, member.name, marks, images.shape[0])


def _read_blocks(archive: zipfile.ZipFile, member: NpzMember) -> Iterator[np.ndarray]:
    """Blocks of up to _BLOCK images as stored."""
    with archive.open(f"{member.name}.npy") as handle:
        if member.is_fortran:  # column-major bytes cannot be cut into images: read all at once
            yield np.ascontiguousarray(np.lib.format.read_array(handle, allow_pickle=False))
            return
        _read_header(handle)
        count = member.shape[0]
        image_bytes = int(np.prod(member.shape[1:]))
        block_length = max(1, min(_BLOCK, _BLOCK_BYTES // image_bytes))
        for start in range(0, count, block_length):
            k = min(block_length, count - start)
            data = handle.read(k * image_bytes)
            if len(data) != k * image_bytes:
                last = start + len(data) // image_bytes
                raise EOFError(f"{member.name} ends after image {last} of {count}")
            yield np.frombuffer(data, np.uint8).reshape(k, *member.shape[1:])


def _to_colour(block: np.ndarray) -> np.ndarray:
    if block.ndim == 3:
        block = block[..., None]
    return np.repeat(block, 3, axis=-1) if block.shape[-1] == 1 else block


def _resize(block: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if block.shape[1:3] == size:
        return block
    return np.stack([fit(image, size[0]) for image in block])


def _read_source(location: str, options: ReaderOptions) -> ImageTable:
    path = Path(location).expanduser()
    return read_npz(path, image_size=options.image_size, cache_dir=options.cache_dir)


READERS.register(
    "npz",
    Reader(
        form="FILE.npz",
        summary="MedMNIST-style arrays",
        read=_read_source,
        recognises=lambda path: path.suffix.lower() == ".npz",
        order=20,
    ),
)
