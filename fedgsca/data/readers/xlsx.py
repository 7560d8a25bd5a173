"""Excel tables: the only file that imports openpyxl, of the [odir] extra."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from fedgsca.errors import DataError, MissingExtraError
from fedgsca.support.text import fold_name


class XlsxRow(NamedTuple):
    """One row: its number in the sheet, and its cells by column name."""

    line: int
    cells: dict[str, str]


def read_xlsx(path: Path, columns: Sequence[str]) -> list[XlsxRow]:
    """The rows of the first sheet with these columns; other columns and empty rows are skipped."""
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
            fix="copy the published .xlsx file again",
        ) from None
    try:
        return _read_rows(book, path, columns)
    finally:
        book.close()


def _read_rows(book: Any, path: Path, columns: Sequence[str]) -> list[XlsxRow]:
    """Streamed row by row."""
    lines: Iterator[Sequence[object]] = iter(())
    if book.worksheets:
        lines = book.worksheets[0].iter_rows(values_only=True)
    header = [_text(cell) for cell in next(lines, ())]
    folded_header = [fold_name(name) for name in header]
    missing_columns = [name for name in columns if fold_name(name) not in folded_header]
    if missing_columns:
        present_columns = ", ".join(name for name in header if name) or "none"
        raise DataError(
            "data.missing-column",
            f"{path} must have the columns {', '.join(missing_columns)}, but it has: "
            f"{present_columns}",
            fix=f"write {', '.join(columns)} in the first line of the first sheet",
        )
    position = {name: folded_header.index(fold_name(name)) for name in columns}
    rows = []
    for number, line in enumerate(lines, start=2):
        cells = {name: _text(_cell(line, i)) for name, i in position.items()}
        if any(cells.values()):
            rows.append(XlsxRow(number, cells))
    return rows


def _cell(line: Sequence[object], i: int) -> object:
    return line[i] if i < len(line) else None  # trailing empty cells are not stored


def _text(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()
