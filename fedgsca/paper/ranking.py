"""What every rendering of a table shows, computed once: marks, gaps, ranks, significance, order.

At paper scale the gap to the paper's number is what matters. At mini scale the data, the network
and the number of rounds differ, so a gap would mean nothing; the ranks of the rows, and Spearman's
rho between the paper's order and ours, take its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from statistics import StatisticsError, correlation
from typing import Literal

from fedgsca.paper.paired_test import MIN_SEEDS, Interval, difference_interval, holm
from fedgsca.paper.table_result import Score, TableResult, TableRow
from fedgsca.report.comparison_tables import first_and_second

Mark = Literal["", "best", "second"]
Side = Literal["paper", "ours"]
MISSING = "–"
# levels of the paired test, corrected for the number of rows (Holm)
LEVELS = ((0.01, "**"), (0.05, "*"))
# rows that an order needs: the order of two is a coin toss
MIN_ROWS = 3


@dataclass(frozen=True)
class Metric:
    """How a metric is named and printed."""

    label: str
    short: str
    # digits after the point; None: three significant digits
    digits: int | None = 2
    more_is_better: bool = True

    def decimals(self, value: float) -> int:
        """Digits after the point for this value."""
        if self.digits is not None or not value:
            return self.digits or 2
        return min(max(2 - floor(log10(abs(value))), 0), 8)


def _cost(label: str, short: str) -> Metric:
    return Metric(label, short, None, more_is_better=False)


METRICS = {
    "f1": Metric("Macro F1", "F1"),
    "recall": Metric("Macro recall", "Recall"),
    "precision": Metric("Macro precision", "Precision"),
    "peak_f1": Metric("Best round's F1", "Peak F1"),
    "seconds_per_round": _cost("Seconds per round", "s per round"),
    "minutes_to_peak": _cost("Minutes to FedAvg's peak", "min to peak"),
    "stability": _cost("Stability metric, all rounds", "All rounds"),
    "stability_late": _cost("Stability metric, last fifth", "Last fifth"),
}


@dataclass(frozen=True)
class TableEntry:
    """One row under one column in one metric."""

    row: TableRow
    paper: Score | None
    ours: Score | None
    paper_mark: Mark
    our_mark: Mark
    # among the rows that have both numbers
    paper_rank: int | None
    our_rank: int | None
    p_value: float | None
    # corrected for the number of rows under this column and metric
    p_holm: float | None
    # ours minus the reference row, over common seeds
    difference: Interval | None
    planned_seeds: int

    @property
    def gap(self) -> float | None:
        """Our mean minus the paper's."""
        if self.paper is None or self.ours is None:
            return None
        return self.ours.mean - self.paper.mean

    @property
    def stars(self) -> str:
        """Stars of the corrected test; empty if it is not significant or has too few seeds."""
        if self.p_holm is None or self.ours is None or len(self.ours.values) < MIN_SEEDS:
            return ""
        for level, mark in LEVELS:
            if self.p_holm < level:
                return mark
        return ""

    @property
    def seed_progress(self) -> str:
        """ "2/5" while seeds are missing, otherwise empty."""
        if self.ours is None or len(self.ours.values) >= self.planned_seeds:
            return ""
        return f"{len(self.ours.values)}/{self.planned_seeds}"


@dataclass(frozen=True)
class ScoreGroup:
    """All rows under one column in one metric."""

    column: str
    metric_key: str
    metric: Metric
    entries: Sequence[TableEntry]
    # Spearman's, between the paper's order and ours
    rho: float | None

    @property
    def has_paper(self) -> bool:
        """Whether the paper has a number for any row."""
        return any(entry.paper for entry in self.entries)

    @property
    def has_ours(self) -> bool:
        """Whether any row has a finished run."""
        return any(entry.ours for entry in self.entries)

    def entry(self, key: str) -> TableEntry | None:
        """The entry of the row with this key."""
        for entry in self.entries:
            if entry.row.key == key:
                return entry
        return None


@dataclass(frozen=True)
class Panel:
    """Groups side by side: a column with its metrics or, for a single metric, several columns."""

    title: str
    groups: Sequence[ScoreGroup]
    # what distinguishes the groups
    names: Sequence[str]

    @property
    def rows(self) -> list[TableRow]:
        """The rows that the panel shows."""
        return [entry.row for entry in self.groups[0].entries]


def metric_of(key: str) -> Metric:
    """The metric of a key; an unknown key is its own label."""
    words = key.replace("_", " ").capitalize()
    return METRICS.get(key) or Metric(words, words, None)


def panels(result: TableResult) -> list[Panel]:
    """The panels from top to bottom.

    A row without any number in a panel is left out of it if it has numbers in another one.
    """
    if len(result.metrics) == 1 and len(result.columns) > 1:
        groups = _drop_unrelated_rows(result, headline_groups(result))
        return [Panel(groups[0].metric.label, groups, result.columns)]
    column_panels = []
    for column in result.columns:
        groups = [score_group(result, column, metric) for metric in result.metrics]
        groups = _drop_unrelated_rows(result, groups)
        names = [group.metric.short for group in groups]
        column_panels.append(Panel(column, groups, names))
    return column_panels


