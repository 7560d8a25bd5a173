"""Exact copies of one image: across splits they leak, under two labels one of them is wrong."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedgsca.data.table import ImageTable
from fedgsca.support.text import plural

_MAX_NEAR = 20_000  # images that are compared pair by pair
_MAX_BITS = 10  # of 256
_MAX_MEAN = 4.0  # grey values
_MIN_TEXTURE = 4.0  # standard deviation of grey values
IDENTICAL, SIMILAR = "identical", "near-duplicate"  # kinds of findings
_BLOCK = 512  # images that are compared with all others at a time


def find_duplicates(table: ImageTable, rows: np.ndarray | None = None) -> list[np.ndarray]:
    """Row numbers of every set of two or more identical images, or features without images.

    Among the `rows` (n,), or all.
    """
    rows = np.arange(len(table)) if rows is None else rows
    rows_by_digest: dict[bytes, list[int]] = {}
    for row, digest in zip(rows.tolist(), content_digests(table, rows), strict=True):
        rows_by_digest.setdefault(digest.tobytes(), []).append(row)
    return [np.array(copies) for copies in rows_by_digest.values() if len(copies) > 1]


def content_digests(table: ImageTable, rows: np.ndarray | None = None) -> np.ndarray:
    """(n, 16) uint8: what identifies the pixels of images, or features without images.

    Of the `rows` (n,), or of all.
    """
    contents = table.images
    if not table.has_images and table.features is not None:
        contents = table.features
    rows = np.arange(len(table)) if rows is None else rows
    digests = bytearray()
    for row in rows.tolist():
        pixels = np.ascontiguousarray(contents[row]).data
        digests += hashlib.blake2b(pixels, digest_size=16).digest()
    return np.frombuffer(bytes(digests), np.uint8).reshape(len(rows), 16)


def find_near_duplicates(table: ImageTable) -> list[np.ndarray]:
    """Row numbers of images that look the same and are not identical: saved again, resized.

    Two images belong together if at most 10 of 256 comparisons of neighbouring grey values differ
    (a difference hash) and small copies of them differ by less than 4 of 255 on average. Large data
    sets (more than 20,000 images) are not searched.
    """
    leader = np.arange(len(table))
    for row, similar in _similar_rows(table, np.arange(len(table))):
        leader[similar] = leader[row]
    identical = {frozenset(rows.tolist()) for rows in find_duplicates(table)}
    sets = []
    for first in np.unique(leader):
        rows = np.flatnonzero(leader == first)
        if len(rows) > 1 and frozenset(rows.tolist()) not in identical:
            sets.append(rows)
    return sets


def find_contradictions(
    table: ImageTable, rows: np.ndarray, labels: np.ndarray
) -> list[tuple[int, int]]:
    """Pairs of identical or near-identical images with different labels, as positions in `rows`.

    `rows` (n,) of the table have the `labels` (n,). The smaller position is the first
    of a pair. At least one label of every pair is wrong.
    """
    positions = {row: position for position, row in enumerate(rows.tolist())}
    pairs: set[tuple[int, int]] = set()
    for copies in find_duplicates(table, rows):
        pairs.update(itertools.combinations(sorted(positions[row] for row in copies.tolist()), 2))
    for row, similar in _similar_rows(table, rows):
        for copy in similar.tolist():
            one, two = sorted((positions[row], positions[copy]))
            pairs.add((one, two))
    return sorted(pair for pair in pairs if labels[pair[0]] != labels[pair[1]])


def _similar_rows(table: ImageTable, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each of `rows` (n,), in their order, with the later ones that look the same, if any."""
    n = len(rows)
    if not 2 <= n <= _MAX_NEAR or not table.has_images:
        return
    small = np.stack([_small_copy(table.images[row]) for row in rows])  # (n, 16, 17)
    flat = small.reshape(n, -1).astype(np.float32)
    # 1 or -1: the product of two images is the number of equal bits less that of the others
    signs = np.where(small[:, :, 1:] > small[:, :, :-1], 1, -1).reshape(n, -1).astype(np.float32)
    signs[flat.std(axis=1) <= _MIN_TEXTURE] = 0.0  # empty frames all look the same
    least_product = signs.shape[1] - 2 * _MAX_BITS
    for start in range(0, n, _BLOCK):
        products = signs[start : start + _BLOCK] @ signs[start:].T
        for i in range(len(products)):
            first = start + i
            later = first + 1 + np.flatnonzero(products[i, i + 1 :] >= least_product)
            later = later[np.abs(flat[later] - flat[first]).mean(axis=1) < _MAX_MEAN]
            if len(later):
                yield int(rows[first]), rows[later]


def _small_copy(image: np.ndarray) -> np.ndarray:
    """(16, 17) uint8 grey."""
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(image)).convert("L")
    return np.asarray(picture.resize((17, 16), Image.Resampling.BOX))


@dataclass(frozen=True)
class ImageCopy:
    """An image of a finding."""

    file: str
    split: str
    label: str
    row: int


@dataclass(frozen=True)
class CopyFinding:
    """Images that are copies of each other, or that leak into the test set by their group."""

    kind: str
    images: tuple[ImageCopy, ...]


def find_copies(table: ImageTable) -> list[CopyFinding]:
    """Identical images, near-duplicates, and the images of groups in more than one split."""
    findings = [_finding(IDENTICAL, table, rows) for rows in find_duplicates(table)]
    findings += [_finding(SIMILAR, table, rows) for rows in find_near_duplicates(table)]
    if table.groups is not None:
        for group in np.unique(table.groups).tolist():
            rows = np.flatnonzero(table.groups == group)
            if len(np.unique(table.split[rows])) > 1:
                findings.append(_finding("group in several splits", table, rows))
    return findings


def _finding(kind: str, table: ImageTable, rows: np.ndarray) -> CopyFinding:
    images = []
    for row in rows.tolist():
        name = table.classes[table.labels[row]]
        images.append(ImageCopy(str(table.ids[row]), str(table.split[row]), name, row))
    return CopyFinding(kind, tuple(images))


def _differ(name: str, images: Sequence[ImageCopy]) -> bool:
    return len({getattr(image, name) for image in images}) > 1


def copy_warnings(findings: Sequence[CopyFinding]) -> list[str]:
    """Warnings about identical and near-identical images, as counts."""
    identical = [finding.images for finding in findings if finding.kind == IDENTICAL]
    across_splits = [images for images in identical if _differ("split", images)]
    across_labels = [images for images in identical if _differ("label", images)]
    warnings = []
    if across_splits:
        splits = [image.split for image in itertools.chain.from_iterable(across_splits)]
        warnings.append(
            f"duplicate images across splits: {plural(len(across_splits), 'image')}, "
            f"{plural(splits.count('test'), 'copy', 'copies')} in the test set"
        )
    if across_labels:
        copies = sum(map(len, across_labels))
        warnings.append(
            f"duplicate images with different labels: {plural(len(across_labels), 'image')}, "
            f"{plural(copies, 'copy', 'copies')} in total"
        )
    within_split = len(identical) - len(across_splits)
    if within_split:
        warnings.append(f"duplicate images within one split: {plural(within_split, 'image')}")
    num_similar = sum(finding.kind == SIMILAR for finding in findings)
    if num_similar:
        text = plural(num_similar, "set")
        warnings.append(f"images that look the same but are not identical: {text}")
    return warnings
