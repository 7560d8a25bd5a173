"""From the tables that a hospital exports to labels.csv and names.toml: `fedgsca data import`.

Columns are guessed from German, French and English headers and from their contents; rows find
their images whatever drive, slash, capitals or form of umlauts the table writes, or by the UIDs of
DICOM files. labels.csv keeps every column of the export; names.toml says which of them count, and
which spellings of a class are one class. Nothing is written before a person has seen all of it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fedgsca.data import dicom
from fedgsca.data.class_names import FILE as NAMES_FILE
from fedgsca.data.file_list import list_files, normal_path
from fedgsca.data.image_files import is_image
from fedgsca.errors import DataError
from fedgsca.support.csv_table import read_csv_table, read_xlsx_tables, render_csv
from fedgsca.support.files import FileBatch
from fedgsca.support.text import fold_name, plural

LABELS_FILE = "labels.csv"
# headers as hospitals write them, without capitals, spaces and punctuation
_HEADERS: Mapping[str, str] = {
    "file": "datei bild dateiname bilddatei pfad dateipfad image images filename path "
    "imagepath filepath imgname fichier nomfichier nomdufichier chemin imagefile "
    "sopinstanceuid sopuid",
    "label": "klasse befund diagnose hauptdiagnose kategorie einstufung grad class diagnosis "
    "dx target category finding grade classe diagnostic categorie resultat "
    "etiquette",
    "group": "fall fallnummer fallnr patient patientid patientennummer patientennr patnr "
    "patid pid praeparat praparat slide case caseid lesion lesionid video "
    "numeropatient numpatient nopatient idpatient dossier studyinstanceuid studyuid "
    "mrn",
    "split": "set subset partition fold aufteilung jeu datensatz",
    "site": "klinik krankenhaus standort hospital center centre clinic institution hopital "
    "etablissement haus",
    "checked": "reviewed verified confirmed geprueft gepruft verifie controle",
}
# cells that say that nobody has decided
_NO_LABELS = (
    "inconnu inconnue na nan nichtbeurteilbar nonclasse null offen tbd unbekannt unclear unklar"
    " unknown"
)
_GRADE = re.compile(r"(.*?[^\dIVX]|)(\d+|[IVX]+)")  # "Grad II", "BI-RADS 3"
_ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6}
_UID = re.compile(r"[0-2](\.\d+){4,}")
_MAX_CLASS_SHARE = 0.3  # of the rows: a column with more different values is no column of labels


@dataclass
class TableImport:
    """What would be written, and everything that a person should see before."""

    root: Path
    tables: list[str] = field(default_factory=list)
    header: list[str] = field(default_factory=list)
    # own header -> our column
    columns: dict[str, str] = field(default_factory=dict)
    # the rows that found their image and have a label; cells in the order of `header`
    rows: list[list[str]] = field(default_factory=list)
    # class -> its spellings, with their numbers of rows
    spellings: dict[str, Counter[str]] = field(default_factory=dict)
    # how images were found -> rows: "as written", "below another folder", ...
    ways: Counter[str] = field(default_factory=Counter)
    missing_files: list[str] = field(default_factory=list)
    ambiguous_files: list[str] = field(default_factory=list)
    repeated_files: list[str] = field(default_factory=list)
    labels_left_out: Counter[str] = field(default_factory=Counter)
    num_unlisted: int = 0

    @property
    def ignored_columns(self) -> list[str]:
        """Columns that stay in labels.csv and mean nothing to us."""
        return [name for name in self.header if name not in self.columns]

    @property
    def order(self) -> list[str]:
        """The classes from the lowest grade to the highest, if their names are numbered."""
        grades: dict[str, int] = {}
        stems = set()
        for name in self.spellings:
            match = _GRADE.fullmatch(name)
            if match is None:
                return []
            stems.add(match[1].casefold())
            number = match[2]
            grades[name] = int(number) if number.isdecimal() else _ROMAN.get(number, 0)
        is_one_scale = len(stems) == 1 and len(set(grades.values())) == len(grades) > 1
        return sorted(grades, key=lambda name: grades[name]) if is_one_scale else []

    @property
    def class_names(self) -> dict[str, str]:
        """Other spelling -> the class."""
        names: dict[str, str] = {}
        for name, spellings in self.spellings.items():
            names |= dict.fromkeys(sorted(spellings), name)
        return names


def fold_word(text: str) -> str:
    """Letters and digits without capitals, accents and punctuation: "N° Patient" -> "nopatient"."""
    text = text.replace("\N{LATIN SMALL LETTER SHARP S}", "ss").replace("\N{DEGREE SIGN}", "o")
    letters = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in letters if letter.isalnum())


def column_of(header: str) -> str | None:
    """Our column that a header means, in three languages; None if it means none."""
    word = fold_word(header)
    for column, words in _HEADERS.items():
        if word == column or word in words.split():
            return column
    return None


# ---- the import ----


def read_import(
    root: Path, tables: Sequence[Path] = (), columns: Mapping[str, str] | None = None
) -> TableImport:
    """Read the tables of an export, by default all in the folder, and match them with its images.

    `columns` (own_name header -> ours) overrules what is guessed.
    """
    if not root.is_dir():
        raise DataError(
            "data.folder-not-found",
            f"the folder {root} does not exist",
            fix="give the folder that contains the images",
        )
    paths = list(tables) or _find_tables(root)
    result = TableImport(root)
    rows: list[dict[str, str]] = []
    for path in paths:
        if path.suffix.lower() == ".xlsx":
            tables_of_file = read_xlsx_tables(path)
        else:
            tables_of_file = [("", read_csv_table(path))]
        for sheet, table in tables_of_file:
            name = f"{path.name}/{sheet}" if sheet else path.name
            result.tables.append(f"{name} ({plural(len(table.rows), 'row')})")
            names = dict(zip(table.columns, table.header, strict=True))
            for own_name in table.header:
                if own_name not in result.header:
                    result.header.append(own_name)
            for row in table.rows:
                rows.append({names[column]: cell for column, cell in row.cells.items()})
    images = _ImageIndex(root)
    result.columns = _guess_columns(result.header, rows, images, dict(columns or {}))
    key_column = next(own_name for own_name, column in result.columns.items() if column == "file")
    if any(_UID.fullmatch(row.get(key_column, "")) for row in rows):
        _add_file_column(result, key_column)
    _match_rows(result, rows, images, key_column)
    return result


def _add_file_column(result: TableImport, key_column: str) -> None:
    """UIDs stay in the table, beside a new column of files; those of studies are groups."""
    del result.columns[key_column]
    if column_of(key_column) == "group" and "group" not in result.columns.values():
        result.columns[key_column] = "group"
    result.header.insert(0, "file")
    result.columns = {"file": "file", **result.columns}


def _find_tables(root: Path) -> list[Path]:
    paths = []
    for path in sorted(root.iterdir()):
        is_table = path.suffix.lower() in (".csv", ".tsv", ".txt", ".xlsx")
        is_ours = path.name == LABELS_FILE and (root / NAMES_FILE).exists()
        if is_table and path.is_file() and not path.name.startswith(("~$", ".")) and not is_ours:
            paths.append(path)
    if not paths:
        raise DataError(
            "data.no-tables",
            f"{root} contains no csv or xlsx file",
            fix="name the tables: fedgsca data import FOLDER TABLE.xlsx OTHER.csv",
        )
    return paths


# ---- images ----


class _ImageIndex:
    """The images of a folder, by everything that a table may call them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = [name for name in list_files(root) if is_image(root / name)]
        self._by_key: dict[str, list[str]] = defaultdict(list)
        for name in self.files:
            for key in _path_keys(name):
                self._by_key[key].append(name)

    @cached_property
    def _by_uid(self) -> dict[str, list[str]]:
        files: dict[str, list[str]] = defaultdict(list)
        for name in self.files:
            for uid in dicom.read_uids(self.root / name).values():
                files[uid].append(name)
        return files

    def find(self, cell: str) -> tuple[list[str], str]:
        """The images that a cell means, and how they were found."""
        if _UID.fullmatch(cell):
            return self._by_uid.get(cell, []), "by the UID of DICOM files"
        name = normal_path(cell)
        if name in self._by_key and self._by_key[name] == [name]:
            return [name], "as written"
        keys = _path_keys(name)  # from the complete path to the name of the file
        for key in keys:
            if key in self._by_key:
                is_respelt = key == keys[0]
                way = "another spelling" if is_respelt else "below another folder or drive"
                return self._by_key[key], way
        return [], ""


