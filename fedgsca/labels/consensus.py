"""The result of the reviewers' decisions: counts, speed, agreement, and the final labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.errors import ConfigError
from fedgsca.labels.decisions import ACTIONS, Decision, Decisions
from fedgsca.support.json_record import Record, stored_as
from fedgsca.support.text import did_you_mean

if TYPE_CHECKING:
    from fedgsca.labels.audit_table import Audit

PAUSE = 120.0  # seconds: longer than this on one image is a pause, not work


@dataclass(frozen=True)
class LabelCorrection(Record):
    """How often a reviewer changed one label into another."""

    given: str
    label: str
    count: int


@dataclass(frozen=True)
class ReviewerSummary(Record):
    """The decisions of one reviewer."""

    num_decisions: int = field(metadata=stored_as("decided"))
    # action -> number of decisions
    actions: Mapping[str, int]
    confusions: tuple[LabelCorrection, ...]
    median_seconds: float | None
    per_minute: float | None
    # decisions taken without seeing a label
    blind: int


@dataclass(frozen=True)
class ReviewConflict(Record):
    """An image that two reviewers labelled differently; None: cannot tell."""

    row: int
    id: str
    given: str
    labels: tuple[str | None, ...]


@dataclass(frozen=True)
class ReviewerAgreement(Record):
    """How far two reviewers agree."""

    reviewers: tuple[str, ...]
    # images that both decided about
    num_common: int = field(metadata=stored_as("both"))
    # of these, images that both gave a label
    num_labelled: int = field(metadata=stored_as("n"))
    # of these, images with the same label
    num_equal: int = field(metadata=stored_as("agree"))
    kappa: float | None
    # with linear weights; None where classes have no order
    weighted_kappa: float | None
    conflicts: tuple[ReviewConflict, ...]


@dataclass(frozen=True)
class ReviewSummary(Record):
    """What was decided, per reviewer and per pair of reviewers."""

    reviewers: Mapping[str, ReviewerSummary]
    agreement: tuple[ReviewerAgreement, ...]
    damaged_lines: int


@dataclass(frozen=True)
class Consensus:
    """The reviewed labels by outcome: row -> decisions."""

    # all decisions that count agree on a label
    agreements: Mapping[int, tuple[Decision, ...]]
    # different labels, or one of several reviewers cannot tell
    disputes: Mapping[int, tuple[Decision, ...]]
    # no reviewer could tell
    unsure: Mapping[int, tuple[Decision, ...]]

    def by_row(self) -> dict[int, tuple[Decision, ...]]:
        """All reviewed rows with their decisions."""
        return {**self.agreements, **self.disputes, **self.unsure}


def images_per_minute(decisions: Sequence[Decision]) -> float | None:
    """A reviewer's speed; a coffee break counts as two minutes. None without timed decisions."""
    times = []
    for decision in decisions:
        if decision.seconds is not None and decision.seconds > 0:
            times.append(min(decision.seconds, PAUSE))
    return 60.0 * len(times) / sum(times) if times else None


def cohens_kappa(
    first: Sequence[str], second: Sequence[str], order: Sequence[str] = ()
) -> float | None:
    """Agreement beyond chance: 1 - d_o / d_e, the disagreement over that expected by chance.

    With the `order` of the classes, a disagreement weighs as much as they are steps apart (linear
    weighted kappa). None where chance explains everything: no pairs, or one label only.
    """
    places = {label: place for place, label in enumerate(order)}

    def distance(one: str, two: str) -> int:
        return abs(places[one] - places[two]) if order else int(one != two)

    distance_sum = sum(distance(one, two) for one, two in zip(first, second, strict=True))
    chance_sum = 0
    for one, count in Counter(first).items():
        for two, other_count in Counter(second).items():
            chance_sum += count * other_count * distance(one, two)
    return None if chance_sum == 0 else 1 - distance_sum * len(first) / chance_sum


def measure_agreement(
    reviewers: tuple[str, str],
    first: Mapping[int, Decision],
    second: Mapping[int, Decision],
    order: Sequence[str] = (),
) -> ReviewerAgreement:
    """How far two reviewers agree, from their decisions by row; `order` as for `cohens_kappa`."""
    pairs = [(first[row], second[row]) for row in first if row in second]
    labels = [(a.final, b.final) for a, b in pairs if a.final is not None and b.final is not None]
    first_labels = [one for one, _ in labels]
    second_labels = [two for _, two in labels]
    conflicts = []
    for a, b in pairs:
        if a.final != b.final:
            conflicts.append(ReviewConflict(a.row, a.id, a.given, (a.final, b.final)))
    return ReviewerAgreement(
        reviewers=reviewers,
        num_common=len(pairs),
        num_labelled=len(labels),
        num_equal=sum(one == two for one, two in labels),
        kappa=cohens_kappa(first_labels, second_labels),
        weighted_kappa=cohens_kappa(first_labels, second_labels, order) if order else None,
        conflicts=tuple(conflicts),
    )


