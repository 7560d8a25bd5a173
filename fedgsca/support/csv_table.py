"""Small csv files as people make them: any common encoding, commas or semicolons, spaces and capitals in the header."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedgsca.errors import DataError


@dataclass(frozen=True)
class CsvTable:
    """Rows of stripped strings; columns by their plain name (lower case, no spaces)."""

    columns: tuple[str, ...]  # plain
    written: tuple[str, ...]  # as they stand in the file
    rows: tuple[
        tuple[int, dict[str, str]], ...
    ]  # (line number in the file, values by plain column name)
    notes: tuple[str, ...] = ()


def plain(name: str) -> str:
    """A column name without what people vary: capitals, spaces, underscores, hyphens."""
    return "".join(c for c in name.lower() if c not in " _-\t")


def read_csv_table(path: Path) -> CsvTable:
    """The file's rows; empty lines are skipped, a row with more cells than the header is an error."""
    text, notes = _text(path)
    delimiter = _delimiter(text.split("\n", 1)[0])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise DataError(
            "todo.csv-table-1",
            f"{path}: line {reader.line_num}: {error}",
            fix="save the table again as csv",
        ) from error
    lines = [(number, cells) for number, cells in lines if any(cells)]
    if not lines:
        raise DataError(
            "todo.csv-table-2",
            f"{path}: the file is empty",
            fix="it needs a header line and one line per image",
        )
    header = lines[0][1]
    while header and not header[-1]:  # spreadsheets like to leave empty columns behind
        header = header[:-1]
    columns = tuple(plain(name) for name in header)
    twice = [name for i, name in enumerate(columns) if name in columns[:i]]
    if twice:
        raise DataError(
            "todo.csv-table-3",
            f"{path}: the column {twice[0]!r} stands twice",
            fix="keep one of them",
        )
    rows = []
    for number, cells in lines[1:]:
        if any(cells[len(columns) :]):
            fix = f"quote cells that contain '{delimiter}'"
            raise DataError(
                "todo.csv-table-4",
                f"{path}: line {number} has {len(cells)} cells, the header {len(columns)}",
                fix=fix,
            )
        padded = cells + [""] * (len(columns) - len(cells))
        rows.append((number, dict(zip(columns, padded, strict=False))))
    return CsvTable(columns, tuple(header), tuple(rows), notes)


def write_cells(handle: IO[bytes], cells: Sequence[object]) -> None:
    """One csv line. A cell that a spreadsheet would take for a formula gets an apostrophe before it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_harmless(cell) for cell in cells])
    handle.write(text.getvalue().encode())


def _harmless(cell: object) -> object:
    return (
        f"'{cell}"
        if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
        else cell
    )


def _delimiter(header: str) -> str:
    return max(",;\t", key=header.count)  # the comma wins ties: one column needs no separator


def _text(path: Path) -> tuple[str, tuple[str, ...]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            "todo.csv-table-5",
            f"{path}: {error.strerror}",
            fix="check the path and that you may read the file",
        ) from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace"), ()
    try:
        return data.decode("utf-8-sig"), ()
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace"), (
            f"{path.name} is not UTF-8 and was read as Windows-1252",
        )
