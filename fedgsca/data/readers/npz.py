"""MedMNIST-style .npz files: {train,val,test}_images and {train,val,test}_labels.

Members are streamed out of the zip archive block by block, so that the 12 GB files of the 224-pixel edition pass through a
small memory into the cache.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedgsca.data.cache import cached_rows
from fedgsca.data.file_facts import measure_files, sha256_file
from fedgsca.data.table import SPLITS, Table, check, fingerprint
from fedgsca.errors import DataError

VERSION = "npz-1"  # part of the cache key: raise it whenever the pixels that come out change
_BLOCK = 256  # images in memory at a time

_ORGANS = "bladder, femur-left, femur-right, heart, kidney-left, kidney-right, liver, lung-left, lung-right, pancreas, spleen"
# class names by the beginning of the file's name; `,` separates, `/` stands inside a name
_KNOWN = {
    "pathmnist": "adipose, background, debris, lymphocytes, mucus, smooth muscle, normal colon mucosa,"
    " cancer-associated stroma, colorectal adenocarcinoma epithelium",
    "dermamnist": "actinic keratoses and intraepithelial carcinoma, basal cell carcinoma, benign keratosis-like lesions,"
    " dermatofibroma, melanoma, melanocytic nevi, vascular lesions",
    "octmnist": "choroidal neovascularization, diabetic macular edema, drusen, normal",
    "pneumoniamnist": "normal, pneumonia",
    "breastmnist": "malignant, normal or benign",
    "bloodmnist": "basophil, eosinophil, erythroblast, immature granulocytes, lymphocyte, monocyte, neutrophil, platelet",
    "tissuemnist": "collecting duct / connecting tubule, distal convoluted tubule, glomerular endothelial cells,"
    " interstitial endothelial cells, leukocytes, podocytes, proximal tubule segments, thick ascending limb",
    "retinamnist": "grade 0, grade 1, grade 2, grade 3, grade 4",
    "organamnist": _ORGANS,
    "organcmnist": _ORGANS,
    "organsmnist": _ORGANS,
}


@dataclass(frozen=True)
class Member:
    """Header of one array inside the archive."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool


