"""Small csv files as people make them: any common encoding, commas or semicolons."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NamedTuple

from fedgsca.errors import DataError, MissingExtraError
from fedgsca.support.text import fold_name, one_line

# What the column `checked` may contain, in any capitals.
_CHECK_MARKS = {"1": True, "true": True, "0": False, "false": False, "": False}
# A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


class CsvRow(NamedTuple):
    """One row: its line number in the file, and its stripped cells by folded column name."""

    line: int
    cells: dict[str, str]


@dataclass(frozen=True)
class CsvTable:
    """A csv file. `columns` are folded names (see fold_name), `header` the names in the file."""

    columns: tuple[str, ...]
    header: tuple[str, ...]
    rows: tuple[CsvRow, ...]
    notes: tuple[str, ...] = ()


class LabelLine(NamedTuple):
    """One line of a csv of labels: its number in the file, the image and the label, as written."""

    line: int
    image_id: str
    label: str
    # a person has checked the label; None: the file has no column `checked`
    checked: bool | None = None
    # the label before the check; "": not known
    original: str = ""


def read_csv_table(path: Path) -> CsvTable:
    """Read a csv file, without empty lines; a row with more cells than the header is an error."""
    text, notes = read_text(path)
    delimiter = _detect_delimiter(text.split("\n", 1)[0])
    lines = _split_cells(path, text, delimiter)
    if not lines:
        raise DataError(
            "data.empty-csv",
            f"the csv file {path} is empty",
            fix="write a header line and one line per image",
        )
    header = lines[0][1]
    while header and not header[-1]:  # spreadsheets like to leave empty columns behind
        header = header[:-1]
    columns = [fold_name(name) for name in header]
    for i, name in enumerate(columns):
        if name in columns[:i]:
            raise DataError(
                "data.duplicate-column",
                f"{path} has more than one column {name!r}",
                fix="remove or rename one of them",
            )
    rows = []
    for line, cells in lines[1:]:
        if any(cells[len(columns) :]):
            raise DataError(
                "data.csv-row-too-long",
                f"line {line} of {path} has {len(cells)} cells, but the header has {len(columns)}",
                fix=f"put quotes around cells that contain '{delimiter}'",
            )
        missing_cells = [""] * (len(columns) - len(cells))
        rows.append(CsvRow(line, dict(zip(columns, cells + missing_cells, strict=False))))
    return CsvTable(tuple(columns), tuple(header), tuple(rows), notes)


def read_xlsx_tables(path: Path) -> list[tuple[str, CsvTable]]:
    """Name and content of every sheet of an Excel file that is not empty, without empty rows."""
    if find_spec("openpyxl") is None:
        raise MissingExtraError(
            "extra.odir-missing",
            f"a package that is needed to read {path.name} is not installed",
            fix="run pip install 'fedgsca[odir]'",
        )
    import openpyxl

    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except OSError as error:
        raise DataError(
            "data.unreadable-xlsx",
            f"the Excel file {path} cannot be read: {error.strerror or error}",
            fix="check the path and the permissions of the file",
        ) from None
    except Exception as error:  # openpyxl raises many types for files that are not workbooks
        raise DataError(
            "data.invalid-xlsx",
            f"{path} is not an Excel workbook: {error}",
            fix="copy the file again, or save it as xlsx",
        ) from None
    try:
        tables = []
        for sheet in book.worksheets:
            lines = []
            for line in sheet.iter_rows(values_only=True):
                lines.append([_cell_text(cell) for cell in line])
            tables.append((str(sheet.title), _sheet_table(lines)))
    finally:
        book.close()
    return [(name, table) for name, table in tables if table.header]


def _sheet_table(lines: Sequence[Sequence[str]]) -> CsvTable:
    """Columns without a header, and repeated ones, are left out."""
    header = list(lines[0]) if lines else []
    position: dict[str, int] = {}
    for i, name in enumerate(header):
        if name:
            position.setdefault(fold_name(name), i)
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        # trailing empty cells are not stored
        cells = {name: line[i] if i < len(line) else "" for name, i in position.items()}
        if any(cells.values()):
            rows.append(CsvRow(number, cells))
    return CsvTable(tuple(position), tuple(header[i] for i in position.values()), tuple(rows))


def _cell_text(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


def rename_columns(table: CsvTable, names: Mapping[str, str]) -> CsvTable:
    """The table with other names for some columns; `names` are folded name -> new name."""
    columns = tuple(names.get(column, column) for column in table.columns)
    for i, name in enumerate(columns):
        if name in columns[:i]:
            raise DataError(
                "data.duplicate-column",
                f"two columns are both called {name!r}: {table.header[columns.index(name)]!r} and"
                f" {table.header[i]!r}",
                fix="remove one of them, or its line in names.toml",
            )
    rows = []
    for row in table.rows:
        cells = {names.get(column, column): cell for column, cell in row.cells.items()}
        rows.append(CsvRow(row.line, cells))
    return CsvTable(columns, table.header, tuple(rows), table.notes)


def require_columns(path: Path, table: CsvTable, names: Sequence[str], *, fix: str) -> None:
    """Raise DataError if the table of a file lacks one of these columns, in any spelling."""
    missing_names = [name for name in names if fold_name(name) not in table.columns]
    if missing_names:
        raise DataError(
            "data.missing-column",
            f"{path} must have the columns {', '.join(missing_names)}, but it has: "
            f"{', '.join(table.header) or 'none'}",
            fix=fix,
        )


def read_label_lines(path: Path) -> list[LabelLine]:
    """Read labels from a csv with the columns file (or id) and label.

    The columns checked and original are optional; other columns are ignored.

    This is the only reader of such files: the same spellings, separators and encodings work
    wherever labels are given.
    """
    table = read_csv_table(path)
    id_column = "id" if "id" in table.columns else "file"
    require_columns(path, table, (id_column, "label"), fix="write file,label in the first line")
    marks: Sequence[bool | None] = [None] * len(table.rows)
    if "checked" in table.columns:
        marks = parse_checked(path, table.rows)
    lines = []
    for (line, cells), mark in zip(table.rows, marks, strict=True):
        original = cells.get("original", "") if mark else ""
        lines.append(LabelLine(line, cells[id_column], cells["label"], mark, original))
    return lines


def parse_checked(path: Path, rows: Sequence[CsvRow]) -> list[bool]:
    """The column `checked` of a csv of labels: whether a person has checked each label."""
    marks = []
    cases = []
    for line, cells in rows:
        mark = _CHECK_MARKS.get(cells["checked"].lower())
        if mark is None:
            cases.append(f"{one_line(cells['checked'], 40)!r} in line {line}")
        marks.append(bool(mark))
    if cases:
        raise DataError(
            "data.checked-value",
            f"{path}: {len(cases)} of {len(rows)} values in the column checked cannot be read,"
            f" first: {cases[0]}",
            fix="write 1 or true for a label that a person has checked, and 0, false or nothing for"
            " any other",
        )
    return marks


def render_csv(rows: Iterable[Sequence[object]]) -> str:
    """Rows as csv text. A cell that looks like a formula gets an apostrophe in front of it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for cells in rows:
        writer.writerow([_defuse_formula(cell) for cell in cells])
    return text.getvalue()


