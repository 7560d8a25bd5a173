"""Tables as hospitals export them become labels.csv and names.toml after one question."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsca.cli import execute
from fedgsca.data.load import load
from fedgsca.data.table_import import column_of, read_import, write_import
from fedgsca.errors import DataError
from tests.dicoms import write_dicom
from tests.toys import toy_images

HEADER = ("Bilddatei", "Befund", "Patientennr.", "Alter", "Anschrift")
LABELS = ("Gesund", "gesund", "GESUND", "Krebs", "krebs ", "Adenom")


def write_pictures(root: Path, names: Sequence[str]) -> None:
    from PIL import Image

    for name, picture in zip(names, toy_images(np.arange(len(names)) % 3), strict=True):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(root / name)


def write_xlsx(path: Path, sheets: dict[str, Sequence[Sequence[str]]]) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
    book.save(path)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Semicolons, Windows-1252, backslashes, a drive, NFD names on the disk, two sheets."""
    root = tmp_path / "export"
    names = []
    for i in range(36):
        name = f"Bilder/Größe {i % 2}/Präparat_{i:02d}.PNG"
        names.append(unicodedata.normalize("NFD", name) if i % 3 else name)
    write_pictures(root, names)
    rows = [(*HEADER,)]
    for i, name in enumerate(names):
        cell = "C:\\Export\\" + unicodedata.normalize("NFC", name).replace("/", "\\").lower()
        label = "unklar" if i in (5, 30) else LABELS[i % 6]
        rows.append((cell, label, f"P{i // 4:03d}", str(40 + i), "Straße 5"))
    rows.append(("D:\\weg.png", "Gesund", "P099", "1", "x"))
    lines = "\r\n".join(";".join(row) for row in rows[:20])
    (root / "Export.csv").write_bytes(lines.encode("cp1252"))
    write_xlsx(
        root / "Export.xlsx",
        {"Januar": [HEADER, *rows[20:30]], "leer": [], "Februar": [HEADER, *rows[30:], rows[32]]},
    )
    return root


def test_a_messy_export_becomes_a_table_in_one_step(export: Path) -> None:
    result = read_import(export)
    assert result.columns == {"Bilddatei": "file", "Befund": "label", "Patientennr.": "group"}
    assert result.ignored_columns == ["Alter", "Anschrift"]
    assert result.missing_files == ["D:\\weg.png"] and len(result.repeated_files) == 1
    assert dict(result.labels_left_out) == {"unklar": 2}
    assert list(result.spellings) == ["gesund", "Krebs", "Adenom"]  # the most frequent one
    write_import(result)
    table = load(str(export))
    assert table.classes == ("Adenom", "Krebs", "gesund")
    assert len(table) == 34 and table.groups is not None and len(set(table.groups)) == 9
    with pytest.raises(DataError, match="exists"):
        write_import(result)


def test_every_column_is_kept_and_apply_would_find_it(export: Path) -> None:
    write_import(read_import(export))
    lines = (export / "labels.csv").read_text().splitlines()
    assert lines[0] == ",".join(HEADER) and all("Straße 5" in line for line in lines[1:])


@pytest.mark.parametrize(
    ("header", "column"),
    [
        ("Dateiname", "file"),
        ("nom du fichier", "file"),
        ("File_Name", "file"),
        ("DIAGNOSE", "label"),
        ("Catégorie", "label"),
        ("N° patient", "group"),
        ("Patienten-Nr.", "group"),
        ("Study Instance UID", "group"),
        ("Hôpital", "site"),
        ("Alter", None),
    ],
)
def test_headers_in_three_languages(header: str, column: str | None) -> None:
    assert column_of(header) == column


def test_signs_and_negations_stay_different_classes(tmp_path: Path) -> None:
    names = [f"{i}.png" for i in range(8)]
    write_pictures(tmp_path, names)
    labels = ("HER2+", "HER2-", "her2 +", "HER2 -", "HER2+", "HER2-", "HER2+", "HER2-")
    lines = [f"{name},{label}" for name, label in zip(names, labels, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["image,finding", *lines]))
    result = read_import(tmp_path)
    assert {name: sum(counts.values()) for name, counts in result.spellings.items()} == {
        "HER2+": 4,
        "HER2-": 4,
    }


