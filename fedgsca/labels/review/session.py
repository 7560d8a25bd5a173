"""One reviewer at one audit: the list, the decisions, and what the page may show. No HTTP here.

Methods return typed values; `to_json` of each is what the page receives. An adjudicator is one
named person who settles the labels about which the readers disagree. That list opens when every
reader whose link works has finished: a reader must not be able to learn from the judge what the
other reader said. The judge sees the labels and notes of the readings, but not whose they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from fedgsca.labels.decisions import ACTIONS, Decision, resolve_action
from fedgsca.labels.review.trail import TrailObserver
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


@dataclass(frozen=True)
class ClassPair(Record):
    """A given and a suggested class, and how many labels have both."""

    given: str
    suggestion: str = field(metadata=stored_as("suggested"))
    labels: int
    priority: int


@dataclass(frozen=True)
class OpenReading(Record):
    """A reader who has not finished, while an adjudicator waits."""

    reader: str
    num_decisions: int = field(metadata=stored_as("decided"))
    num_required: int = field(metadata=stored_as("required"))


@dataclass(frozen=True)
class SessionHeader(Record):
    """What the page shows around the list."""

    site: str
    reviewer: str
    classes: tuple[str, ...]
    blind: bool
    pairs: tuple[ClassPair, ...]
    labels: int
    priority: int
    progress: ReviewProgress
    # reading, or settling the disagreements of the readers
    adjudication: bool = False
    # for an adjudicator: the readers who have not finished
    open_readings: tuple[OpenReading, ...] = ()
    # of the page's texts; empty: the browser's
    language: str = ""


@dataclass(frozen=True)
class ListItem:
    """One label as the page shows it."""

    # in the filtered list
    position: int
    # by which the page asks for the image
    number: int
    suspect: Suspect
    decision: Decision | None
    # a blind reviewer sees neither label before the end of the list
    shows_labels: bool
    # for an adjudicator: what the readers said, label (None: cannot tell) and note, without names
    readings: tuple[tuple[str | None, str], ...] = ()
    # address of the image in the hospital's own viewer
    link: str = ""
    # identical and near-identical images with another label: number on the page, id and label
    copies: tuple[dict[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The item for the page; without labels and evidence if these must not be shown.

        A path often names the class, so it counts as a label.
        """
        suspect = self.suspect
        tree: dict[str, Any] = {
            "position": self.position,
            "row": self.number,
            "id": "",
            "hash": suspect.hash,
        }
        if self.shows_labels:
            tree["id"] = suspect.id
            tree["rank"] = suspect.rank
            tree["given"] = suspect.given
            tree["suggested"] = suspect.suggestion
            tree["link"] = self.link
            probabilities = [(suspect.suggestion, suspect.probability), *suspect.runners_up]
            probabilities.sort(key=lambda pair: -pair[1])
            # probabilities are not calibrated: people get ranks and levels
            tree["levels"] = [(name, evidence_level(p)) for name, p in probabilities]
            tree["opinions"] = [
                (source, name, evidence_level(p)) for source, (name, p) in suspect.opinions.items()
            ]
            tree["copies"] = list(self.copies)
        if self.readings:
            tree["readings"] = [{"label": label, "reason": note} for label, note in self.readings]
        tree["decision"] = None
        if self.decision is not None:
            action = self.decision.action
            if not self.shows_labels and action != "unsure":
                action = "change"  # accept and keep would tell which label the choice agrees with
            tree["decision"] = {
                "action": action,
                "label": self.decision.final,
                "reason": self.decision.reason,
                "time": self.decision.time,
            }
        return tree


