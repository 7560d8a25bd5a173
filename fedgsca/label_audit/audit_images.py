"""Pictures of a site's samples, by row and never by path."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fedgsca.errors import DataError
from fedgsca.label_audit.audit_table import Audit, damaged, read_audit
from fedgsca.label_audit.site_data import SiteData, check_data, held_test, open_sites, pick

LARGEST = 2048  # pixels of the longer side that a browser is sent at most


def content_hash(image: np.ndarray) -> str:
    """Names the pixels, so that a decision about one image is never applied to another: sha256 of shape and bytes."""
    result = hashlib.sha256(repr(tuple(image.shape)).encode())
    result.update(np.ascontiguousarray(image, dtype=np.uint8).data)
    return result.hexdigest()


@dataclass(frozen=True)
class Images:
    """The images behind one audit."""

    held: SiteData
    audit: Audit

    @staticmethod
    def open(path: Path | Audit) -> Images:
        """`path`: an audit's folder, or a run with the audit of one site. The data must be what was audited."""
        audit = path if isinstance(path, Audit) else read_audit(path)
        header, data = audit.header, audit.header["data"]
        every = open_sites(
            audit.path / header["run"], source=data["source"], labels=data.get("labels")
        )
        held = (
            held_test(next(iter(every.values())))
            if header["split"] == "test"
            else pick(audit.path, every, header["site"])
        )
        check_data(held, data["fingerprint"])
        return Images(held, audit)

    def __len__(self) -> int:
        return len(self.held)

    def array(self, row: int) -> np.ndarray:
        """(H, W, 3) uint8: what the network sees."""
        if not 0 <= row < len(self.held):
            raise DataError(
                "todo.audit-images-1",
                f"the site has no row {row}",
                fix=f"rows run from 0 to {len(self.held) - 1}",
            )
        return self.held.image(row)

    def hash(self, row: int) -> str:
        return content_hash(self.array(row))

    def png(self, row: int, size: int | None = None) -> bytes:
        """The original file where there is one and it can be read, otherwise what the network sees; no metadata survives.

        `size` bounds the longer side. Small images are not enlarged: a page does that better.
        """
        return encode(self.original(row), size or LARGEST)

    def thumbnail(self, row: int, size: int = 96) -> bytes:
        """A small JPEG of what the network sees."""
        return encode(self.array(row), size, "JPEG")

    def original(self, row: int) -> np.ndarray:
        from fedgsca.data.decode.image_files import Unreadable, decode_whole

        seen, root, table = self.array(row), self.held.root, self.held.table
        if root is None:
            return seen
        path = (root / str(table.ids[self.held.rows[row]])).resolve()
        if not path.is_relative_to(root.resolve()):  # a link that leads out of the data
            return seen
        try:
            return decode_whole(path, table.white or 65535)
        except Unreadable:
            return seen

    def neighbours(self, row: int, k: int = 3) -> dict[str, list[int]]:
        """{"given": rows, "suggested": rows}: the most similar of the certainly right examples of both classes."""
        suspect = self.audit.by_row(row)
        if suspect is None:
            return {"given": [], "suggested": []}
        return {
            "given": self.similar(row, suspect.given, k),
            "suggested": self.similar(row, suspect.suggested, k),
        }

    def similar(self, row: int, label: str, k: int = 3) -> list[int]:
        """At most k certainly right examples of a class, the most similar first (cosine); without features, the most certain."""
        rows = [
            int(entry["row"])
            for entry in self.audit.clean.get(label, [])
            if int(entry["row"]) != row
        ]
        known = self._features
        if row not in known or not all(other in known for other in rows):
            return rows[:k]
        closeness = np.array([known[other] @ known[row] for other in rows])
        return [rows[i] for i in np.argsort(-closeness, kind="stable")[:k]]

    @cached_property
    def _features(self) -> dict[int, np.ndarray]:
        """Unit vectors of the suspects within the quota and of the clean examples; none if the audit kept none."""
        from safetensors.numpy import load

        path = self.audit.path / "features.safetensors"
        if not path.exists():
            return {}
        with damaged(path):
            kept = load(path.read_bytes())
            return dict(
                zip(kept["rows"].tolist(), kept["features"].astype(np.float32), strict=True)
            )


def encode(pixels: np.ndarray, size: int, kind: str = "PNG") -> bytes:
    """An image file with the longer side at most `size`."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    if max(image.size) > size:
        image.thumbnail((size, size), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, kind, **({"quality": 85} if kind == "JPEG" else {}))
    return out.getvalue()
