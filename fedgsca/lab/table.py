"""The one table of the package, with writers for terminal, Markdown, csv, LaTeX and pages.

    table = Table("Noise S40", ["Method", "Macro F1"], [["FedAvg", Cell("61.2", mark="best")]])
    print_tables([table])
    to_markdown([table]); to_csv([table]); to_latex([table])

A cell is text, or a `Cell` with a mark, a footnote and the numbers behind it. Notes of cells become
footnotes with letters in every form. The columns of a comparison are in comparison_columns.py: one
entry there is a column in all of these forms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from fedgsca.support.console import make_table, print_line, print_table
from fedgsca.support.csv_table import render_csv
from fedgsca.support.latex import escape
from fedgsca.support.markdown import escape_text, markdown_table
from fedgsca.support.text import NBSP

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class LegendEntry:
    """One entry of a legend."""

    text: str
    # a colour token of style.css
    token: str
    shape: Literal["line", "block", "dot", "ring", "triangle", "cross"] = "line"
    dashes: Sequence[float] = ()


@dataclass(frozen=True)
class Cell:
    """A cell that is more than text."""

    text: str
    # best: the highest of its column; reference: not a method, such as the ceiling
    mark: Literal["", "best", "reference"] = ""
    # what a reader must know about this cell, each a sentence
    notes: tuple[str, ...] = ()
    # name of a csv column -> number at full precision; empty: the text under the heading
    data: Mapping[str, object] = field(default_factory=dict)
    # on a page only: 0 to 1, drawn beside the number
    bar: float | None = None
    key: LegendEntry | None = None
    # follows the text in a smaller size
    small: str = ""
    # where the text leads, relative to the page
    link: str = ""


Row = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """A table. The first column names the row; the other columns are numbers by default."""

    kind: ClassVar[str] = "table"
    title: str
    head: Sequence[str]
    rows: Sequence[Row]
    # columns that hold text
    words: Sequence[int] = ()
    # columns whose numbers have a bar beside them on a page
    bars: Sequence[int] = ()
    note: str = ""
    # csv columns that all rows share, such as the noise
    data: Mapping[str, object] = field(default_factory=dict)

    @property
    def footnotes(self) -> dict[str, str]:
        """Sentence -> letter, in the order of the cells."""
        sentences: dict[str, None] = {}
        for row in self.rows:
            for cell in row:
                if isinstance(cell, Cell):
                    sentences |= dict.fromkeys(cell.notes)
        return {text: _letter(i) for i, text in enumerate(sentences)}

    def letters(self, cell: str | Cell) -> str:
        """The footnote letters of a cell: "a", "a b"; empty if it has none."""
        if isinstance(cell, str):
            return ""
        footnotes = self.footnotes
        return " ".join(footnotes[note] for note in cell.notes)

    @property
    def num_text_columns(self) -> int:
        """How many columns from the left hold text."""
        number = 1
        while number in self.words:
            number += 1
        return number


def _letter(position: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    first, second = divmod(position, len(_LETTERS))
    return (_LETTERS[first - 1] if first else "") + _LETTERS[second]


def text_of(cell: str | Cell) -> str:
    """What a cell says, without its mark."""
    if isinstance(cell, str):
        return cell
    return f"{cell.text} {cell.small}".rstrip()


def _mark_of(cell: str | Cell) -> str:
    return "" if isinstance(cell, str) else cell.mark


# ---- terminal ----


def print_tables(tables: Sequence[Table]) -> None:
    """Print tables on stdout; * marks the highest of a column."""
    for table in tables:
        rows = []
        for row in table.rows:
            rows.append([_terminal_text(table, cell) for cell in row])
        text_columns = table.num_text_columns
        print_table(make_table(table.head, rows, title=table.title, text_columns=text_columns))
        for text, letter in table.footnotes.items():
            print_line(f"{letter}  {text}", "dim")
        if table.note:
            print_line(table.note, "dim")


def _terminal_text(table: Table, cell: str | Cell) -> str:
    letters = table.letters(cell)
    text = text_of(cell) + (f" [{letters}]" if letters else "")
    return f"{text}*" if _mark_of(cell) == "best" else text


# ---- files ----


def to_markdown(tables: Sequence[Table]) -> str:
    """Tables for a README, one below the other: the best is bold."""
    lines: list[str] = []
    for table in tables:
        if table.title:
            lines += [f"**{escape_text(table.title)}**", ""]
        rows = []
        for row in table.rows:
            rows.append([_markdown_cell(table, cell) for cell in row])
        head = [escape_text(name) for name in table.head]
        text_columns = table.num_text_columns
        lines += markdown_table(head, rows, text_columns=text_columns, has_markup=True)
        for text, letter in table.footnotes.items():
            lines += [f"<sup>{letter}</sup> {escape_text(text)}", ""]
        if table.note:
            lines += [escape_text(table.note), ""]
    return "\n".join(lines)


_MARKDOWN = {"": "{}", "best": "**{}**", "reference": "*{}*"}


def _markdown_cell(table: Table, cell: str | Cell) -> str:
    text = _MARKDOWN[_mark_of(cell)].format(escape_text(text_of(cell)))
    letters = table.letters(cell)
    return f"{text}<sup>{letters}</sup>" if letters else text


def to_csv(tables: Sequence[Table]) -> str:
    """All tables as one list, with the numbers at full precision; empty where there is none."""
    records: list[dict[str, object]] = []
    for table in tables:
        with_data: set[int] = set()
        for row in table.rows:
            with_data |= {i for i, cell in enumerate(row) if _data_of(cell)}
        for row in table.rows:
            record = dict(table.data)
            for i, cell in enumerate(row):
                if i in with_data:
                    record |= _data_of(cell)
                else:
                    record[table.head[i].lower()] = text_of(cell).replace(NBSP, " ")
            records.append(record)
    names: dict[str, None] = {}
    for record in records:
        names |= dict.fromkeys(record)
    # csv writes None as an empty field
    lines: list[list[object]] = [list(names)]
    for record in records:
        lines.append([record.get(name) for name in names])
    return render_csv(lines)


def _data_of(cell: str | Cell) -> Mapping[str, object]:
    return {} if isinstance(cell, str) else cell.data


def to_latex(tables: Sequence[Table]) -> str:
    r"""A table to \input for each, which needs only booktabs: the best is bold."""
    lines = [r"% \usepackage{booktabs}"]
    for table in tables:
        text_columns = table.num_text_columns
        columns = "l" * text_columns + "r" * (len(table.head) - text_columns)
        lines += [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            rf"\multicolumn{{{len(table.head)}}}{{l}}{{{escape(table.title)}}} \\",
            r"\midrule",
            " & ".join(escape(name) for name in table.head) + r" \\",
            r"\midrule",
        ]
        for row in table.rows:
            lines.append(" & ".join(_latex_cell(table, cell) for cell in row) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        for text, letter in table.footnotes.items():
            lines.append(rf"\par\footnotesize $^{{\mathrm{{{letter}}}}}$ {escape(text)}")
        lines.append(r"\par\bigskip")
    return "\n".join(lines) + "\n"


_LATEX = {"": "{}", "best": r"\textbf{{{}}}", "reference": r"\emph{{{}}}"}


def _latex_cell(table: Table, cell: str | Cell) -> str:
    text = _LATEX[_mark_of(cell)].format(escape(text_of(cell)))
    letters = table.letters(cell)
    return rf"{text}$^{{\mathrm{{{letters}}}}}$" if letters else text