@dataclass(frozen=True)
class ListPage:
    """A part of the filtered list."""

    total: int
    num_decisions: int
    items: Sequence[ListItem]

    def to_json(self) -> dict[str, Any]:
        """The answer to /api/items."""
        items = [item.to_json() for item in self.items]
        return {"total": self.total, "decided": self.num_decisions, "items": items}


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
        observer: TrailObserver | None = None,
        language: str = "",
        viewer: str = "",
    ) -> None:
        """`viewer` is the address of a DICOM viewer, with {study}, {series} and {instance}.

        `blind`: labels and evidence are hidden until the reviewer's list is complete.

        Images then have random numbers and a random order: the rows of a data set are often sorted
        by class, and the ranking groups similar cases.
        """
        self.audit = audit
        self.images = images
        self.reviewer = reviewer
        self.blind = blind
        self.observer = observer
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

    def describe(self) -> SessionHeader:
        """What the page shows around the list."""
        return SessionHeader(
            site=self.audit.site,
            reviewer=self.reviewer,
            classes=self.audit.classes,
            blind=self.blind,
            # a filter by class pair would reveal the labels
            pairs=() if self.blind or self.is_adjudication else self._class_pairs(),
            labels=len(self.audit),
            priority=int(self._priority().sum()),
            progress=self.progress(),
            adjudication=self.is_adjudication,
            open_readings=self.open_readings(),
            language=self.language,
        )

    def open_readings(self) -> tuple[OpenReading, ...]:
        """The readers for whom an adjudicator has to wait; a reader waits for nobody."""
        return ()

    def _class_pairs(self) -> tuple[ClassPair, ...]:
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
                counts = (int(totals[code]), int(priorities[code]))
                pairs.append(ClassPair(names[given], names[suggestion], *counts))
        return tuple(pairs)

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
    ) -> ListPage:
        """Up to `count` labels of the filtered list from position `start`, with decisions.

        `open_only` skips the labels that this reviewer has decided about.
        """
        list_positions = self._filter(list_filter)
        decisions = self.decisions.by_reviewer(self.reviewer)
        rows = [row for row in decisions if self.has_row(row)]
        is_decided = np.isin(list_positions, self.positions[rows])
        page = np.arange(len(list_positions))
        if open_only:
            page = np.flatnonzero(~is_decided)
        page = page[page >= start][:count]
        items = []
        suspects = self.audit.at(list_positions[page])
        is_unblinded = not self.blind or self.is_complete()
        for position, suspect in zip(page.tolist(), suspects, strict=True):
            decision = decisions.get(suspect.row)
            items.append(self._item(suspect, position, decision, is_unblinded))
        return ListPage(len(list_positions), int(is_decided.sum()), items)

    def _filter(self, list_filter: ListFilter) -> np.ndarray:
        """Positions in the full list of the labels that pass the filter, in the shown order.

        A blind reviewer cannot filter by class: the answer would reveal the labels.
        """
        if self.blind:
            positions = self.audit.positions(priority=list_filter.priority)
            return positions[np.argsort(self._order[positions])]
        return self.audit.positions(
            given=list_filter.given,
            suggestion=list_filter.suggestion,
            priority=list_filter.priority,
        )

    def _item(
        self, suspect: Suspect, position: int, decision: Decision | None, is_unblinded: bool
    ) -> ListItem:
        shows_labels = not self.blind or (is_unblinded and decision is not None)
        number = int(self._numbers[suspect.row])
        if not shows_labels:
            return ListItem(position, number, suspect, decision, shows_labels)
        copies = []
        for row, name, label in suspect.copies:
            # a label that was checked before is not in this list, and its image not on this page
            number_of_copy = int(self._numbers[row]) if self.has_row(row) else None
            copies.append({"row": number_of_copy, "id": name, "given": label})
        link = self._viewer_link(suspect.row)
        return ListItem(
            position, number, suspect, decision, shows_labels, link=link, copies=tuple(copies)
        )

    def _viewer_link(self, row: int) -> str:
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
        shows_labels = not self.blind
        if self.blind:  # the order of the data often follows the classes
            rows.sort(key=lambda group_row: int(self._numbers[group_row]))
        suspects = self.audit.at(self.positions[rows].tolist()) if shows_labels else []
        images = []
        for i, group_row in enumerate(rows):
            suspect = suspects[i] if shows_labels else None
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
        if self.observer is not None:
            self.observer.note_image(row)

    def decide(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Check and write one decision, the JSON `body` of a request.

        Raises DataError if it makes no sense, RunFolderError if it cannot be saved.
        """
        number = body.get("row")
        row = None
        if isinstance(number, int) and not isinstance(number, bool):  # JSON's true is an int, too
            row = self.row_of(number)
        if row is None:
            raise DataError(
                "review.unknown-row",
                f"there is no image with row {number!r} in this list",
                fix="reload the page",
            )
        suspect = self._suspect(row)
        if body.get("hash") != suspect.hash or self.images.hash(row) != suspect.hash:
            raise DataError(
                "review.image-changed",
                f"the image {number if self.blind else suspect.id} is not the one that was audited",
                fix="run `fedgsca audit` again, then start the review again",
            )
        action, label = self._read_action(suspect, body.get("action"), body.get("label"))
        decision = Decision(
            reviewer=self.reviewer,
            row=row,
            id=suspect.id,
            hash=suspect.hash,
            given=suspect.given,
            action=action,
            label=label,
            reason=str(body.get("reason") or "")[:MAX_NOTE],
            seconds=_read_seconds(body.get("seconds")),
            request=str(body.get("request") or "")[:MAX_REQUEST_ID],
            blind=self.blind,
            adjudication=self.is_adjudication,
        )
        if self.observer is not None:  # first: what is not in the trail does not happen
            self.observer.note_decision(decision)
        line = self.decisions.add(decision, replaces=_read_text(body.get("seen")))
        item = self._item(suspect, -1, line, not self.blind or self.is_complete())
        return {"saved": True, "item": item.to_json(), "progress": self.progress().to_json()}

    def _read_action(
        self, suspect: Suspect, action: object, label: object
    ) -> tuple[str, str | None]:
        """Action and new label. Choosing the given class is keep, the suggested one accept."""
        if action not in ACTIONS:
            raise DataError(
                "review.unknown-action",
                f"there is no action named {action!r}",
                fix=f"use one of: {', '.join(ACTIONS)}",
            )
        if action == "accept":
            return "accept", suspect.suggestion
        if action != "change":
            return str(action), None
        if label not in self.audit.classes:
            raise DataError(
                "review.unknown-class",
                f"there is no class named {label!r}",
                fix="choose a class from the list",
            )
        return resolve_action(suspect, str(label))

    def undo(self, request: str) -> dict[str, Any]:
        """Undo this reviewer's newest decision; the answer names the row to go back to."""
        if self.observer is not None:
            self.observer.note_undo()
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
            tree["agreement"] = []
            tree["reviewers"] = self._own_summary(tree["reviewers"])
        return {**tree, "complete": is_complete, "progress": self.progress().to_json()}

    def _own_summary(self, reviewers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The part of the summary that a reviewer may see before the list is complete."""
        if self.reviewer not in reviewers:
            return {}
        summary = dict(reviewers[self.reviewer])
        if self.blind:
            summary["actions"] = {"unsure": summary["actions"]["unsure"]}
            summary["confusions"] = []
        return {self.reviewer: summary}


def _select_around(row: int, rows: Sequence[int], count: int) -> list[int]:
    """Up to `count` of the sorted rows, those around `row`."""
    if row not in rows:
        return []
    start = max(0, min(rows.index(row) - count // 2, len(rows) - count))
    return list(rows[start : start + count])


def _read_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


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
            readings.append((reading.final, reading.reason))
        # in the order of labels: the order of names would tell whose reading is the first one
        readings.sort(key=lambda reading: (reading[0] or "", reading[1]))
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
