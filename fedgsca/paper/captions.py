"""The words around a table, the same in every format: labels, caption, meaning of the marks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fedgsca.paper.paired_test import MIN_SEEDS
from fedgsca.paper.ranking import (
    MISSING,
    Metric,
    ScoreGroup,
    TableEntry,
    headline_groups,
    score_group,
    winners,
)
from fedgsca.paper.table_result import Score, TableResult
from fedgsca.support.text import MINUS, NBSP, join_words, plural, signed

# settings that get a sentence each; more are counted
MAX_SENTENCES = 4
_MARKS = "Mean ± standard deviation over seeds. Best bold, second best underlined"


def scale_label(result: TableResult) -> str:
    """The label of every mini-scale result; empty at paper scale."""
    return f"mini scale on {result.data}" if result.scale == "mini" else ""


def heading(result: TableResult) -> str:
    """The title, with the scale unless it is the paper's."""
    label = scale_label(result)
    return f"{result.title} ({label})" if label else result.title


def unfinished(result: TableResult) -> str:
    """A warning while runs are missing, otherwise empty."""
    if result.finished_runs >= result.total_runs:
        return ""
    return f"Unfinished: {result.finished_runs} of {result.total_runs} runs are done."


def source(result: TableResult) -> str:
    """The data and seeds of our numbers in one line."""
    scale = "Mini" if result.scale == "mini" else "Paper"
    text = (
        f"{scale} scale on {result.data}, {plural(len(result.seeds), 'seed')}; "
        f"the paper used {result.dataset}."
    )
    return f"{text} {unfinished(result)}".rstrip()


def third_name(result: TableResult) -> str:
    """The head of the third column of a group: a gap, or ranks at mini scale."""
    return "Rank" if result.scale == "mini" else "Gap"


def third_text(result: TableResult, entry: TableEntry, metric: Metric) -> str:
    """The gap to the paper's number; at mini scale the paper's rank and ours."""
    if result.scale == "mini":
        if entry.paper_rank is None:
            return MISSING
        return f"{entry.paper_rank} → {entry.our_rank}"
    if entry.gap is None or entry.paper is None:
        return MISSING
    return signed(entry.gap, metric.decimals(entry.paper.mean))


def mean_text(score: Score | None, metric: Metric) -> str:
    """The mean with the metric's digits, or a dash."""
    if score is None:
        return MISSING
    return f"{score.mean:.{metric.decimals(score.mean)}f}"


def std_text(score: Score | None, metric: Metric) -> str:
    """ "± 0.43", or empty."""
    if score is None or score.std is None:
        return ""
    return f"± {score.std:.{metric.decimals(score.mean)}f}"


def tail_text(entry: TableEntry) -> str:
    """What follows our number: the stars of the test, and the seeds so far."""
    return f"{entry.stars} {seeds_text(entry)}".rstrip()


def seeds_text(entry: TableEntry) -> str:
    """ "[2/5]" while seeds are missing, otherwise empty."""
    return f"[{entry.seed_progress}]" if entry.seed_progress else ""


def name_in_sentence(metric: Metric) -> str:
    """A metric within a sentence: macro F1."""
    return metric.label[0].lower() + metric.label[1:]


def rho_text(value: float | None) -> str:
    """Spearman's rho with two digits, or a dash."""
    return MISSING if value is None else f"{value:.2f}".replace("-", MINUS)


def agreement(groups: Sequence[ScoreGroup]) -> str:
    """The agreement of the paper's order with ours per group; empty if the paper has no numbers."""
    ordered_groups = [group for group in groups if group.rho is not None]
    if not ordered_groups:
        return ""
    by_column = len({group.column for group in ordered_groups}) > 1
    parts = []
    for group in ordered_groups:
        name = group.column if by_column else group.metric.short
        parts.append(f"{name} {rho_text(group.rho)}")
    return f"Spearman's ρ between the paper's order and ours: {', '.join(parts)}."


def legend(result: TableResult) -> list[str]:
    """The meaning of the marks, as sentences."""
    if not any(any(row.paper.values()) for row in result.rows):
        sentences = [f"{_MARKS}. The paper prints no numbers."]
    else:
        sentences = [f"{_MARKS}, among the paper's numbers and among ours.", _third_legend(result)]
    if _has_tests(result):
        levels = f"*{NBSP}p{NBSP}<{NBSP}0.05, **{NBSP}p{NBSP}<{NBSP}0.01"
        sentences.append(
            f"{levels}: paired t-test against {reference_label(result)} over the seeds, corrected "
            "for the number of rows (Holm)."
        )
    if _has_partial_scores(result):
        seeds = len(result.seeds)
        sentences.append(f"[k/{seeds}]: the number rests on k of {seeds} seeds.")
    return sentences


def reference_label(result: TableResult) -> str:
    """The label of the reference row; its key if the row is not part of the table."""
    for row in result.rows:
        if row.key == result.reference:
            return row.label
    return result.reference


