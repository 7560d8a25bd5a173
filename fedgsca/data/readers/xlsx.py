"""Excel tables: the only file that imports openpyxl, of the [odir] extra."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fedgsca.errors import DataError, MissingExtraError
from fedgsca.support.csv_table import plain


def read_xlsx(path: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """(row number, cells by the names in `columns`) of the first sheet; other columns are not read. Streamed row by row."""
    if find_spec("openpyxl") is None:
        raise MissingExtraError(
            "todo.xlsx-1",
            f"reading {path.name} needs a package that is not installed",
            fix="pip install -c constraints.txt 'fedgsca[odir]'",
        )
    import openpyxl

    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except OSError as error:
        raise DataError(
            "todo.xlsx-2",
            f"{path}: {error.strerror or error}",
            fix="check the path and that you may read the file",
        ) from None
    except Exception as error:  # openpyxl raises many types for what is no workbook
        raise DataError(
            "todo.xlsx-3",
            f"{path} is not an Excel workbook: {error}",
            fix="copy the published .xlsx file again",
        ) from None
    try:
        lines = book.worksheets[0].iter_rows(values_only=True) if book.worksheets else iter(())
        header = [plain(_text(cell)) for cell in next(lines, ())]
        missing = [name for name in columns if plain(name) not in header]
        if missing:
            found = ", ".join(name for name in header if name) or "nothing"
            raise DataError(
                "todo.xlsx-4",
                f"{path}: no column {', '.join(missing)} (found: {found})",
                fix=f"the first sheet needs a first line with {', '.join(columns)}",
            )
        place = {name: header.index(plain(name)) for name in columns}
        rows = [
            (n, {name: _text(_cell(line, i)) for name, i in place.items()})
            for n, line in enumerate(lines, start=2)
        ]
        return [(n, cells) for n, cells in rows if any(cells.values())]
    finally:
        book.close()


def _cell(line: Sequence[object], i: int) -> object:
    return line[i] if i < len(line) else None  # trailing empty cells are not stored


def _text(cell: object) -> str:
    if cell is None:
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()