def _path_keys(name: str) -> list[str]:
    """The path in one spelling, then without its first folder or drive, down to the file's name."""
    parts = unicodedata.normalize("NFC", name).casefold().split("/")
    return ["/".join(parts[i:]) for i in range(len(parts))]


# ---- columns ----


def _guess_columns(
    header: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    images: _ImageIndex,
    columns: dict[str, str],
) -> dict[str, str]:
    """Own header -> our column: by its words, the file and the label also by their contents."""
    sample = rows[:200]

    def share_found(name: str) -> float:
        count = sum(bool(row.get(name)) and bool(images.find(row[name])[0]) for row in sample)
        return count / max(len(sample), 1)

    def share_filled(name: str) -> float:
        return sum(bool(row.get(name)) for row in sample)

    candidates: dict[str, list[str]] = defaultdict(list)
    for own_name in header:
        column = column_of(own_name)
        if column is not None and own_name not in columns:
            candidates[column].append(own_name)
    for column, names in candidates.items():
        if column not in columns.values():
            # of several headers that mean one column, the one that names images, or is filled
            share = share_found if column == "file" else share_filled
            columns[max(names, key=share)] = column
    file_columns = [own_name for own_name, column in columns.items() if column == "file"]
    if not file_columns or share_found(file_columns[0]) == 0:
        open_names = [name for name in header if columns.get(name) in (None, "file", "group")]
        best = max(open_names, key=share_found, default="")
        if best and share_found(best) > 0:
            columns = {own_name: name for own_name, name in columns.items() if name != "file"}
            columns[best] = "file"
    if "label" not in columns.values():
        open_names = [name for name in header if name not in columns]
        likely = [name for name in open_names if _is_class_column(name, rows)]
        if len(likely) == 1:
            columns[likely[0]] = "label"
    absent = [name for name in ("file", "label") if name not in columns.values()]
    if absent:
        raise DataError(
            "data.missing-column",
            f"{images.root}: no column of the tables looks like the {' or the '.join(absent)};"
            f" the columns are {', '.join(header)}",
            fix=f"say which one it is: --column 'HEADER={absent[0]}'",
        )
    return columns


