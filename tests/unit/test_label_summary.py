"""Contradicting copies and classes that are no count: hand-made values, and what people read."""

from __future__ import annotations

import numpy as np
import pytest

from fedgsca.data.duplicates import find_contradictions
from fedgsca.data.table import ImageTable
from fedgsca.federation.records import (
    CANNOT_TELL,
    COUNT_HOLDS,
    SITES_DIFFER,
    ClassAudit,
    CopySummary,
    LabelSummary,
    WrongEstimate,
)
from fedgsca.labels.build_audit import judge_class
from fedgsca.labels.gallery import describe_findings
from fedgsca.labels.score import (
    ErrorEstimate,
    LabelRanking,
    count_certain_errors,
    evidence_level,
    list_copies_first,
)
from fedgsca.support.checked_labels import mark_checked


def make_ranking(given: np.ndarray, checked: list[int] | None = None) -> LabelRanking:
    """Row 0 looks best, the last row worst; three classes."""
    n = len(given)
    probs = np.full((n, 3), 0.1)
    probs[np.arange(n), given] = 0.8
    order = np.arange(n)[::-1]
    marks = None
    if checked is not None:
        marks = mark_checked(np.isin(np.arange(n), checked))
        order = order[~np.isin(order, checked)]
    empty = np.zeros(n, bool)
    return LabelRanking(order, np.linspace(0, 1, n), (given + 1) % 3, empty, probs, marks)


def test_copies_are_first_and_beside_each_other() -> None:
    given = np.array([0, 1, 2, 0, 1, 2])
    ranking = list_copies_first(make_ranking(given), given, [(0, 4), (1, 2)])
    assert ranking.order.tolist() == [4, 0, 2, 1, 5, 3]
    assert ranking.suggestion[[0, 4, 1, 2]].tolist() == [1, 0, 2, 1]
    assert np.flatnonzero(ranking.priority).tolist() == [0, 1, 2, 4]


def test_a_checked_copy_is_settled_and_the_other_one_stays() -> None:
    given = np.array([0, 1, 2, 0])
    ranking = list_copies_first(make_ranking(given, checked=[1]), given, [(0, 1)])
    assert ranking.order.tolist() == [0, 3, 2] and dict(ranking.copies) == {0: [1]}
    both = list_copies_first(make_ranking(given, checked=[0, 1]), given, [(0, 1)])
    assert both.order.tolist() == [3, 2] and not both.copies


@pytest.mark.parametrize(
    ("pairs", "checked", "expected"),
    [
        ([], [], 0),
        ([(0, 1), (2, 3)], [], 2),
        ([(0, 1), (0, 2)], [], 1),  # row 0 may be the only wrong one
        ([(0, 1), (0, 2)], [0], 2),  # row 0 is right
        ([(0, 1), (0, 2)], [1], 1),
        ([(0, 1)], [0, 1], 0),  # a person has confirmed both
    ],
)
def test_the_least_number_of_wrong_copies(
    pairs: list[tuple[int, int]], checked: list[int], expected: int
) -> None:
    marks = mark_checked(np.isin(np.arange(4), checked))
    assert count_certain_errors(pairs, marks) == expected


def make_table(images: np.ndarray) -> ImageTable:
    n = len(images)
    names = np.arange(n).astype(str)
    return ImageTable("x", images, np.zeros(n, int), ("a", "b"), np.full(n, "train"), names, "")


def test_contradictions_are_found_among_the_rows_of_a_site() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (12, 40, 40, 3), dtype=np.uint8)
    images[7] = images[2]  # identical
    images[9] = images[4] // 2 * 2  # nearly
    images[11] = images[5]
    labels = np.zeros(12, int)
    labels[[7, 9]] = 1
    table = make_table(images)
    everything = np.arange(12)
    assert find_contradictions(table, everything, labels) == [(2, 7), (4, 9)]
    rows = np.array([9, 4, 7])
    assert find_contradictions(table, rows, labels[rows]) == [(0, 1)]


def test_empty_frames_are_no_near_duplicates() -> None:
    images = np.zeros((4, 40, 40, 3), np.uint8)
    images[1] = 2  # black and nearly black
    images[2:] = np.random.default_rng(0).integers(0, 255, (2, 40, 40, 3), dtype=np.uint8)
    assert find_contradictions(make_table(images), np.arange(4), np.array([0, 1, 0, 1])) == []


@pytest.mark.parametrize(
    ("count", "can_tell", "labels", "verdict"),
    [
        (5, True, 44, COUNT_HOLDS),
        (5, False, 44, CANNOT_TELL),
        (44, True, 44, SITES_DIFFER),
        (40, False, 44, CANNOT_TELL),
        (3, True, 3, COUNT_HOLDS),  # too few for a sign
    ],
)
def test_a_class_that_looks_wrong_as_a_whole_is_no_count(
    count: int, can_tell: bool, labels: int, verdict: str
) -> None:
    assert judge_class(ErrorEstimate(count, count, count, can_tell), labels) == verdict


def test_what_is_no_count_is_said_in_sentences() -> None:
    wrong = WrongEstimate(9, 5, 14)
    classes = (
        ClassAudit("mild", 100, wrong, 9),
        ClassAudit("moderate", 80, WrongEstimate(20, 0, 70, True), 4, CANNOT_TELL),
        ClassAudit("severe", 44, WrongEstimate(44, 40, 44), 10, SITES_DIFFER),
    )
    summary = LabelSummary(224, wrong, 23, classes, (), copies=CopySummary(35, 66, 33))
    copies, differ, unknown = describe_findings(summary)
    assert "35 pairs" in copies and "at least 33 of these 66 labels are wrong" in copies
    assert "all 44 labels of severe" in differ and "not counted as wrong labels" in differ
    assert "moderate" in unknown and "mild" not in unknown
    tree = summary.to_json()
    assert LabelSummary.from_json(tree) == summary


@pytest.mark.parametrize(("p", "level"), [(0.95, "strong"), (0.7, "moderate"), (0.2, "weak")])
def test_people_are_shown_levels(p: float, level: str) -> None:
    assert evidence_level(p) == level


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (WrongEstimate(64, 45, 1081), "64"),
        (WrongEstimate(1064, 45, 1081, is_unsure=True), "at least 45"),
        (WrongEstimate(64, 0, 181, is_unsure=True), "cannot tell"),
    ],
)
def test_a_number_is_given_only_where_there_is_one(estimate: WrongEstimate, text: str) -> None:
    assert estimate.text == text
