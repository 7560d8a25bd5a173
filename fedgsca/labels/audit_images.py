"""The images of a site's samples, by row and never by path."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fedgsca.errors import DataError
from fedgsca.labels.audit_table import Audit, read_audit, reading_audit_file
from fedgsca.labels.second_opinion import order_by_similarity
from fedgsca.labels.site_data import SiteData, open_audited_sites, select_site

MAX_PIXELS = 2048  # longer side of an image sent to a browser
JPEG_QUALITY = 85


def content_hash(image: np.ndarray) -> str:
    """sha256 of the shape and bytes of a uint8 array: an image (H, W, 3), or a feature vector.

    It identifies the sample, so that a decision about one image is never applied to another.
    """
    digest = hashlib.sha256(repr(tuple(image.shape)).encode())
    digest.update(np.ascontiguousarray(image, dtype=np.uint8).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class AuditImages:
    """The images behind one audit."""

    site_data: SiteData
    audit: Audit

    @staticmethod
    def open(path: Path | Audit) -> AuditImages:
        """Open the data of an audit, or of the only audit in a folder; it must be unchanged."""
        audit = path if isinstance(path, Audit) else read_audit(path)
        sites = open_audited_sites(audit)
        return AuditImages(select_site(audit.path, sites, audit.site), audit)

    def __len__(self) -> int:
        return len(self.site_data)

    def array(self, row: int) -> np.ndarray:
        """(H, W, 3) uint8: the input of the network."""
        self._check_row(row)
        return self.site_data.image(row)

    def hash(self, row: int) -> str:
        """The content hash of the sample."""
        self._check_row(row)
        return content_hash(self.site_data.content(row))

    def _check_row(self, row: int) -> None:
        if not 0 <= row < len(self.site_data):
            raise DataError(
                "audit.unknown-row",
                f"the site {self.site_data.site} has no row {row}",
                fix=f"use a row from 0 to {len(self.site_data) - 1}",
            )

    def png(self, row: int, size: int | None = None) -> bytes:
        """The original image if its file can be read, otherwise the network's input, as PNG.

        `size` limits the longer side. Small images are not enlarged: a page does that better. No
        metadata of the file is included.
        """
        return encode_image(self.original(row), size or MAX_PIXELS)

    def thumbnail(self, row: int, size: int = 96) -> bytes:
        """A small JPEG of the network's input."""
        return encode_image(self.array(row), size, "JPEG")

    def original(self, row: int) -> np.ndarray:
        """(H, W, 3) uint8: the original image if its file can be read, else the network's input."""
        from fedgsca.data.image_files import UnreadableImageError, decode_full_size

        network_input = self.array(row)
        path = self._file(row)
        if path is None:
            return network_input
        try:
            return decode_full_size(path, self.site_data.table.white or 65535)
        except UnreadableImageError:
            return network_input

    def dicom_uids(self, row: int) -> dict[str, str]:
        """Study, series and instance of a DICOM file, by which a viewer opens it; else empty."""
        from fedgsca.data.dicom import NoImageError, read_uids

        path = self._file(row)
        try:
            return {} if path is None else read_uids(path)
        except NoImageError:
            return {}

    def _file(self, row: int) -> Path | None:
        """The original file; None without one, or for a link that leads out of the data."""
        root = self.site_data.originals
        if root is None:
            return None
        path = (root / str(self.site_data.table.ids[self.site_data.rows[row]])).resolve()
        return path if path.is_relative_to(root.resolve()) and path.is_file() else None

    def similar(self, row: int, label: str, k: int = 3) -> list[int]:
        """Up to k rows of clean examples of a class, the most similar first (cosine).

        Without features, the most certain examples first.
        """
        examples = self.audit.clean.get(label, ())
        rows = [example for example in examples if example != row]
        features = self._features
        if not rows or row not in features or not features.keys() >= set(rows):
            return rows[:k]
        unit = np.stack([features[example_row] for example_row in rows])
        order = order_by_similarity(unit, features[row])
        return [rows[i] for i in order[:k]]

    @property
    def group_word(self) -> str:
        """What a group is: patient, slide, video; "group" if the source does not say."""
        return self.site_data.table.group_word

    def group_rows(self, row: int) -> list[int]:
        """The site's rows of the same group (patient, slide, video), ascending; [] without groups.

        The row itself is among them.
        """
        groups = self.site_data.table.groups
        if groups is None or not 0 <= row < len(self.site_data):
            return []
        site_groups = groups[self.site_data.rows]
        return [int(group_row) for group_row in np.flatnonzero(site_groups == site_groups[row])]

    @cached_property
    def _features(self) -> Mapping[int, np.ndarray]:
        """Row -> unit vector, of the priority list and the clean examples; {} without a model."""
        from safetensors.numpy import load

        path = self.audit.path / "features.safetensors"
        if not path.exists():
            return {}
        with reading_audit_file(path):
            arrays = load(path.read_bytes())
            features = arrays["features"].astype(np.float32)
            return dict(zip(arrays["rows"].tolist(), features, strict=True))


def encode_image(pixels: np.ndarray, size: int, file_format: str = "PNG") -> bytes:
    """`pixels`, (H, W, 3) uint8, as an image file whose longer side is at most `size`."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    if max(image.size) > size:
        image.thumbnail((size, size), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, file_format, quality=JPEG_QUALITY)  # PNG has no quality and ignores it
    return out.getvalue()
