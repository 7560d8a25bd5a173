"""A table as Markdown, as CSV and on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from fedgsca.paper.captions import (
    DIFFERENCE_HEAD,
    SITE_LEGEND,
    agreement,
    difference_rows,
    heading,
    legend,
    mean_text,
    reference_label,
    scale_label,
    site_rows,
    source,
    std_text,
    tail_text,
    third_name,
    third_text,
)
from fedgsca.paper.ranking import (
    Mark,
    Panel,
    ScoreGroup,
    TableEntry,
    headline_groups,
    panels,
    score_group,
    split,
)
from fedgsca.paper.table_result import Score, TableResult
from fedgsca.support.csv_table import render_csv
from fedgsca.support.markdown import markdown_table

if TYPE_CHECKING:
    from rich.text import Text

# characters of a group on the terminal (paper, ours, gap and spaces), and of the names of the rows
_GROUP_WIDTH = 42
_NAME_WIDTH = 18
_TERMINAL_STYLES = {"best": "bold", "second": "underline", "": ""}
_PLAIN_SIGNS = {"best": "▲", "second": "△", "": " "}
_CSV_COLUMNS = (
    "table",
    "scale",
    "data",
    "paper_dataset",
    "row",
    "label",
    "column",
    "metric",
    "paper_mean",
    "paper_std",
    "paper_mark",
    "paper_rank",
    "ours_mean",
    "ours_std",
    "ours_mark",
    "ours_rank",
    "ours_seeds",
    "planned_seeds",
    "ours_by_seed",
    "gap",
    "p_value",
    "p_holm",
    "difference",
    "difference_low",
    "difference_high",
    "reference",
    "spearman_rho",
)


def group_heads(result: TableResult, group: ScoreGroup) -> list[str]:
    """The heads of a group's columns."""
    return ["Paper", "Ours", third_name(result)] if group.has_paper else ["Ours"]


# ---- Markdown ----


def to_markdown(result: TableResult) -> str:
    """The table for a README: best bold, second best underlined."""
    lines = [f"# {heading(result)}", "", source(result), ""]
    for panel in panels(result):
        lines += [f"## {panel.title}", "", *_markdown_panel(result, panel)]
        agreement_text = agreement(panel.groups)
        if agreement_text:
            lines += [agreement_text, ""]
    lines += [" ".join(legend(result)).replace("*", "\\*"), ""]
    lines += _markdown_differences(result)
    lines += _markdown_sites(result)
    if result.notes:
        lines += ["Notes:", ""]
        lines += [f"- {note}" for note in result.notes]
        lines.append("")
    return "\n".join(lines)


def _markdown_differences(result: TableResult) -> list[str]:
    """Differences from the reference row with intervals, in the first metric."""
    lines = []
    for group in headline_groups(result):
        rows = difference_rows(result, group)
        if rows:
            head = f"## {group.column}: {group.metric.short} minus {reference_label(result)}'s"
            lines += [head, "", *markdown_table(list(DIFFERENCE_HEAD), rows, text_columns=1)]
    return lines


def _markdown_sites(result: TableResult) -> list[str]:
    lines = []
    for column in result.columns:
        header, rows = site_rows(result, column)
        if rows:
            table = markdown_table(header, rows, text_columns=1)
            lines += [f"## {column}: sites", "", *table]
    return [*lines, SITE_LEGEND, ""] if lines else []


def _markdown_panel(result: TableResult, panel: Panel) -> list[str]:
    header = [""]
    for group, name in zip(panel.groups, panel.names, strict=True):
        header += [f"{name} {head.lower()}" for head in group_heads(result, group)]
    rows = []
    for i, row in enumerate(panel.rows):
        cells = [row.label]
        for group in panel.groups:
            cells += _markdown_cells(result, group, group.entries[i])
        rows.append(cells)
    return markdown_table(header, rows, text_columns=1, has_markup=True)


def _markdown_cells(result: TableResult, group: ScoreGroup, entry: TableEntry) -> list[str]:
    ours = _markdown_score(entry.ours, entry.our_mark, group)
    ours += tail_text(entry).replace("*", "\\*")
    if not group.has_paper:
        return [ours]
    paper = _markdown_score(entry.paper, entry.paper_mark, group)
    return [paper, ours, third_text(result, entry, group.metric)]


def _markdown_score(score: Score | None, mark: Mark, group: ScoreGroup) -> str:
    text = mean_text(score, group.metric)
    if mark == "best":
        text = f"**{text}**"
    elif mark == "second":
        text = f"<u>{text}</u>"
    return f"{text} {std_text(score, group.metric)}".rstrip()


