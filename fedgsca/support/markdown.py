"""Pieces of Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from fedgsca.support.text import NBSP


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, and an empty one after it."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_cell(cell) for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *map(line, rows), ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace(NBSP, " ")