def test_columns_are_known_by_their_contents(tmp_path: Path) -> None:
    names = [f"scan {i}.png" for i in range(12)]
    write_pictures(tmp_path / "a", names)
    lines = [f"{i};a/{name};{'x' if i % 2 else 'y'}" for i, name in enumerate(names)]
    (tmp_path / "t.csv").write_text("\n".join(["nr;spalte2;spalte3", *lines]))
    assert read_import(tmp_path).columns == {"spalte2": "file", "spalte3": "label"}
    result = read_import(tmp_path, columns={"nr": "group"})
    assert result.columns["nr"] == "group"
    (tmp_path / "t.csv").write_text("a;b\n1;2\n")
    with pytest.raises(DataError, match="--column"):
        read_import(tmp_path)


def test_an_ambiguous_name_is_never_guessed(tmp_path: Path) -> None:
    write_pictures(tmp_path, ["a/1.png", "b/1.png", "b/2.png", "b/3.png"])
    (tmp_path / "t.csv").write_text("file,label\nX:\\1.png,u\nX:\\b\\2.png,u\nX:\\3.png,v\n")
    result = read_import(tmp_path)
    assert result.ambiguous_files == ["X:\\1.png"]
    assert [row[0] for row in result.rows] == ["b/2.png", "b/3.png"]


def test_rows_find_dicom_files_by_their_study(tmp_path: Path) -> None:
    """A PACS export: folders without suffixes, anonymous patients, the study in the table."""
    pytest.importorskip("pydicom")
    lines = ["StudyInstanceUID;Befund"]
    for study in range(6):
        uid = f"1.2.826.0.1.{study + 1}"
        for i in range(2):
            path = tmp_path / f"ST{study}" / f"IM{i}"
            path.parent.mkdir(exist_ok=True)
            elements: dict[str, Any] = {"StudyInstanceUID": uid, "SOPInstanceUID": f"{uid}.{i}"}
            pixels = np.full((12, 12), 40 * study + i, np.uint8)
            write_dicom(path, pixels, PatientID="ANONYMOUS", **elements)
        lines.append(f"{uid};{'krank' if study % 2 else 'gesund'}")
    (tmp_path / "liste.csv").write_text("\n".join(lines))
    write_import(read_import(tmp_path))
    table = load(str(tmp_path))
    assert len(table) == 12 and table.groups is not None and len(set(table.groups)) == 6


def test_one_question_is_asked_and_no_means_no(
    export: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.confirm", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert execute(["data", "import", str(export)]) == 130
    assert not (export / "labels.csv").exists()
    text = capsys.readouterr().out
    assert "D:\\weg.png" in text and "unklar (2)" in text
    assert execute(["data", "import", str(export), "--yes"]) == 0
    assert execute(["data", "check", str(export)]) == 0
    assert execute(["data", "import", str(export), "--json"]) == DataError.exit_code  # it exists


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (("Grad III", "grad I", "Grad II"), ["grad I", "Grad II", "Grad III"]),
        (("BI-RADS 10", "BI-RADS 2", "BI-RADS 4"), ["BI-RADS 2", "BI-RADS 4", "BI-RADS 10"]),
        (("normal", "Grad I", "Grad II"), []),
    ],
)
def test_numbered_grades_are_an_order(
    labels: tuple[str, ...], order: list[str], tmp_path: Path
) -> None:
    names = [f"{i}.png" for i in range(9)]
    write_pictures(tmp_path, names)
    lines = [f"{name},{labels[i % 3]}" for i, name in enumerate(names)]
    (tmp_path / "t.csv").write_text("\n".join(["file,label", *lines]))
    result = read_import(tmp_path)
    assert result.order == order
    write_import(result)
    assert load(str(tmp_path)).order == tuple(order)
