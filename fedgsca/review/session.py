"""One reviewer at one audit: the list, what was decided, and what the page may know. Nothing here knows HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedgsca.errors import DataError
from fedgsca.label_audit.audit_table import Audit, Suspect
from fedgsca.label_audit.consensus import pace, summarise
from fedgsca.label_audit.decisions import ACTIONS, Decision, Decisions

EXAMPLES = 5  # clean images of one class beside a suspect
RECENT = 30  # decisions that tell the speed
LONGEST_NOTE, LONGEST_ID = 2000, 100  # characters


class Pictures(Protocol):
    """What the page needs of fedgsca.label_audit.audit_images.Images: images by row of the site, never by path."""

    def png(self, row: int) -> bytes: ...
    def thumbnail(self, row: int, size: int) -> bytes: ...  # JPEG
    def hash(self, row: int) -> str: ...
    def similar(self, row: int, label: str, k: int) -> list[int]: ...


@dataclass(frozen=True)
class Filter:
    """Which part of the list is being worked through."""

    given: str | None = None
    suggested: str | None = None
    priority: bool = True


class Session:
    def __init__(
        self, audit: Audit, pictures: Pictures, reviewer: str, *, blind: bool = False
    ) -> None:
        self.audit, self.pictures, self.reviewer, self.blind = audit, pictures, reviewer, blind
        self.decisions = Decisions(audit.path)
        rows = audit.index["row"].astype(np.int64)
        self._rank = np.full(
            int(rows.max(initial=-1)) + 1, -1, np.int64
        )  # row -> position in the whole list
        self._rank[rows] = np.arange(len(rows))

    def about(self) -> dict[str, Any]:
        """What the page shows around the list."""
        header = self.audit.header
        return {
            "site": header.get("site", ""),
            "reviewer": self.reviewer,
            "classes": list(self.audit.classes),
            "blind": self.blind,
            "pairs": []
            if self.blind
            else self._pairs(),  # a filter by class pair would give the labels away
            "labels": len(self.audit),
            "priority": int(np.sum(self.audit.index["priority"] == 1)),
            "progress": self.progress(),
        }

    def _pairs(self) -> list[dict[str, Any]]:
        """Which class was taken for which, and how often; the most urgent first."""
        index, names = self.audit.index, self.audit.classes
        codes = index["given"].astype(np.int64) * len(names) + index["suggested"]
        total, urgent = (
            np.bincount(c, minlength=len(names) ** 2)
            for c in (codes, codes[index["priority"] == 1])
        )
        order = np.lexsort((-total, -urgent))
        return [
            {
                "given": names[c // len(names)],
                "suggested": names[c % len(names)],
                "labels": int(total[c]),
                "priority": int(urgent[c]),
            }
            for c in order.tolist()
            if total[c]
        ]

    def progress(self) -> dict[str, Any]:
        mine = self.decisions.of(self.reviewer)
        urgent = self.audit.index["priority"] == 1
        done = sum(bool(urgent[self._rank[row]]) for row in mine if self.has(row))
        speed = pace(self.decisions.latest(self.reviewer, RECENT))
        left = int(urgent.sum()) - done
        return {
            "decided": len(mine),
            "priority_decided": done,
            "priority": int(urgent.sum()),
            "per_minute": speed,
            "minutes_left": left / speed if speed else None,
        }

    def has(self, row: int) -> bool:
        return 0 <= row < len(self._rank) and self._rank[row] >= 0

    def items(self, chosen: Filter, start: int, count: int, *, open_only: bool) -> dict[str, Any]:
        """Up to `count` labels of the filtered list from position `start`, with their positions and what was decided."""
        ranks = self.audit.ranks(
            given=chosen.given, suggested=chosen.suggested, priority=chosen.priority
        )
        mine = self.decisions.of(self.reviewer)
        decided = np.isin(ranks, self._rank[[row for row in mine if self.has(row)]])
        places = np.flatnonzero(~decided) if open_only else np.arange(len(ranks))
        places = places[places >= start][:count]
        suspects = self.audit.at(ranks[places])
        return {
            "total": len(ranks),
            "decided": int(decided.sum()),
            "items": [
                self.item(suspect, int(place), mine.get(suspect.row))
                for place, suspect in zip(places, suspects, strict=True)
            ],
        }

    def item(self, suspect: Suspect, place: int, decision: Decision | None) -> dict[str, Any]:
        """One label for the page. A blind reviewer is told neither label before the decision."""
        shown: dict[str, Any] = {
            "position": place,
            "row": suspect.row,
            "id": suspect.id,
            "hash": suspect.hash,
            "rank": suspect.rank,
        }
        if not self.blind or decision is not None:
            shown |= {
                "given": suspect.given,
                "suggested": suspect.suggested,
                "probabilities": [
                    [suspect.suggested, suspect.probability],
                    *map(list, suspect.others),
                ],
                "suspicion": suspect.suspicion,
                "rounds": suspect.rounds,
                "votes": suspect.votes,
                "reason": suspect.reason,
                "opinions": {who: list(said) for who, said in suspect.opinions.items()},
            }
        shown["decision"] = decision and {
            "action": decision.action,
            "label": decision.final,
            "reason": decision.reason,
        }
        return shown

    def examples(self, row: int) -> list[dict[str, Any]]:
        """Clean images to compare with: similar ones of the given and the suggested class; blind: a few of every class."""
        suspect = self.audit.at([int(self._rank[row])])[0]
        names, each = (
            (self.audit.classes, EXAMPLES // 2)
            if self.blind
            else ((suspect.given, suspect.suggested), EXAMPLES)
        )
        return [{"label": name, "rows": self.pictures.similar(row, name, each)} for name in names]

    def decide(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Check and write one decision; raises DataError if it makes no sense, RunFolderError if it is not on the disk."""
        row, label, action = asked.get("row"), asked.get("label"), asked.get("action")
        if not isinstance(row, int) or not self.has(row):
            raise DataError(
                "todo.session-1", "there is no such image in this list", fix="reload the page"
            )
        suspect = self.audit.at([int(self._rank[row])])[0]
        if asked.get("hash") != suspect.hash or self.pictures.hash(row) != suspect.hash:
            raise DataError(
                "todo.session-2",
                "the image is not the one that the audit was made from",
                fix="run `fedgsca audit` again, then start the review anew",
            )
        done, new = _meaning(suspect, action, label, self.audit.classes)
        decision = Decision(
            self.reviewer, row, suspect.id, suspect.hash, suspect.given, done, new,
            reason=str(asked.get("reason") or "")[:LONGEST_NOTE], seconds=_seconds(asked.get("seconds")),
            request=str(asked.get("request") or "")[:LONGEST_ID], blind=self.blind,
        )  # fmt: skip
        saved = self.decisions.add(decision)
        return {"saved": True, "item": self.item(suspect, -1, saved), "progress": self.progress()}

    def undo(self, request: str) -> dict[str, Any]:
        line = self.decisions.undo(self.reviewer, request[:LONGEST_ID])
        return {"undone": None if line is None else {"row": line.row}, "progress": self.progress()}

    def place(self, row: int, chosen: Filter) -> int | None:
        """Where a row stands in the filtered list."""
        ranks = self.audit.ranks(
            given=chosen.given, suggested=chosen.suggested, priority=chosen.priority
        )
        found = np.flatnonzero(ranks == self._rank[row]) if self.has(row) else np.zeros(0, np.int64)
        return int(found[0]) if len(found) else None

    def summary(self) -> dict[str, Any]:
        """Counts, speed and agreement; which images others decided otherwise is not told while the review goes on."""
        self.decisions.refresh()
        whole = summarise(self.decisions)
        for pair in whole["agreement"]:
            pair["conflicts"] = len(pair["conflicts"])
        return {**whole, "progress": self.progress()}


def _meaning(
    suspect: Suspect, action: object, label: object, classes: tuple[str, ...]
) -> tuple[str, str | None]:
    """Action and new label. Choosing the given class means keep, choosing the suggested one means accept."""
    if action not in ACTIONS:
        raise DataError(
            "todo.session-3", f"unknown action {action!r}", fix=f"one of {', '.join(ACTIONS)}"
        )
    if action == "accept":
        return "accept", suspect.suggested
    if action != "change":
        return str(action), None
    if label not in classes:
        raise DataError(
            "todo.session-4", f"unknown class {label!r}", fix="choose a class from the list"
        )
    if label == suspect.given:
        return "keep", None
    return "accept" if label == suspect.suggested else "change", str(label)


def _seconds(value: object) -> float | None:
    sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e6
    return round(float(value), 2) if sound else None  # type: ignore[arg-type]
