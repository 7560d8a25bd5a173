"""The one table: every writer shows the same cells, marks, notes and numbers."""

from __future__ import annotations

import csv
import io

import pytest

from fedgsca.lab.report.elements import Page, PageSection
from fedgsca.lab.report.html_page import render_page
from fedgsca.lab.table import Cell, Table, print_tables, to_csv, to_latex, to_markdown

TABLE = Table(
    "Noise <S40>",
    ["Method", "Macro F1", "Remark"],
    [
        [Cell("FedAvg", notes=("One update left out.",)), Cell("61.2", data={"f1": 61.234}), "a|b"],
        [Cell("Other & <b>", notes=("A rate.", "One update left out.")), Cell("70.1", "best"), ""],
        [Cell("Ceiling", "reference"), "–", ""],
    ],
    words=(2,),
    note="All at 5 %.",
    data={"noise": "S40"},
)


def test_footnotes_have_letters_in_the_order_of_cells() -> None:
    assert TABLE.footnotes == {"One update left out.": "a", "A rate.": "b"}
    assert [TABLE.letters(row[0]) for row in TABLE.rows] == ["a", "b a", ""]
    many = Table("", ["x"], [[Cell("", notes=tuple(f"note {i}" for i in range(30)))]])
    assert list(many.footnotes.values())[24:28] == ["y", "z", "aa", "ab"]


def test_markdown_escapes_marks_and_notes() -> None:
    text = to_markdown([TABLE])
    assert "**Noise &lt;S40&gt;**" in text
    assert "| FedAvg<sup>a</sup> | 61.2 | a\\|b |" in text
    assert "| Other &amp; &lt;b&gt;<sup>b a</sup> | **70.1** |" in text
    assert "| *Ceiling* |" in text and "<sup>b</sup> A rate." in text and "All at 5 %." in text


def test_csv_has_full_precision_and_the_shared_columns() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([TABLE, TABLE]))))
    assert len(rows) == 6 and {row["noise"] for row in rows} == {"S40"}
    assert rows[0]["f1"] == "61.234" and rows[2]["f1"] == ""
    assert rows[0]["remark"] == "a|b" and "macro f1" not in rows[0]


def test_latex_needs_only_booktabs() -> None:
    text = to_latex([TABLE])
    assert r"\begin{tabular}{lrr}" in text and r"\textbf{70.1}" in text
    assert r"Other \& $<$b$>$" in text and r"\emph{Ceiling}" in text
    assert text.count(r"\\") == len(TABLE.rows) + 2


def test_terminal_and_page(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables([TABLE])
    text = capsys.readouterr().out
    assert "70.1*" in text and "[b a]" in text and "a  One update left out." in text
    page = Page("t", "", (), (), [PageSection("s", "S", "", [TABLE])])
    html = render_page(page)
    assert "<strong>70.1</strong>" in html and "<sup>b a</sup>" in html
    assert "Other &amp; &lt;b&gt;" in html and "All at 5 %." in html
    assert 'http-equiv="refresh"' not in html
