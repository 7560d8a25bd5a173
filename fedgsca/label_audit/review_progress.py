"""How far a reviewer is with the labels of an audit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fedgsca.label_audit.audit_table import Audit


def required_labels(audit: Audit) -> np.ndarray:
    """(labels,) bool in the order of ranks: the priority list, or all labels if it is empty."""
    selection: np.ndarray = audit.index["priority"] == 1
    return selection if selection.any() else np.ones_like(selection)


def count_decided(audit: Audit, rows: Iterable[int], selection: np.ndarray) -> int:
    """How many labels of the selection, (labels,) bool, are among the rows."""
    selected_rows = audit.index["row"][selection].astype(np.int64)
    return int(np.isin(selected_rows, np.array(list(rows), dtype=np.int64)).sum())