def _third_legend(result: TableResult) -> str:
    if result.scale == "mini":
        return "Rank: place in the paper → place here, among the rows that have both numbers."
    return "Gap: ours minus the paper's."


def difference_rows(result: TableResult, group: ScoreGroup) -> list[list[str]]:
    """Cells of a table: row, difference from the reference, 95 % interval, p, p after Holm."""
    digits = group.metric.digits or 2
    rows = []
    for entry in group.entries:
        if entry.difference is None:
            continue
        mean, low, high = (signed(number, digits) for number in entry.difference)
        p_values = [MISSING if p is None else f"{p:.3f}" for p in (entry.p_value, entry.p_holm)]
        rows.append([entry.row.label, mean, f"{low} to {high}", *p_values])
    return rows


DIFFERENCE_HEAD = ("", "difference", "95 % interval", "p", "p (Holm)")


def site_rows(result: TableResult, column: str) -> tuple[list[str], list[list[str]]]:
    """Head and cells of the scores per site: macro F1 at the class shares of each site."""
    scores = result.series.site_f1.get(column, {})
    names: set[str] = set()
    for by_site in scores.values():
        names |= set(by_site)
    sites = sorted(names)
    rows = []
    for row in result.rows:
        if row.key in scores:
            numbers = [scores[row.key].get(site) for site in sites]
            cells = [MISSING if number is None else f"{number:.1f}" for number in numbers]
            rows.append([row.label, *cells])
    return ["", *sites], rows


SITE_LEGEND = (
    "Macro F1 of the last round over the classes that a site has, at the class shares of its true "
    "labels: what a test set drawn like the site's own images would show. Mean over the seeds."
)


def _has_tests(result: TableResult) -> bool:
    if len(result.seeds) < MIN_SEEDS:
        return False
    for row in result.rows:
        for p_values in row.p_value.values():
            if any(p is not None for p in p_values.values()):
                return True
    return False


def _has_partial_scores(result: TableResult) -> bool:
    for column in result.columns:
        for metric in result.metrics:
            entries = score_group(result, column, metric).entries
            if any(entry.seed_progress for entry in entries):
                return True
    return False


def caption(result: TableResult) -> str:
    """One self-contained paragraph: what is shown, on which data, and how to read it."""
    return " ".join([f"{result.title}.", source(result), *legend(result)])


def lead(result: TableResult) -> list[str]:
    """The outcome in a few sentences."""
    groups = headline_groups(result)
    if not any(group.has_ours for group in groups):
        return ["No run is finished yet; only the paper's numbers are shown."]
    if len(groups) <= MAX_SENTENCES:
        sentences = [_winner_sentence(group) for group in groups]
    else:
        sentences = [_winner_counts(groups)]
    metric = name_in_sentence(groups[0].metric)
    if result.scale == "mini":
        sentences.append(_order_sentence(groups, metric))
    else:
        sentences.append(_gap_sentence(groups, metric))
    return [sentence for sentence in sentences if sentence]


def _order_sentence(groups: Sequence[ScoreGroup], metric: str) -> str:
    rhos = [group.rho for group in groups if group.rho is not None]
    if not rhos:
        return ""
    scope = f", mean of {plural(len(rhos), 'setting')}" if len(rhos) > 1 else ""
    return (
        f"Order by {metric} against the paper's: Spearman's ρ = {rho_text(fmean(rhos))}{scope} "
        "(1: the same order; 0: no relation)."
    )


def all_gaps(groups: Sequence[ScoreGroup]) -> list[float]:
    """Ours minus the paper's, of all entries that have both numbers."""
    gaps = []
    for group in groups:
        gaps += [entry.gap for entry in group.entries if entry.gap is not None]
    return gaps


def _gap_sentence(groups: Sequence[ScoreGroup], metric: str) -> str:
    sizes = [abs(gap) for gap in all_gaps(groups)]
    if not sizes:
        return ""
    return (
        f"Mean distance to the paper's {metric}: {fmean(sizes):.2f}; the largest: {max(sizes):.2f}."
    )


def _winner_sentence(group: ScoreGroup) -> str:
    ours = winners(group, "ours")
    paper = winners(group, "paper")
    if not ours:
        return ""
    verb = "is" if len(ours) == 1 else "are"
    text = (
        f"{group.column}: {join_words(ours)} {verb} best in {name_in_sentence(group.metric)} here"
    )
    if not paper:
        return f"{text}."
    if set(ours) == set(paper):
        return f"{text}, as in the paper."
    return f"{text}, {join_words(paper)} in the paper."


def _winner_counts(groups: Sequence[ScoreGroup]) -> str:
    counts: dict[str, int] = {}
    for group in groups:
        for label in winners(group, "ours"):
            counts[label] = counts.get(label, 0) + 1
    if not counts:
        return ""
    parts = []
    for label, count in sorted(counts.items(), key=lambda item: -item[1]):
        parts.append(f"{label} in {count} of {len(groups)} settings")
    return f"Best in {name_in_sentence(groups[0].metric)} here: {join_words(parts)}."
