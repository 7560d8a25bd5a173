"""One reviewer at one audit: the list, the decisions, and what the page may show. No HTTP here.

Methods return what the page receives, or values whose `to_json` is that. An adjudicator is one
named person who settles the labels about which the readers disagree. That list opens when every
reader whose link works has finished: a reader must not be able to learn from the judge what the
other reader said. The judge sees the labels and notes of the readings, but not whose they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np

from fedgsca.errors import DataError
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import Audit, Suspect
from fedgsca.labels.consensus import (
    count_decided,
    find_disagreements,
    images_per_minute,
    required_labels,
    summarise_decisions,
)
from fedgsca.labels.decisions import ACTIONS, Decision
from fedgsca.labels.score import evidence_level
from fedgsca.rng import stream
from fedgsca.support.json_record import Record, stored_as

NUM_EXAMPLES = 5  # clean images of one class beside a suspect
RECENT = 30  # decisions from which the speed is computed
MAX_PATIENT_IMAGES = 60  # of one patient beside each other
MAX_NOTE = 2000  # characters
MAX_REQUEST_ID = 100  # characters


@dataclass(frozen=True)
class ListFilter:
    """The part of the list that is being reviewed."""

    given: str | None = None
    suggestion: str | None = None
    priority: bool = True


@dataclass(frozen=True)
class ReviewProgress(Record):
    """How far the reviewer is."""

    num_decisions: int = field(metadata=stored_as("decided"))
    num_priority_decisions: int = field(metadata=stored_as("priority_decided"))
    num_priority: int = field(metadata=stored_as("priority"))
    per_minute: float | None
    minutes_left: float | None


def _ignore(event: str, **facts: object) -> None:
    """A local page has no audit trail."""


class Session:
    """One reviewer's work on one audit."""

    is_adjudication = False

    def __init__(
        self,
        audit: Audit,
        images: AuditImages,
        reviewer: str,
        *,
        blind: bool = False,
        note: Callable[..., None] = _ignore,
        language: str = "",
        viewer: str = "",
    ) -> None:
        """`viewer` is the address of a DICOM viewer, with {study}, {series} and {instance}.

        `note` writes an event and its facts to the audit trail. `blind`: labels and evidence are
        hidden until the reviewer's list is complete. Images then have random numbers and a random
        order: the rows of a data set are often sorted by class, and the ranking groups similar
        cases.
        """
        self.audit = audit
        self.images = images
        self.reviewer = reviewer
        self.blind = blind
        self._note = note
        self._noted_rows: set[int] = set()
        self.language = language
        self.viewer = viewer
        self.decisions = audit.open_decisions()
        rows = audit.index["row"].astype(np.int64)
        # (rows,) row -> position in the full list, -1 for a row that is not in it
        self.positions = np.full(int(rows.max(initial=-1)) + 1, -1, np.int64)
        self.positions[rows] = np.arange(len(rows))
        # row -> number on the page, and back; always the same, so that an open page stays valid
        self._numbers = np.arange(len(self.positions))
        self._order = np.arange(len(rows))  # position in the full list -> place in the shown order
        if blind:
            self._numbers = stream(0, "blind review", "numbers").permutation(self._numbers)
            self._order = stream(0, "blind review", reviewer).permutation(self._order)
        self._rows = np.argsort(self._numbers)

    def describe(self) -> dict[str, Any]:
        """What the page shows around the list."""
        return {
            "site": self.audit.site,
            "reviewer": self.reviewer,
            "classes": list(self.audit.classes),
            "blind": self.blind,
            # a filter by class pair would reveal the labels
            "pairs": [] if self.blind or self.is_adjudication else self._class_pairs(),
            "labels": len(self.audit),
            "priority": int(self._priority().sum()),
            "progress": self.progress().to_json(),
            "adjudication": self.is_adjudication,
            "open_readings": self.open_readings(),
            # of the page's texts; empty: the browser's
            "language": self.language,
        }

    def open_readings(self) -> list[dict[str, Any]]:
        """The readers for whom an adjudicator has to wait; a reader waits for nobody."""
        return []

    def _class_pairs(self) -> list[dict[str, Any]]:
        """Given and suggested classes that occur, the pair with the most labels to review first."""
        index = self.audit.index
        names = self.audit.classes
        codes = index["given"].astype(np.int64) * len(names) + index["suggested"]
        totals = np.bincount(codes, minlength=len(names) ** 2)
        priorities = np.bincount(codes[index["priority"] == 1], minlength=len(names) ** 2)
        pairs = []
        for code in np.lexsort((-totals, -priorities)).tolist():
            if totals[code]:
                given, suggestion = divmod(code, len(names))
                pair = {"given": names[given], "suggested": names[suggestion]}
                counts = {"labels": int(totals[code]), "priority": int(priorities[code])}
                pairs.append(pair | counts)
        return pairs

    def progress(self) -> ReviewProgress:
        """Counts and speed of this reviewer."""
        selection = self._priority()
        num_done = self._count_decisions(selection)
        speed = images_per_minute(self.decisions.latest(self.reviewer, RECENT))
        total = int(selection.sum())
        return ReviewProgress(
            num_decisions=len(self.decisions.by_reviewer(self.reviewer)),
            num_priority_decisions=num_done,
            num_priority=total,
            per_minute=speed,
            minutes_left=(total - num_done) / speed if speed else None,
        )

    def _count_decisions(self, selection: np.ndarray) -> int:
        """Labels of the selection, (labels,) bool, that this reviewer has decided about."""
        rows = self.decisions.by_reviewer(self.reviewer)
        return count_decided(self.audit, rows, selection)

    def _priority(self) -> np.ndarray:
        """(labels,) bool: the list that the progress is about."""
        is_priority: np.ndarray = self.audit.index["priority"] == 1
        return is_priority

    def _required(self) -> np.ndarray:
        """(labels,) bool: what this reviewer has to decide about."""
        return required_labels(self.audit)

    def is_complete(self) -> bool:
        """Whether this reviewer has decided about the priority list (all labels if it is empty).

        Until then the decisions of others are hidden, and from a blind reviewer the labels.
        """
        selection = self._required()
        return self._count_decisions(selection) == int(selection.sum())

    def has_row(self, row: int) -> bool:
        """Whether the site has a sample with this row number."""
        return 0 <= row < len(self.positions) and bool(self.positions[row] >= 0)

    def row_of(self, number: int) -> int | None:
        """The row of the image with this number on the page; None if there is none."""
        if not 0 <= number < len(self._rows):
            return None
        row = int(self._rows[number])
        return row if self.has_row(row) else None

    def list_items(
        self, list_filter: ListFilter, start: int, count: int, *, open_only: bool
    ) -> dict[str, Any]:
        """Up to `count` labels of the filtered list from position `start`, with decisions.

        `open_only` skips the labels that this reviewer has decided about.
        """
        list_positions = self._filter(list_filter)
        decisions = self.decisions.by_reviewer(self.reviewer)
        rows = [row for row in decisions if self.has_row(row)]
        is_decided = np.isin(list_positions, self.positions[rows])
        page = np.flatnonzero(~is_decided) if open_only else np.arange(len(list_positions))
        page = page[page >= start][:count]
        items = []
        is_unblinded = not self.blind or self.is_complete()
        suspects = self.audit.at(list_positions[page])
        for position, suspect in zip(page.tolist(), suspects, strict=True):
            item = self._item(suspect, decisions.get(suspect.row), is_unblinded)
            items.append({"position": position, **item})
        return {"total": len(list_positions), "decided": int(is_decided.sum()), "items": items}

    def _filter(self, list_filter: ListFilter) -> np.ndarray:
        """Positions in the full list of the labels that pass the filter, in the shown order.

        A blind reviewer cannot filter by class: the answer would reveal the labels.
        """
        if self.blind:
            positions = self.audit.positions(priority=list_filter.priority)
            return positions[np.argsort(self._order[positions])]
        return self.audit.positions(**vars(list_filter))

    def _item(
        self, suspect: Suspect, decision: Decision | None, is_unblinded: bool
    ) -> dict[str, Any]:
        """One label for the page; `row` is the number by which the page asks for the image.

        A blind reviewer sees neither labels nor evidence before the end of the list. A path often
        names the class, so it counts as a label.
        """
        shows_labels = not self.blind or (is_unblinded and decision is not None)
        tree: dict[str, Any] = {"row": int(self._numbers[suspect.row]), "hash": suspect.hash}
        tree |= self._evidence(suspect) if shows_labels else {"id": ""}
        tree["decision"] = None
        if decision is not None:
            action = decision.action
            if not shows_labels and action != "unsure":
                action = "change"  # accept and keep would tell which label the choice agrees with
            tree["decision"] = {
                "action": action,
                "label": decision.final,
                "reason": decision.reason,
                "time": decision.time,
            }
        return tree

    def _evidence(self, suspect: Suspect) -> dict[str, Any]:
        """Labels and evidence: levels, because probabilities are not calibrated."""
        probabilities = [(suspect.suggestion, suspect.probability), *suspect.runners_up]
        probabilities.sort(key=lambda pair: -pair[1])
        opinions = [
            (source, name, evidence_level(p)) for source, (name, p) in suspect.opinions.items()
        ]
        copies = []
        for row, name, label in suspect.copies:
            # a label that was checked before is not in this list, and its image not on this page
            number_of_copy = int(self._numbers[row]) if self.has_row(row) else None
            copies.append({"row": number_of_copy, "id": name, "given": label})
        return {
            "id": suspect.id,
            "rank": suspect.rank,
            "given": suspect.given,
            "suggested": suspect.suggestion,
            "link": self._viewer_link(suspect.row),
            "levels": [(name, evidence_level(p)) for name, p in probabilities],
            "opinions": opinions,
            # identical and near-identical images with another label
            "copies": copies,
        }

    def _viewer_link(self, row: int) -> str:
        """The address of an image in the hospital's viewer; empty without one, or without UIDs."""
        uids = self.images.dicom_uids(row) if self.viewer else {}
        link = self.viewer if uids else ""
        for name, uid in uids.items():
            link = link.replace(f"{{{name}}}", quote(uid, safe=""))
        return link

    def _suspect(self, row: int) -> Suspect:
        return self.audit.at([int(self.positions[row])])[0]

    def list_examples(self, row: int) -> list[dict[str, Any]]:
        """Clean images to compare with, the most similar first.

        Of the given and the suggested class; for a blind reviewer a few of every class.
        """
        suspect = self._suspect(row)
        names: tuple[str, ...] = (suspect.given, suspect.suggestion)
        count = NUM_EXAMPLES
        if self.blind:
            names = self.audit.classes
            count = NUM_EXAMPLES // 2
        groups = []
        for name in names:
            rows = self.images.similar(row, name, count)
            groups.append({"label": name, "rows": self._numbers[rows].tolist()})
        return groups

    def list_patient(self, row: int) -> dict[str, Any]:
        """All images of the same patient, slide or video, in the order of the data.

        Empty where groups are not known. A blind reviewer gets neither labels nor ranks.
        """
        group_rows = [
            group_row for group_row in self.images.group_rows(row) if self.has_row(group_row)
        ]
        rows = _select_around(row, group_rows, MAX_PATIENT_IMAGES)
        if self.blind:  # the order of the data often follows the classes
            rows.sort(key=lambda group_row: int(self._numbers[group_row]))
        images = []
        for group_row in rows:
            suspect = None if self.blind else self._suspect(group_row)
            image = {
                "row": int(self._numbers[group_row]),
                "suspect": suspect is not None and suspect.priority,
                "given": None if suspect is None else suspect.given,
            }
            images.append(image)
        return {"images": images, "total": len(group_rows), "word": self.images.group_word}

    def png(self, row: int) -> bytes:
        """The large image of a row."""
        self._note_image(row)
        return self.images.png(row)

    def thumbnail(self, row: int, size: int) -> bytes:
        """The small image of a row, as JPEG."""
        self._note_image(row)
        return self.images.thumbnail(row, size)

    def _note_image(self, row: int) -> None:
        """An image is sent: noted once per reviewer and start of the server."""
        if row not in self._noted_rows:
            self._note("image", row=row, is_flushed=False)
            self._noted_rows.add(row)

    def decide(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Check and write one decision, the JSON `body` of a request.

        Raises DataError if it makes no sense, RunFolderError if it cannot be saved.
        """
        suspect = self._suspect(self._read_row(body.get("row")))
        if body.get("hash") != suspect.hash or self.images.hash(suspect.row) != suspect.hash:
            name = body.get("row") if self.blind else suspect.id
            raise DataError(
                "review.image-changed",
                f"the image {name} is not the one that was audited",
                fix="run `fedgsca audit` again, then start the review again",
            )
        replaced_time = body.get("seen")
        decision = Decision.about(
            suspect,
            self._read_label(suspect, body),
            reviewer=self.reviewer,
            reason=str(body.get("reason") or "")[:MAX_NOTE],
            seconds=_read_seconds(body.get("seconds")),
            request=str(body.get("request") or "")[:MAX_REQUEST_ID],
            blind=self.blind,
            adjudication=self.is_adjudication,
        )
        event = "adjudication" if self.is_adjudication else "decision"
        # first: what is not in the trail does not happen
        self._note(event, row=decision.row, request=decision.request)
        line = self.decisions.add(
            decision, replaces=replaced_time if isinstance(replaced_time, str) else None
        )
        item = self._item(suspect, line, not self.blind or self.is_complete())
        return {"saved": True, "item": item, "progress": self.progress().to_json()}

    def _read_row(self, number: object) -> int:
        """The row of the image with this number on the page."""
        row = None
        if isinstance(number, int) and not isinstance(number, bool):  # JSON's true is an int, too
            row = self.row_of(number)
        if row is None:
            raise DataError(
                "review.unknown-row",
                f"there is no image with row {number!r} in this list",
                fix="reload the page",
            )
        return row

    def _read_label(self, suspect: Suspect, body: Mapping[str, Any]) -> str | None:
        """The label that an action of the page stands for; None: cannot tell."""
        action, label = body.get("action"), body.get("label")
        if action not in ACTIONS:
            raise DataError(
                "review.unknown-action",
                f"there is no action named {action!r}",
                fix=f"use one of: {', '.join(ACTIONS)}",
            )
        if action != "change":
            return {"accept": suspect.suggestion, "keep": suspect.given}.get(action)
        if label not in self.audit.classes:
            raise DataError(
                "review.unknown-class",
                f"there is no class named {label!r}",
                fix="choose a class from the list",
            )
        return str(label)

    def undo(self, request: str) -> dict[str, Any]:
        """Undo this reviewer's newest decision; the answer names the row to go back to."""
        self._note("undo")
        line = self.decisions.undo(self.reviewer, request[:MAX_REQUEST_ID])
        undone_row = None if line is None else {"row": int(self._numbers[line.row])}
        return {"undone": undone_row, "progress": self.progress().to_json()}

    def find_position(self, row: int, list_filter: ListFilter) -> int | None:
        """The position of a row in the filtered list; None if it is not in it."""
        if not self.has_row(row):
            return None
        positions = np.flatnonzero(self._filter(list_filter) == self.positions[row])
        return int(positions[0]) if len(positions) else None

    def summarise(self) -> dict[str, Any]:
        """Counts, speed and agreement of all reviewers; before the end of the list, only one's own.

        A blind reviewer then gets no counts by action either: they tell how often the choice was
        the given or the suggested label. Which images others decided differently is always hidden.
        """
        self.decisions.refresh()
        tree = summarise_decisions(self.decisions).to_json()
        is_complete = self.is_complete()
        if is_complete:
            for pair in tree["agreement"]:
                pair["conflicts"] = len(pair["conflicts"])
        else:
            summary = tree["reviewers"].get(self.reviewer)
            tree |= {"agreement": [], "reviewers": {self.reviewer: summary} if summary else {}}
            if self.blind and summary:
                summary["actions"] = {"unsure": summary["actions"]["unsure"]}
                summary["confusions"] = []
        return {**tree, "complete": is_complete, "progress": self.progress().to_json()}


def _select_around(row: int, rows: Sequence[int], count: int) -> list[int]:
    """Up to `count` of the sorted rows, those around `row`."""
    if row not in rows:
        return []
    start = max(0, min(rows.index(row) - count // 2, len(rows) - count))
    return list(rows[start : start + count])


def _read_seconds(value: object) -> float | None:
    """A plausible number of seconds, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return round(float(value), 2) if 0 <= value < 1e6 else None


class AdjudicationSession(Session):
    """The work of the person who settles disagreements."""

    is_adjudication = True

    def __init__(
        self,
        audit: Audit,
        images: AuditImages,
        reviewer: str,
        *,
        find_readers: Callable[[], Sequence[str]],
        **options: Any,
    ) -> None:
        """`find_readers` returns the names of the people who have to finish before."""
        super().__init__(audit, images, reviewer, **options)
        self._find_readers = find_readers

    def open_readings(self) -> list[dict[str, Any]]:
        """The readers who have not finished, with their progress."""
        self.decisions.refresh()
        selection = required_labels(self.audit)
        total = int(selection.sum())
        open_readings = []
        for reader in self._find_readers():
            num_done = count_decided(self.audit, self.decisions.readings(reader), selection)
            if num_done < total:
                open_readings.append({"reader": reader, "decided": num_done, "required": total})
        return open_readings

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
        self, suspect: Suspect, decision: Decision | None, is_unblinded: bool
    ) -> dict[str, Any]:
        """The label with what the readers said: labels (None: cannot tell) and notes, no names."""
        item = super()._item(suspect, decision, is_unblinded)
        readings = self._disagreements().get(suspect.row, ())
        # in the order of labels: the order of names would tell whose reading is the first one
        pairs = sorted((reading.final or "", reading.reason) for reading in readings)
        if pairs:
            item["readings"] = [{"label": label or None, "reason": note} for label, note in pairs]
        return item

    def _read_row(self, number: object) -> int:
        """The row of an image about which the readers disagree."""
        row = super()._read_row(number)
        if row not in self._disagreements():
            raise DataError(
                "review.not-disputed",
                f"the readers do not disagree about the image {number}, or have not finished",
                fix="reload the page",
            )
        return row
