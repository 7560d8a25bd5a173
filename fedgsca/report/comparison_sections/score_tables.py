"""The result: scores of every method under every noise."""

from __future__ import annotations

from collections.abc import Sequence

from fedgsca.experiment.records import finite, setting_name, setting_value
from fedgsca.report.comparison_tables import (
    SCORES,
    ComparisonRow,
    mean_std,
    recovery_text,
    score_text,
)
from fedgsca.report.elements import (
    Collapsible,
    PageElement,
    PageSection,
    PageTable,
    TableCell,
)
from fedgsca.report.loaded_comparison import LoadedComparison, method_entry
from fedgsca.report.page_sections import comparison_section
from fedgsca.report.run_facts import describe_noises
from fedgsca.support.text import DASH, join_words

# a key of SCORES -> the heading of its column
HEADINGS = {
    "f1": "Macro F1",
    "recall": "Recall",
    "precision": "Precision",
    "best_f1": "Best round's F1",
}
# tables of single noises on the open page; more of them are folded
_MAX_OPEN_TABLES = 2


@comparison_section(position=10)
def result_section(comparison: LoadedComparison) -> PageSection | None:
    """An overview of several noises, and one table per noise."""
    if not comparison.rows:
        return None
    blocks: list[PageElement] = []
    if len(comparison.record.variants) > 1:
        blocks += _variant_tables(comparison)
    elif len(comparison.noises) > 1:
        blocks.append(_overview_table(comparison))
    for noise in comparison.noises:
        table = _score_table(comparison, noise)
        if len(comparison.noises) > _MAX_OPEN_TABLES:
            blocks.append(Collapsible(table.caption, [table]))
        else:
            blocks.append(table)
    return PageSection("result", "Result", _intro(comparison), blocks)


def _intro(comparison: LoadedComparison) -> str:
    sentences = [_explain_numbers(comparison)]
    legend = describe_noises(dict.fromkeys(row.noise_spec for row in comparison.rows))
    if legend:
        sentences.append(legend)
    if comparison.has_ceiling:
        sentences.append(
            "The ceiling is FedAvg without the wrong labels, which no method knows. Recovery is "
            "the share of the gap between FedAvg and the ceiling that a method closes: 1 is all of "
            "it, below 0 is worse than FedAvg. There is no value where the gap is below one point."
        )
    scores = [finite(value) for value in (comparison.record.clean or {}).values()]
    clean_scores = [score for score in scores if score is not None]
    if clean_scores:
        sentences.append(f"On clean labels FedAvg reaches {mean_std(clean_scores).text()}.")
    return " ".join(sentences)


def _explain_numbers(comparison: LoadedComparison) -> str:
    """What ±, bold and underlined mean, as far as they occur."""
    text = "Percent"
    if any(row.seeds > 1 for row in comparison.rows):
        text += ", mean ± standard deviation over the seeds"
    if any(row.best for row in comparison.rows):
        text += "; the best is bold"
    if any(row.second for row in comparison.rows):
        text += ", the second best underlined"
    return f"{text}."


def _overview_table(comparison: LoadedComparison) -> PageTable:
    """Methods by noises, F1 only."""
    rows = []
    for method, label in comparison.labels.items():
        name = TableCell(label, key=method_entry(method, label))
        rows.append([name, *_f1_cells(comparison, method)])
    if comparison.has_ceiling:
        rows.append([TableCell("Ceiling"), *_f1_cells(comparison, "ceiling")])
    caption = f"Macro F1 under every {comparison.condition_word}"
    return PageTable(caption, ["Method", *comparison.noises], rows)


def _variant_tables(comparison: LoadedComparison) -> list[PageTable]:
    """Networks and settings by methods for every noise, F1 only: does the ranking depend on them?

    A row is one network with one combination of the varied settings.
    """
    record = comparison.record
    methods = comparison.labels
    titles = ["Network"] if record.models else []
    titles += [setting_name(key).capitalize() for key in record.vary or ()]
    head = [*titles, *methods.values()]
    names = list(methods)
    if comparison.has_ceiling:
        head.append("Ceiling")
        names.append("ceiling")
    tables = []
    for noise in comparison.record.noises:
        rows = []
        for variant in record.variants:
            cells = [TableCell(variant.model)] if variant.model else []
            cells += [TableCell(setting_value(value)) for value in variant.settings.values()]
            for method in names:
                row = comparison.find_row(method, variant.join(noise))
                cells.append(TableCell(DASH) if row is None else _score_cell(row, "f1"))
            rows.append(cells)
        subject = join_words([title.lower() for title in titles])
        tables.append(PageTable(f"Macro F1 by {subject} under noise {noise}", head, rows))
    return tables


def _f1_cells(comparison: LoadedComparison, method: str) -> list[TableCell]:
    cells = []
    for noise in comparison.noises:
        row = comparison.find_row(method, noise)
        cells.append(TableCell(DASH) if row is None else _score_cell(row, "f1"))
    return cells


def _score_table(comparison: LoadedComparison, noise: str) -> PageTable:
    noise_rows = [row for row in comparison.rows if row.noise == noise]
    keys = _known_scores(noise_rows)
    has_recovery = any(row.recovery is not None for row in noise_rows)
    head = ["Method", *(HEADINGS[key] for key in keys)]
    if has_recovery:
        head.append("Recovery")
    head.append("Seeds")
    rows = []
    for row in noise_rows:
        cells: list[str | TableCell] = [_name_cell(row)]
        cells += [_score_cell(row, key) for key in keys]
        if has_recovery:
            cells.append(recovery_text(row))
        rows.append([*cells, str(row.seeds)])
    return PageTable(f"Noise {noise}", head, rows)


def _known_scores(rows: Sequence[ComparisonRow]) -> list[str]:
    """The keys of SCORES that any row has."""
    keys = []
    for key in SCORES:
        if any(key in row.stats for row in rows):
            keys.append(key)
    return keys


def _name_cell(row: ComparisonRow) -> TableCell:
    if row.reference:
        return TableCell(row.label)
    return TableCell(row.label, key=method_entry(row.method, row.label))


def _score_cell(row: ComparisonRow, key: str) -> TableCell:
    text = score_text(row, key)
    if key in row.best:
        return TableCell(text, mark="best")
    if key in row.second:
        return TableCell(text, mark="second")
    return TableCell(text)
