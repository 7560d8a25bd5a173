"""A table as Markdown, as CSV and on the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedgsca.paper.captions import (
    agreement,
    heading,
    legend,
    mean_text,
    scale_label,
    source,
    std_text,
    tail_text,
    third_name,
    third_text,
)
from fedgsca.paper.ranking import Entry, Group, Mark, Panel, group, panels, split
from fedgsca.paper.table_result import Score, TableResult
from fedgsca.report.comparison_tables import escape_cell

if TYPE_CHECKING:
    from rich.text import Text

# a group's columns on the terminal: paper, ours, gap with their spaces; the names of the rows
_GROUP_WIDTH, _NAME_WIDTH = 42, 18
CSV_HEAD = (
    "table", "scale", "data", "paper_dataset", "row", "label", "column", "metric", "paper_mean", "paper_std", "paper_mark",
    "paper_rank", "ours_mean", "ours_std", "ours_mark", "ours_rank", "ours_seeds", "planned_seeds", "ours_by_seed", "gap",
    "p_value", "reference", "spearman_rho",
)  # fmt: skip


def heads(result: TableResult, here: Group) -> list[str]:
    return ["Paper", "Ours", third_name(result)] if here.has_paper else ["Ours"]


def to_markdown(result: TableResult) -> str:
    lines = [f"# {heading(result)}", "", source(result), ""]
    for panel in panels(result):
        lines += [f"## {panel.title}", "", *_markdown_table(result, panel), ""]
        lines += [said, ""] if (said := agreement(list(panel.groups))) else []
    lines += [" ".join(legend(result)).replace("*", "\\*"), ""]
    lines += ["Notes:", "", *(f"- {note}" for note in result.notes), ""] if result.notes else []
    return "\n".join(lines)


def _markdown_table(result: TableResult, panel: Panel) -> Iterator[str]:
    names = [
        f"{name} {head.lower()}"
        for here, name in zip(panel.groups, panel.names, strict=True)
        for head in heads(result, here)
    ]
    yield "| " + " | ".join(["", *map(escape_cell, names)]) + " |"
    yield "|" + "|".join(["---", *["--:"] * len(names)]) + "|"
    for i, row in enumerate(panel.rows):
        cells = [
            cell for here in panel.groups for cell in _markdown_cells(result, here, here.entries[i])
        ]
        yield "| " + " | ".join([escape_cell(row.label), *cells]) + " |"


def _markdown_cells(result: TableResult, here: Group, entry: Entry) -> list[str]:
    def marked(score: Score | None, mark: Mark) -> str:
        mean = mean_text(score, here.about)
        shown = f"**{mean}**" if mark == "best" else f"<u>{mean}</u>" if mark == "second" else mean
        return f"{shown} {std_text(score, here.about)}".rstrip()

    ours = marked(entry.ours, entry.our_mark) + tail_text(entry).replace("*", "\\*")
    return (
        [marked(entry.paper, entry.paper_mark), ours, third_text(result, entry, here.about)]
        if here.has_paper
        else [ours]
    )


def to_csv(result: TableResult) -> str:
    """Tidy: one line per row, column and metric; full precision, empty where unknown; no gap at mini scale."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for column in result.columns:
        for metric in result.metrics:
            here = group(result, column, metric)
            writer.writerows(
                ["" if value is None else value for value in _csv_line(result, here, entry)]
                for entry in here.entries
            )
    return text.getvalue()


def _csv_line(result: TableResult, here: Group, entry: Entry) -> list[object]:
    paper, ours = entry.paper, entry.ours
    return [
        result.name, result.scale, result.data, result.dataset, entry.row.key, entry.row.label, here.column, here.metric,
        paper and paper.mean, paper and paper.std, entry.paper_mark, entry.paper_rank,
        ours and ours.mean, ours and ours.std, entry.our_mark, entry.our_rank,
        len(ours.values) if ours else 0, entry.planned, " ".join(f"{seed}:{value}" for seed, value in ours.values.items()) if ours else None,
        entry.gap if result.scale == "paper" else None, entry.p_value, result.reference, here.rho,
    ]  # fmt: skip


def print_table(result: TableResult) -> None:
    """Best bold and second best underlined on a terminal; where there are no styles, ▲ and △."""
    from fedgsca.support import console as screen

    console = screen.console()
    screen.say(heading(result), "bold")
    screen.say(source(result))
    across = max(1, (console.width - _NAME_WIDTH) // _GROUP_WIDTH)
    for panel in panels(result):
        for part in split(panel, across):
            _print_panel(result, part, styles=console.is_terminal)
        if said := agreement(list(panel.groups)):
            screen.say(said, "dim")
    words = " ".join(legend(result))
    screen.say(
        words
        if console.is_terminal
        else words.replace("Best bold, second best underlined", "Best ▲, second best △"),
        "dim",
    )
    for note in result.notes:
        screen.say(f"Note: {note}", "dim")


def _print_panel(result: TableResult, panel: Panel, *, styles: bool) -> None:
    from rich import box
    from rich.table import Table

    from fedgsca.support import console as screen

    label = f" ({scale_label(result)})" if result.scale == "mini" else ""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=panel.title + label,
        title_justify="left",
        title_style="bold",
        padding=(0, 1, 0, 0),
    )
    table.add_column("", no_wrap=True)
    for here, name in zip(panel.groups, panel.names, strict=True):
        for head in heads(result, here):
            table.add_column(
                f"{name}\n{head.lower()}",
                justify="left" if head in ("Paper", "Ours") else "right",
                no_wrap=True,
            )
    for i, row in enumerate(panel.rows):
        cells = [
            cell
            for here in panel.groups
            for cell in _terminal_cells(result, here, here.entries[i], styles)
        ]
        table.add_row(row.label, *cells)
    screen.show(table)


def _terminal_cells(
    result: TableResult, here: Group, entry: Entry, styles: bool
) -> list[Text | str]:
    from rich.text import Text

    def marked(score: Score | None, mark: Mark) -> Text:
        sign = "" if styles else {"best": "▲", "second": "△", "": " "}[mark]
        pad = " " * (width - len(mean_text(score, here.about)))
        text = Text(pad).append(
            sign + mean_text(score, here.about),
            {"best": "bold", "second": "underline", "": ""}[mark],
        )
        return text.append(f" {std_text(score, here.about):<{spread}}")

    shown = [score for each in here.entries for score in (each.paper, each.ours)]
    width = max(
        len(mean_text(score, here.about)) for score in shown
    )  # digits stand below each other
    spread = max(len(std_text(score, here.about)) for score in shown)
    ours = marked(entry.ours, entry.our_mark).append(tail_text(entry))
    if not here.has_paper:
        return [ours]
    return [marked(entry.paper, entry.paper_mark), ours, third_text(result, entry, here.about)]