# ---- CSV ----


def to_csv(result: TableResult) -> str:
    """Tidy: one line per row, column and metric, at full precision.

    Empty where a number is unknown; no gap at mini scale.
    """
    lines: list[Sequence[object]] = [_CSV_COLUMNS]
    for column in result.columns:
        for metric in result.metrics:
            group = score_group(result, column, metric)
            for entry in group.entries:
                # csv writes None as an empty field
                lines.append(_csv_line(result, group, entry))
    return render_csv(lines)


def _csv_line(result: TableResult, group: ScoreGroup, entry: TableEntry) -> list[object]:
    values = dict(entry.ours.values) if entry.ours else {}
    by_seed = " ".join(f"{seed}:{value}" for seed, value in values.items())
    return [
        result.name,
        result.scale,
        result.data,
        result.dataset,
        entry.row.key,
        entry.row.label,
        group.column,
        group.metric_key,
        entry.paper and entry.paper.mean,
        entry.paper and entry.paper.std,
        entry.paper_mark,
        entry.paper_rank,
        entry.ours and entry.ours.mean,
        entry.ours and entry.ours.std,
        entry.our_mark,
        entry.our_rank,
        len(values),
        entry.planned_seeds,
        by_seed,
        entry.gap if result.scale == "paper" else None,
        entry.p_value,
        entry.p_holm,
        *(entry.difference or (None, None, None)),
        result.reference,
        group.rho,
    ]


# ---- terminal ----


def print_result(result: TableResult) -> None:
    """Print the table: best bold and second best underlined; without styles, ▲ and △."""
    from fedgsca.support.console import console, print_line

    terminal = console()
    print_line(heading(result), "bold")
    print_line(source(result))
    max_groups = max(1, (terminal.width - _NAME_WIDTH) // _GROUP_WIDTH)
    for panel in panels(result):
        for part in split(panel, max_groups):
            _print_panel(result, part, styles=terminal.is_terminal)
        agreement_text = agreement(panel.groups)
        if agreement_text:
            print_line(agreement_text, "dim")
    legend_text = " ".join(legend(result))
    if not terminal.is_terminal:
        styles = "Best bold, second best underlined"
        legend_text = legend_text.replace(styles, "Best ▲, second best △")
    print_line(legend_text, "dim")
    for note in result.notes:
        print_line(f"Note: {note}", "dim")


def _print_panel(result: TableResult, panel: Panel, *, styles: bool) -> None:
    from rich import box
    from rich.table import Table

    from fedgsca.support.console import print_table

    label = f" ({scale_label(result)})" if result.scale == "mini" else ""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=panel.title + label,
        title_justify="left",
        title_style="bold",
        padding=(0, 1, 0, 0),
    )
    table.add_column("", no_wrap=True)
    for group, name in zip(panel.groups, panel.names, strict=True):
        for head in group_heads(result, group):
            justify: Literal["left", "right"] = "left" if head in ("Paper", "Ours") else "right"
            table.add_column(f"{name}\n{head.lower()}", justify=justify, no_wrap=True)
    for i, row in enumerate(panel.rows):
        cells: list[Text | str] = []
        for group in panel.groups:
            cells += _terminal_cells(result, group, group.entries[i], styles)
        table.add_row(row.label, *cells)
    print_table(table)


def _terminal_cells(
    result: TableResult, group: ScoreGroup, entry: TableEntry, styles: bool
) -> list[Text | str]:
    ours = _terminal_score(entry.ours, entry.our_mark, group, styles)
    ours.append(tail_text(entry))
    if not group.has_paper:
        return [ours]
    paper = _terminal_score(entry.paper, entry.paper_mark, group, styles)
    return [paper, ours, third_text(result, entry, group.metric)]


def _terminal_score(score: Score | None, mark: Mark, group: ScoreGroup, styles: bool) -> Text:
    """The mean and its deviation, padded so that the digits of a group are aligned."""
    from rich.text import Text

    mean_width = 0
    std_width = 0
    for entry in group.entries:
        for neighbour in (entry.paper, entry.ours):
            mean_width = max(mean_width, len(mean_text(neighbour, group.metric)))
            std_width = max(std_width, len(std_text(neighbour, group.metric)))
    mean = mean_text(score, group.metric)
    sign = "" if styles else _PLAIN_SIGNS[mark]
    text = Text(" " * (mean_width - len(mean))).append(sign + mean, _TERMINAL_STYLES[mark])
    return text.append(f" {std_text(score, group.metric):<{std_width}}")
