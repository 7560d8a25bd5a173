"""What every rendering of a table shows, worked out once: best and second best, gap, rank, significance, agreement of order.

At paper scale the gap to the paper's number is the point. At mini scale data, network and rounds are others, so a gap would mean
nothing: there the ranks of the rows, and Spearman's rho between the paper's order and ours, stand in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from statistics import StatisticsError, correlation
from typing import Literal

from fedgsca.paper.table_result import Row, Score, TableResult
from fedgsca.report.comparison_tables import first_and_second

Mark = Literal["", "best", "second"]
MISSING = "–"
LEVELS = ((0.01, "**"), (0.05, "*"))  # of the paired test, uncorrected
ENOUGH = 3  # rows; an order of two is a coin


@dataclass(frozen=True)
class Metric:
    label: str
    short: str
    digits: int | None = 2  # after the point; None: three that count, whatever the size
    more_is_better: bool = True

    def decimals(self, value: float) -> int:
        if self.digits is not None or not value:
            return self.digits or 2
        return min(max(2 - floor(log10(abs(value))), 0), 8)


METRICS = {
    "f1": Metric("Macro F1", "F1"),
    "recall": Metric("Macro recall", "Recall"),
    "precision": Metric("Macro precision", "Precision"),
    "peak_f1": Metric("Best round's F1", "Peak F1"),
    "seconds_per_round": Metric("Seconds per round", "s per round", None, more_is_better=False),
    "minutes_to_peak": Metric(
        "Minutes to FedAvg's peak", "min to peak", None, more_is_better=False
    ),
    "stability": Metric("Stability metric, all rounds", "All rounds", None, more_is_better=False),
    "stability_late": Metric(
        "Stability metric, last fifth", "Last fifth", None, more_is_better=False
    ),
}


@dataclass(frozen=True)
class Entry:
    """One row under one column in one metric."""

    row: Row
    paper: Score | None
    ours: Score | None
    paper_mark: Mark
    our_mark: Mark
    paper_rank: int | None  # among the rows that have both numbers
    our_rank: int | None
    p_value: float | None
    planned: int  # seeds

    @property
    def gap(self) -> float | None:
        return None if self.paper is None or self.ours is None else self.ours.mean - self.paper.mean

    @property
    def stars(self) -> str:
        return next(
            (mark for level, mark in LEVELS if self.p_value is not None and self.p_value < level),
            "",
        )

    @property
    def partial(self) -> str:
        """ "2/5" while seeds are missing."""
        done = len(self.ours.values) if self.ours else self.planned
        return f"{done}/{self.planned}" if done < self.planned else ""


@dataclass(frozen=True)
class Group:
    """All rows under one column in one metric."""

    column: str
    metric: str
    about: Metric
    entries: Sequence[Entry]
    rho: float | None  # Spearman's, between the paper's order and ours

    @property
    def has_paper(self) -> bool:
        return any(entry.paper for entry in self.entries)


@dataclass(frozen=True)
class Panel:
    """Groups that stand side by side: a column with its metrics; or, with a single metric, several columns."""

    title: str
    groups: Sequence[Group]
    names: Sequence[str]  # what tells the groups apart

    @property
    def rows(self) -> list[Row]:
        return [entry.row for entry in self.groups[0].entries]


def metric_of(key: str) -> Metric:
    words = key.replace("_", " ").capitalize()
    return METRICS.get(key) or Metric(words, words, None)


def panels(result: TableResult) -> list[Panel]:
    """As they stand below each other; a row without any number in a panel is left out if it has some in another."""
    if len(result.metrics) == 1 and len(result.columns) > 1:
        groups = _without_strangers(
            result, [group(result, column, result.metrics[0]) for column in result.columns]
        )
        return [Panel(groups[0].about.label, groups, result.columns)]
    made = []
    for column in result.columns:
        groups = _without_strangers(
            result, [group(result, column, metric) for metric in result.metrics]
        )
        made.append(Panel(column, groups, [here.about.short for here in groups]))
    return made


def split(panel: Panel, most: int) -> list[Panel]:
    """Parts of at most so many groups; four of them are two and two, not three and one."""
    size = ceil(len(panel.groups) / ceil(len(panel.groups) / most))
    starts = range(0, len(panel.groups), size)
    return [
        Panel(panel.title, panel.groups[i : i + size], panel.names[i : i + size]) for i in starts
    ]


def _without_strangers(result: TableResult, groups: Sequence[Group]) -> list[Group]:
    """Variants that belong to other columns of the experiment (UCL to the noise levels only) are not unfinished here."""
    known = {
        entry.row.key for here in groups for entry in here.entries if entry.paper or entry.ours
    }
    strangers = {
        row.key
        for row in result.rows
        if row.key not in known and (any(row.paper.values()) or any(row.ours.values()))
    }
    return [
        replace(here, entries=[e for e in here.entries if e.row.key not in strangers])
        for here in groups
    ]


def group(result: TableResult, column: str, metric: str) -> Group:
    paper = [row.paper.get(column, {}).get(metric) for row in result.rows]
    ours = [row.ours.get(column, {}).get(metric) for row in result.rows]
    about = metric_of(metric)
    both = [
        (p, o) if p is not None and o is not None else None
        for p, o in zip(paper, ours, strict=True)
    ]
    if sum(pair is not None for pair in both) < 2:  # one alone has no place
        both = [None] * len(both)
    ranks = [_ranks([pair[side] if pair else None for pair in both], about) for side in (0, 1)]
    marks = [_marks(scores, about) for scores in (paper, ours)]
    entries = [
        Entry(
            row, paper[i], ours[i], marks[0][i], marks[1][i], ranks[0][i], ranks[1][i],
            row.p_value.get(column, {}).get(metric), len(result.seeds),
        )
        for i, row in enumerate(result.rows)
    ]  # fmt: skip
    known = [pair for pair in both if pair is not None]
    return Group(
        column,
        metric,
        about,
        entries,
        spearman([p.mean for p, _ in known], [o.mean for _, o in known]),
    )


def groups(result: TableResult) -> list[Group]:
    """Every column, by the first metric."""
    return [group(result, column, result.metrics[0]) for column in result.columns]


def _shown(score: Score, about: Metric) -> float:
    """The number as printed, turned so that more is better: equal on the page is equal."""
    return round(score.mean, about.decimals(score.mean)) * (1 if about.more_is_better else -1)


def _marks(scores: Sequence[Score | None], about: Metric) -> list[Mark]:
    first, second = first_and_second(
        {i: _shown(score, about) for i, score in enumerate(scores) if score is not None}
    )
    return ["best" if i in first else "second" if i in second else "" for i in range(len(scores))]


def _ranks(scores: Sequence[Score | None], about: Metric) -> list[int | None]:
    """1 is best; equal numbers share the better rank."""
    values = [None if score is None else _shown(score, about) for score in scores]
    return [
        None if v is None else 1 + sum(other is not None and other > v for other in values)
        for v in values
    ]


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Correlation of the ranks, ties at their mean rank; None for fewer than three pairs or where all are equal."""
    if len(a) < ENOUGH:
        return None
    try:
        return correlation(_mean_ranks(a), _mean_ranks(b))
    except StatisticsError:
        return None


def _mean_ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < v for other in values) + (1 + sum(other == v for other in values)) / 2
        for v in values
    ]


def winners(entries: Sequence[Entry], of: Literal["paper", "ours"]) -> list[str]:
    return [
        each.row.label
        for each in entries
        if (each.paper_mark if of == "paper" else each.our_mark) == "best"
    ]
