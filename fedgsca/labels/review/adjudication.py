"""Adjudication: one named person settles the labels about which the readers disagree.

The list opens when every reader whose link works has finished: a reader must not be able to learn
from the judge what the other reader said. The judge sees the labels and notes of the readings, but
not whose they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedgsca.errors import DataError
from fedgsca.labels.audit_table import Audit, Suspect
from fedgsca.labels.consensus import count_decided, find_disagreements, required_labels
from fedgsca.labels.decisions import Decision
from fedgsca.labels.review.session import (
    ImageSource,
    ListFilter,
    ListItem,
    OpenReading,
    Reading,
    ReviewObserver,
    Session,
)


class AdjudicationSession(Session):
    """The work of the person who settles disagreements."""

    is_adjudication = True

    def __init__(
        self,
        audit: Audit,
        images: ImageSource,
        reviewer: str,
        *,
        find_readers: Callable[[], Sequence[str]],
        observer: ReviewObserver | None = None,
    ) -> None:
        """`find_readers` returns the names of the people who have to finish before."""
        super().__init__(audit, images, reviewer, observer=observer)
        self._find_readers = find_readers

    def open_readings(self) -> tuple[OpenReading, ...]:
        """The readers who have not finished, with their progress."""
        self.decisions.refresh()
        selection = required_labels(self.audit)
        total = int(selection.sum())
        open_readings = []
        for reader in self._find_readers():
            num_done = count_decided(self.audit, self.decisions.readings(reader), selection)
            if num_done < total:
                open_readings.append(OpenReading(reader, num_done, total))
        return tuple(open_readings)

    def _disagreements(self) -> dict[int, tuple[Decision, ...]]:
        """Row -> readings, of the list as it is now; empty while somebody still reads."""
        if self.open_readings():
            return {}
        disagreements = find_disagreements(self.decisions)
        return {row: readings for row, readings in disagreements.items() if self.has_row(row)}

    def _required(self) -> np.ndarray:
        selection = np.zeros(len(self.audit.index), bool)
        rows = np.array(list(self._disagreements()), dtype=np.int64)
        selection[self.positions[rows]] = True
        return selection

    def _priority(self) -> np.ndarray:
        return self._required()

    def _filter(self, list_filter: ListFilter) -> np.ndarray:
        """All disagreements, the most suspicious label first; there is no other list."""
        return np.flatnonzero(self._required())

    def is_complete(self) -> bool:
        """Whether the readers have finished: from then on the judge sees all their numbers."""
        return not self.open_readings()

    def _item(
        self, suspect: Suspect, position: int, decision: Decision | None, is_unblinded: bool
    ) -> ListItem:
        item = super()._item(suspect, position, decision, is_unblinded)
        readings = []
        for reading in self._disagreements().get(suspect.row, ()):
            readings.append(Reading(reading.final, reading.reason))
        # in the order of labels: the order of names would tell whose reading is the first one
        readings.sort(key=lambda reading: (reading.label or "", reading.reason))
        return replace(item, readings=tuple(readings))

    def decide(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Check and write one decision; the label must be one that the readers disagree about."""
        number = body.get("row")
        row = self.row_of(number) if isinstance(number, int) else None
        if row is not None and row not in self._disagreements():
            raise DataError(
                "review.not-disputed",
                f"the readers do not disagree about the image {number}, or have not finished",
                fix="reload the page",
            )
        return super().decide(body)
