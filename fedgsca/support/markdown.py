"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from fedgsca.support.text import NBSP


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int | None = None
) -> list[str]:
    """The lines of a table, followed by an empty line.

    Columns after the first `text_columns` are numbers, aligned to the right; None: all are text.
    """
    num_text = len(header) if text_columns is None else text_columns
    rule = "|" + "---|" * num_text + "--:|" * (len(header) - num_text)
    lines = [_table_line(header), rule]
    for row in rows:
        lines.append(_table_line(row))
    return [*lines, ""]


def _table_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape_cell(cell) for cell in cells) + " |"


def escape_text(text: str) -> str:
    """Text in which nothing is HTML: Markdown passes tags on to the browser."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_cell(text: str) -> str:
    """Text that does not end its cell or its row, and is not HTML."""
    return escape_text(text).replace("|", "\\|").replace("\n", " ").replace(NBSP, " ")
