"""Labels that a person has checked. Which ones they are never leaves the site.

What a site sends anyway is computed with them: its share of wrong labels (`delta`), likelihoods.

A checked label is taken for the truth. What it was before the check, its original label, says how
often the site's labels are wrong: people check the labels that look wrong, so the ones that nobody
has checked look better than the labels of the site were (docs/evidence.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

# in place of the original label of a sample, if nobody has checked it or nobody knows
NO_ORIGINAL = -1


@dataclass(frozen=True)
class CheckedLabels:
    """Which of n labels a person has checked, at least one; and what these were before."""

    # (n,) bool
    mask: np.ndarray
    # (n,) int64 class indices, or NO_ORIGINAL
    original: np.ndarray

    def __len__(self) -> int:
        return len(self.mask)

    @property
    def count(self) -> int:
        """The number of checked labels."""
        return int(self.mask.sum())

    def part(self, rows: np.ndarray) -> CheckedLabels | None:
        """Those of some rows (m,), in their order; None if none of them is checked."""
        return mark_checked(self.mask[rows], self.original[rows])

    def renumber(self, index: np.ndarray) -> CheckedLabels:
        """The same with other class numbers: class c becomes index[c]."""
        has_original = self.original != NO_ORIGINAL
        return replace(self, original=np.where(has_original, index[self.original], NO_ORIGINAL))

    def first_labels(self, labels: np.ndarray) -> np.ndarray:
        """(n,) the labels (n,) as they were before anybody checked them, or NO_ORIGINAL."""
        return np.where(self.mask, self.original, labels)

    def to_bytes(self) -> bytes:
        """Identifies the content, for checksums."""
        return b"checked" + np.packbits(self.mask).tobytes() + self.original.astype("<i8").tobytes()


def mark_checked(mask: np.ndarray, original: np.ndarray | None = None) -> CheckedLabels | None:
    """Checked labels from a mask (n,) and original labels (n,); None if no label is checked."""
    marks = np.asarray(mask, dtype=bool)
    if not marks.any():
        return None
    if original is None:
        original = np.full(len(marks), NO_ORIGINAL)
    return CheckedLabels(marks, np.where(marks, original, NO_ORIGINAL).astype(np.int64))