def read_npz(path: Path, *, image_size: int | None = None, cache_dir: Path | None = None) -> Table:
    """A table of all splits in the file; ids are "train/17"."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(path, archive, image_size, cache_dir)
    except FileNotFoundError as error:
        raise DataError(
            "todo.npz-1", f"{path}: no such file", fix="check the path given with --data"
        ) from error
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
    ) as error:
        raise DataError(
            "todo.npz-2",
            f"{path}: not a readable .npz archive ({error})",
            fix="copy or download the file again; it may be incomplete",
        ) from error


def class_names(path: Path, count: int) -> tuple[str, ...]:
    """The published names for the MedMNIST files we know (also as pathmnist_224.npz), otherwise "class 0" and so on."""
    for prefix, names in _KNOWN.items():
        if path.name.lower().startswith(prefix):
            return tuple(name.strip() for name in names.split(","))
    return tuple(f"class {i}" for i in range(count))


def _read(
    path: Path, archive: zipfile.ZipFile, image_size: int | None, cache_dir: Path | None
) -> Table:
    members = _members(path, archive)
    splits = [s for s in SPLITS if f"{s}_images" in members]
    labels = [
        _labels(path, archive, members[f"{s}_labels"], members[f"{s}_images"]) for s in splits
    ]
    images = [members[f"{s}_images"] for s in splits]
    height, width = _image_shape(path, images)
    size = (image_size, image_size) if image_size else (height, width)

    def rows(extra: dict[str, Any]) -> Iterator[np.ndarray]:
        for member in images:
            for block in _blocks(archive, member):
                yield _resize(_colour(block), size)

    (content,) = measure_files(path.parent, [path.name], sha256_file, "sha256", cache_dir)
    counts = [m.shape[0] for m in images]
    entry = cached_rows(
        f"{VERSION} {content} {size} {','.join(splits)}",
        (*size, 3),
        np.uint8,
        rows,
        sum(counts),
        cache_dir,
    )
    given = np.concatenate(labels)
    classes = class_names(path, int(given.max()) + 1 if len(given) else 0)
    split = np.repeat(np.array(splits), counts)
    return check(
        Table(
            name=path.stem,
            images=entry.array,
            labels=given,
            classes=classes,
            split=split,
            ids=np.array(
                [f"{s}/{i}" for s, count in zip(splits, counts, strict=True) for i in range(count)]
            ),
            fingerprint=fingerprint(entry.array, given, classes, split, digest=entry.digest),
            notes=(*entry.notes, *_notes(images, (height, width), size)),
        )
    )


def _notes(images: list[Member], stored: tuple[int, int], size: tuple[int, int]) -> list[str]:
    notes = []
    if len(images[0].shape) == 3 or images[0].shape[-1] == 1:
        notes.append("grey images, repeated to three channels")
    if stored != size:
        notes.append(f"images resized from {stored[1]}x{stored[0]} to {size[1]}x{size[0]} pixels")
    return notes


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, Member]:
    stored = {name.removesuffix(".npy") for name in archive.namelist()}
    wanted = [f"{s}_{part}" for s in SPLITS for part in ("images", "labels")]
    optional = set() if {"val_images", "val_labels"} & stored else {"val_images", "val_labels"}
    missing = [key for key in wanted if key not in stored and key not in optional]
    if missing:
        found = ", ".join(sorted(stored)[:12]) or "nothing"
        raise DataError(
            "todo.npz-3",
            f"{path}: missing {', '.join(missing)}; the file holds {found}",
            fix="use MedMNIST's names: train_images, train_labels, test_images, test_labels (val_* optional)",
        )
    return {key: _header(path, archive, key) for key in wanted if key in stored}


def _header(path: Path, archive: zipfile.ZipFile, key: str) -> Member:
    with archive.open(f"{key}.npy") as stream:
        try:
            return Member(key, *_read_header(stream))
        except ValueError as error:
            raise DataError(
                "todo.npz-4",
                f"{path}: {key} is damaged ({error})",
                fix="copy or download the file again",
            ) from error


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    version = np.lib.format.read_magic(stream)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read(stream)
    return shape, dtype, fortran


def _image_shape(path: Path, members: list[Member]) -> tuple[int, int]:
    """(height, width) shared by all splits, or an error that says what stands in the file instead."""
    for member in members:
        shape = member.shape
        if member.dtype != np.uint8:
            raise DataError(
                "todo.npz-5",
                f"{path}: {member.name} is {member.dtype}, not uint8",
                fix="scale the images to 0..255 and store them as uint8",
            )
        grey = len(shape) == 3 or (len(shape) == 4 and shape[-1] == 1)
        if not grey and not (len(shape) == 4 and shape[-1] == 3):
            hint = (
                "move the channels to the last axis"
                if len(shape) == 4 and shape[1] in (1, 3)
                else "volumes are not supported"
            )
            raise DataError(
                "todo.npz-6",
                f"{path}: {member.name} has shape {shape}",
                fix=f"images must be (n, height, width) or (n, height, width, 3); {hint}",
            )
        if shape[1:3] != members[0].shape[1:3]:
            raise DataError(
                "todo.npz-7",
                f"{path}: {member.name} has {shape[1:3]} pixels, {members[0].name} {members[0].shape[1:3]}",
                fix="store all splits at one size",
            )
    return members[0].shape[1], members[0].shape[2]


def _labels(path: Path, archive: zipfile.ZipFile, member: Member, images: Member) -> np.ndarray:
    shape = member.shape
    if len(shape) == 2 and shape[1] > 1:
        raise DataError(
            "todo.npz-8",
            f"{path}: {member.name} has {shape[1]} labels per image (multi-label); each image must have exactly one",
            fix="choose one label per image and store it as (n,) or (n, 1), or use a single-label data set",
        )
    if len(shape) not in (1, 2) or shape[0] != images.shape[0]:
        raise DataError(
            "todo.npz-9",
            f"{path}: {member.name} has shape {shape} for {images.shape[0]} images",
            fix="store labels as (n,) or (n, 1)",
        )
    if member.dtype.kind not in "iuf":
        raise DataError(
            "todo.npz-10",
            f"{path}: {member.name} holds {member.dtype}, not class numbers",
            fix="store labels as 0, 1, 2, ...",
        )
    with archive.open(f"{member.name}.npy") as stream:
        values = np.lib.format.read_array(stream, allow_pickle=False).reshape(-1)
    labels = np.where(np.isfinite(values), values, -1).astype(np.int64)
    wrong = int(np.sum((labels != values) | (labels < 0)))
    if wrong:
        raise DataError(
            "todo.npz-11",
            f"{path}: {wrong} of {len(labels)} entries of {member.name} are not class numbers",
            fix="labels must be 0, 1, 2, ...",
        )
    return labels


def _blocks(archive: zipfile.ZipFile, member: Member) -> Iterator[np.ndarray]:
    with archive.open(f"{member.name}.npy") as stream:
        if member.fortran:  # column-major bytes cannot be cut into images: read it whole
            yield np.ascontiguousarray(np.lib.format.read_array(stream, allow_pickle=False))
            return
        _read_header(stream)
        count, one = member.shape[0], int(np.prod(member.shape[1:]))
        for start in range(0, count, _BLOCK):
            k = min(_BLOCK, count - start)
            data = stream.read(k * one)
            if len(data) != k * one:
                raise EOFError(
                    f"{member.name} ends after image {start + len(data) // one} of {count}"
                )
            yield np.frombuffer(data, np.uint8).reshape(k, *member.shape[1:])


def _colour(block: np.ndarray) -> np.ndarray:
    if block.ndim == 3:
        block = block[..., None]
    return np.repeat(block, 3, axis=-1) if block.shape[-1] == 1 else block


def _resize(block: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if block.shape[1:3] == size:
        return block
    from fedgsca.data.decode.image_files import fit

    return np.stack([fit(image, size[0]) for image in block])