def summarise_decisions(decisions: Decisions) -> ReviewSummary:
    """Counts and speed per reviewer, agreement per pair of reviewers."""
    summaries = {}
    readings = {}
    for name in decisions.reviewers():
        summaries[name] = _summarise_reviewer(list(decisions.by_reviewer(name).values()))
        own_readings = decisions.readings(name)
        if own_readings:  # who only settles disagreements is not a reader
            readings[name] = own_readings
    agreement = []
    order = decisions.order
    for one, two in combinations(readings, 2):
        agreement.append(measure_agreement((one, two), readings[one], readings[two], order))
    return ReviewSummary(summaries, tuple(agreement), decisions.damaged_lines)


def _summarise_reviewer(decisions: Sequence[Decision]) -> ReviewerSummary:
    action_counts = Counter(decision.action for decision in decisions)
    corrections = Counter((d.given, d.label) for d in decisions if d.label is not None)
    times = [decision.seconds for decision in decisions if decision.seconds is not None]
    confusions = []
    for (given, label), count in corrections.most_common():
        confusions.append(LabelCorrection(given, str(label), count))
    return ReviewerSummary(
        num_decisions=len(decisions),
        actions={action: action_counts[action] for action in ACTIONS},
        confusions=tuple(confusions),
        median_seconds=median(times) if times else None,
        per_minute=images_per_minute(decisions),
        blind=sum(decision.blind for decision in decisions),
    )


def find_disagreements(decisions: Decisions) -> dict[int, tuple[Decision, ...]]:
    """Row -> the readings of labels about which the readers disagree, settled or not.

    A reader who cannot tell disagrees with one who can.
    """
    disagreements = {}
    for row, row_decisions in _group_by_row(decisions, decisions.reviewers()):
        readings = [decision for decision in row_decisions if not decision.adjudication]
        if len({decision.final for decision in readings}) > 1:
            disagreements[row] = tuple(readings)
    return disagreements


def _group_by_row(decisions: Decisions, names: Sequence[str]) -> list[tuple[int, list[Decision]]]:
    """Rows, ascending, with the decisions of these people that count."""
    by_row: dict[int, list[Decision]] = {}
    for name in names:
        for row, decision in decisions.by_reviewer(name).items():
            by_row.setdefault(row, []).append(decision)
    return sorted(by_row.items(), key=lambda item: item[0])


def find_consensus(
    decisions: Decisions, *, prefer: str | None = None, without: Sequence[str] = ()
) -> Consensus:
    """Sort the reviewed labels by outcome; decisions of the people `without` do not count.

    Where the readers disagree, the label of an adjudication counts, then that of the reviewer
    `prefer`. An adjudication of a label that the readers now agree on does not count.
    """
    names = [name for name in decisions.reviewers() if name not in without]
    if prefer is not None and prefer not in names:
        raise unknown_reviewer(prefer, "--prefer", names, decisions.path.parent)
    agreements = {}
    disputes = {}
    unsure = {}
    for row, row_decisions in _group_by_row(decisions, names):
        readings = [decision for decision in row_decisions if not decision.adjudication]
        labels = {decision.final for decision in readings}
        judges = [d for d in row_decisions if d.adjudication and d.final is not None]
        if not judges:
            judges = [d for d in readings if d.reviewer == prefer and d.final is not None]
        if not readings:  # the readers have undone what was adjudicated
            continue
        if labels == {None}:
            unsure[row] = tuple(readings)
        elif len(labels) == 1:
            agreements[row] = tuple(readings)
        elif len({decision.final for decision in judges}) == 1:
            agreements[row] = tuple(judges)
        else:
            disputes[row] = tuple(row_decisions)
    return Consensus(agreements, disputes, unsure)


def unknown_reviewer(name: str, option: str, names: Sequence[str], place: Path) -> ConfigError:
    """The error for the name of a person who has no decisions that count."""
    return ConfigError(
        "audit.unknown-reviewer",
        f"{name!r} has no decisions in {place}",
        fix=f"{did_you_mean(name, names)}use {option} with one of:"
        f" {', '.join(names) or '(no reviewer has decided yet)'}",
    )


# ---- how far a reviewer is ----


def required_labels(audit: Audit) -> np.ndarray:
    """(labels,) bool in the order of ranks: the priority list, or all labels if it is empty."""
    selection: np.ndarray = audit.index["priority"] == 1
    return selection if selection.any() else np.ones_like(selection)


def count_decided(audit: Audit, rows: Iterable[int], selection: np.ndarray) -> int:
    """How many labels of the selection, (labels,) bool, are among the rows."""
    selected_rows = audit.index["row"][selection].astype(np.int64)
    return int(np.isin(selected_rows, np.array(list(rows), dtype=np.int64)).sum())
