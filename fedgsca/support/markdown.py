"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from fedgsca.support.text import NBSP


def markdown_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text_columns: int | None = None,
    has_markup: bool = False,
) -> list[str]:
    """The lines of a table, followed by an empty line.

    Columns after the first `text_columns` are numbers, aligned to the right; None: all are text.
    `has_markup`: the cells contain tags of our own, which are kept.
    """
    num_text = len(header) if text_columns is None else text_columns
    rule = "|" + "---|" * num_text + "--:|" * (len(header) - num_text)
    lines = [_table_line(header, has_markup), rule]
    for row in rows:
        lines.append(_table_line(row, has_markup))
    return [*lines, ""]


def _table_line(cells: Sequence[str], has_markup: bool) -> str:
    if not has_markup:
        cells = [escape_text(cell) for cell in cells]
    return "| " + " | ".join(escape_cell(cell) for cell in cells) + " |"


def escape_text(text: str) -> str:
    """Text in which nothing is HTML: Markdown passes tags on to the browser."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_cell(text: str) -> str:
    """Text that does not end its cell or its row."""
    return text.replace("|", "\\|").replace("\n", " ").replace(NBSP, " ")