def write_cells(handle: IO[bytes], cells: Sequence[object]) -> None:
    """Write one csv line. A cell that looks like a formula gets an apostrophe in front of it."""
    # file names may be any bytes
    handle.write(render_csv([cells]).encode("utf-8", "surrogateescape"))


def _defuse_formula(cell: object) -> object:
    if isinstance(cell, str) and cell.startswith(_FORMULA_SIGNS):
        return f"'{cell}"
    return cell


def _detect_delimiter(header: str) -> str:
    return max(",;\t", key=header.count)  # the comma wins ties: one column needs no separator


def _split_cells(path: Path, text: str, delimiter: str) -> list[tuple[int, list[str]]]:
    """The lines that are not empty, as (line number, stripped cells)."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    lines = []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                lines.append((reader.line_num, cells))
    except csv.Error as error:
        raise DataError(
            "data.invalid-csv",
            f"line {reader.line_num} of {path} is not valid csv: {error}",
            fix="save the table as csv again",
        ) from error
    return lines


def read_text(path: Path) -> tuple[str, tuple[str, ...]]:
    """The file's text, and a note if its encoding had to be guessed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            "data.unreadable-csv",
            f"the csv file {path} cannot be read: {error.strerror}",
            fix="check the path and the permissions of the file",
        ) from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace"), ()
    try:
        return data.decode("utf-8-sig"), ()
    except UnicodeDecodeError:
        note = f"{path.name} is not UTF-8 and was read as Windows-1252"
        return data.decode("cp1252", errors="replace"), (note,)
