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


def escape_cell(text: str) -> str:
    """Text that does not end its cell or its row."""
    return text.replace("|", "\\|").replace("\n", " ").replace(NBSP, " ")