def split(panel: Panel, max_groups: int) -> list[Panel]:
    """Parts of at most `max_groups` groups and similar size: four of three are two and two."""
    num_groups = len(panel.groups)
    size = ceil(num_groups / ceil(num_groups / max_groups))
    parts = []
    for start in range(0, num_groups, size):
        stop = start + size
        parts.append(Panel(panel.title, panel.groups[start:stop], panel.names[start:stop]))
    return parts


def _drop_unrelated_rows(result: TableResult, groups: Sequence[ScoreGroup]) -> list[ScoreGroup]:
    """Without the variants of other columns (UCL is run at the noise levels only)."""
    present = set()
    for group in groups:
        present |= {entry.row.key for entry in group.entries if entry.paper or entry.ours}
    unrelated_keys = set()
    for row in result.rows:
        has_numbers = any(row.paper.values()) or any(row.ours.values())
        if has_numbers and row.key not in present:
            unrelated_keys.add(row.key)
    related_groups = []
    for group in groups:
        entries = [entry for entry in group.entries if entry.row.key not in unrelated_keys]
        related_groups.append(replace(group, entries=entries))
    return related_groups


def score_group(result: TableResult, column: str, metric_key: str) -> ScoreGroup:
    """All rows under one column in one metric, with marks, ranks and the agreement of orders."""
    metric = metric_of(metric_key)
    paper = [row.paper.get(column, {}).get(metric_key) for row in result.rows]
    ours = [row.ours.get(column, {}).get(metric_key) for row in result.rows]
    pairs = _pairs(paper, ours)
    paper_ranks = _ranks([pair and pair[0] for pair in pairs], metric)
    our_ranks = _ranks([pair and pair[1] for pair in pairs], metric)
    paper_marks = _marks(paper, metric)
    our_marks = _marks(ours, metric)
    p_values = [row.p_value.get(column, {}).get(metric_key) for row in result.rows]
    holm_values = holm(p_values)
    reference = next((row for row in result.rows if row.key == result.reference), None)
    rival = None if reference is None else reference.ours.get(column, {}).get(metric_key)
    entries = []
    for i, row in enumerate(result.rows):
        entry = TableEntry(
            row=row,
            paper=paper[i],
            ours=ours[i],
            paper_mark=paper_marks[i],
            our_mark=our_marks[i],
            paper_rank=paper_ranks[i],
            our_rank=our_ranks[i],
            p_value=p_values[i],
            p_holm=holm_values[i],
            difference=_difference(ours[i], None if row is reference else rival),
            planned_seeds=len(result.seeds),
        )
        entries.append(entry)
    complete = [pair for pair in pairs if pair is not None]
    rho = spearman([pair[0].mean for pair in complete], [pair[1].mean for pair in complete])
    return ScoreGroup(column, metric_key, metric, entries, rho)


def _difference(score: Score | None, rival: Score | None) -> Interval | None:
    if score is None or rival is None:
        return None
    return difference_interval(score.values, rival.values)


def headline_groups(result: TableResult) -> list[ScoreGroup]:
    """Every column in the first metric."""
    return [score_group(result, column, result.metrics[0]) for column in result.columns]


def _pairs(
    paper: Sequence[Score | None], ours: Sequence[Score | None]
) -> list[tuple[Score, Score] | None]:
    """Both numbers of every row; None where one is missing. A single pair has no rank: all None."""
    pairs: list[tuple[Score, Score] | None] = []
    for paper_score, our_score in zip(paper, ours, strict=True):
        if paper_score is None or our_score is None:
            pairs.append(None)
        else:
            pairs.append((paper_score, our_score))
    if len(pairs) - pairs.count(None) < 2:
        return [None] * len(pairs)
    return pairs


def _printed_value(score: Score, metric: Metric) -> float:
    """The number as printed, so that equal on the page is equal; negated if less is better."""
    value = round(score.mean, metric.decimals(score.mean))
    return value if metric.more_is_better else -value


def _marks(scores: Sequence[Score | None], metric: Metric) -> list[Mark]:
    values = {}
    for i, score in enumerate(scores):
        if score is not None:
            values[i] = _printed_value(score, metric)
    first, second = first_and_second(values)
    marks: list[Mark] = [""] * len(scores)
    for i in first:
        marks[i] = "best"
    for i in second:
        marks[i] = "second"
    return marks


def _ranks(scores: Sequence[Score | None], metric: Metric) -> list[int | None]:
    """1 is best; equal numbers share the better rank."""
    values = [_printed_value(score, metric) for score in scores if score is not None]
    ranks: list[int | None] = []
    for score in scores:
        if score is None:
            ranks.append(None)
        else:
            value = _printed_value(score, metric)
            ranks.append(1 + sum(rival > value for rival in values))
    return ranks


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Correlation of the ranks, ties at their mean rank.

    None for fewer than three pairs, or if all values of a side are equal.
    """
    if len(a) < MIN_ROWS:
        return None
    try:
        return correlation(_mean_ranks(a), _mean_ranks(b))
    except StatisticsError:
        return None


def _mean_ranks(values: Sequence[float]) -> list[float]:
    ranks = []
    for value in values:
        smaller = sum(rival < value for rival in values)
        ranks.append(smaller + (1 + values.count(value)) / 2)
    return ranks


def winners(group: ScoreGroup, side: Side) -> list[str]:
    """Labels of the rows that are best among the paper's numbers or among ours."""
    labels = []
    for entry in group.entries:
        mark = entry.paper_mark if side == "paper" else entry.our_mark
        if mark == "best":
            labels.append(entry.row.label)
    return labels