def _is_class_column(name: str, rows: Sequence[Mapping[str, str]]) -> bool:
    values = {row.get(name, "") for row in rows} - {""}
    return 2 <= len(values) <= max(2, _MAX_CLASS_SHARE * len(rows))


# ---- rows ----


def _match_rows(
    result: TableImport, rows: Iterable[Mapping[str, str]], images: _ImageIndex, key_column: str
) -> None:
    headers = {column: own_name for own_name, column in result.columns.items()}
    file_column, label_column = headers["file"], headers["label"]
    spellings: dict[str, Counter[str]] = defaultdict(Counter)
    chosen_files: set[str] = set()
    for row in rows:
        cell, label = row.get(key_column, ""), row.get(label_column, "")
        if not label.strip("? ") or fold_word(label) in _NO_LABELS.split():
            result.labels_left_out[label or "(empty)"] += 1
            continue
        files, way = images.find(cell)
        is_study = way.startswith("by the UID")
        if not files:
            result.missing_files.append(cell or "(empty)")
            continue
        if len(files) > 1 and not is_study:
            result.ambiguous_files.append(cell)
            continue
        for file in files:
            if file in chosen_files:
                result.repeated_files.append(file)
                continue
            chosen_files.add(file)
            result.ways[way] += 1
            spellings[_fold_label(label)][label] += 1
            cells = {**row, file_column: file}
            result.rows.append([cells.get(own_name, "") for own_name in result.header])
    result.num_unlisted = len(images.files) - len(chosen_files)
    for counts in spellings.values():
        result.spellings[_main_spelling(counts)] = counts


def _fold_label(label: str) -> str:
    """Without capitals, spaces and forms of umlauts; signs count: HER2+ is not HER2-."""
    text = unicodedata.normalize("NFKC", label).casefold()
    return "".join(text.split()).replace("_", "")


def _main_spelling(counts: Counter[str]) -> str:
    """The most frequent spelling, composed; of equals one with a capital, and not all of them."""

    def rank(spelling: str) -> tuple[int, bool, bool, str]:
        return -counts[spelling], spelling.isupper(), spelling.islower(), spelling

    name = min(counts, key=rank)
    return unicodedata.normalize("NFC", " ".join(name.split()))


# ---- files ----


def write_import(result: TableImport) -> list[Path]:
    """Write labels.csv and names.toml into the folder of the images; nothing is overwritten."""
    paths = check_target(result.root)
    files = FileBatch()
    files.write(paths[0], render_csv([result.header, *result.rows]).encode())
    files.write(paths[1], render_names(result).encode())
    files.commit()
    return paths


def check_target(root: Path) -> list[Path]:
    """The files that an import writes; an error if one of them exists."""
    paths = [root / LABELS_FILE, root / NAMES_FILE]
    for path in paths:
        if path.exists():
            raise DataError(
                "data.import-exists",
                f"{path} exists",
                fix=f"rename it, for example to export-{path.name}; if it is a table of the export,"
                " it is read under any name",
            )
    return paths


def render_names(result: TableImport) -> str:
    """The content of names.toml."""
    lines = ["# Written by fedgsca data import. Classes: what the export says = the class.", ""]
    if result.order:
        lines += [f"order = {_toml(result.order)}", ""]
    if result.ignored_columns:
        lines += [f"ignore = {_toml(result.ignored_columns)}", ""]
    lines.append("[classes]")
    for own_name, name in result.class_names.items():
        lines.append(f"{_toml(own_name)} = {_toml(name)}")
    lines += ["", "[columns]"]
    for own_name, column in result.columns.items():
        if fold_name(own_name) != column:
            lines.append(f"{_toml(own_name)} = {_toml(column)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
