"""Which images a folder holds and what they are: from labels.csv, or from one sub-folder per class.

Nothing is decoded here. Every problem is collected, so that a person repairs a list once and not line by line.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from fedgsca.data.decode.image_files import SUFFIXES, is_image
from fedgsca.errors import DataError
from fedgsca.support.csv_table import plain, read_csv_table

COLUMNS = ("file", "label", "group", "split", "site")
_SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
_SPLITS = {alias: split for split, aliases in _SPLIT_NAMES.items() for alias in aliases}


@dataclass(frozen=True)
class Row:
    """One image of the list; columns that the source lacks are empty."""

    file: str
    label: str
    group: str = ""
    split: str = ""
    site: str = ""
    given: str = ""  # the label a site trains on, where `label` is known to be better: a reference or the truth
    name: str = ""  # the image's id where the file's name tells too much


@dataclass(frozen=True)
class Problem:
    """One kind of problem, with all its cases."""

    what: str  # "missing files"; empty if the one case says everything
    cases: tuple[str, ...]
    fix: str

    def __str__(self) -> str:
        if not self.what:
            return self.cases[0]
        shown = ", ".join(self.cases[:5]) + (", ..." if len(self.cases) > 5 else "")
        return f"{len(self.cases)} {self.what if len(self.cases) > 1 else _one(self.what)}: {shown}"


def _one(what: str) -> str:
    """A kind of problem in the singular: "class folders are missing" -> "class folder is missing"."""
    if not what.startswith("of "):  # 1 of 40 images
        odd = {"classes": "class", "entries": "entry"}
        what = re.sub(r"\b\w+[^\Ws]s\b", lambda noun: odd.get(noun[0], noun[0][:-1]), what, count=1)
    for several, single in (("are", "is"), ("hold", "holds"), ("leave", "leaves")):
        what = re.sub(rf"\b{several}\b", single, what, count=1)
    return what


@dataclass(frozen=True)
class Branch:
    """A folder of the tree, how many images it holds, and how many were published."""

    folder: str
    images: int
    published: int | None = None


@dataclass
class Listing:
    """Rows in order, with everything that is wrong and everything worth knowing."""

    root: Path
    rows: list[Row] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    source: str = ""  # as typed after --data
    name: str = ""  # of the data set; default: the folder's
    classes: tuple[str, ...] = ()  # in the published order; default: sorted
    group_word: str = "group"  # what a group is here: patient, slide, video
    tree: list[Branch] = field(default_factory=list)
    lists: list[Path] = field(default_factory=list)  # the csv, xlsx or json files that were read
    published: dict[str, dict[str, int]] = field(
        default_factory=dict
    )  # split -> class (or "all") -> images
    published_sites: dict[str, int] = field(default_factory=dict)

    def problem(self, what: str, cases: Iterable[str], fix: str) -> None:
        found = tuple(cases)
        if found:
            self.problems.append(Problem(what, found, fix))

    def sha256(self) -> str:
        """Names the list: file, labels, group, split and site of every image, in the order of files."""
        lines = (
            "\t".join((r.file, r.label, r.given, r.group, r.split, r.site))
            for r in sorted(self.rows, key=lambda r: r.file)
        )
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def stopped(self, error: DataError) -> None:
        """An error that ended the listing, as a problem among the others."""
        self.problem("", [error.message], error.fix)

    def refuse(self) -> None:
        """Raise all problems as one error."""
        if self.problems:
            fixes = list(dict.fromkeys(problem.fix for problem in self.problems))
            where = "" if not self.problems[0].what else f"{self.root}: "
            raise DataError(
                "todo.file-list-1", where + "; ".join(map(str, self.problems)), fix="; ".join(fixes)
            )


def list_folder(root: Path) -> Listing:
    """The folder's list; problems are inside, not raised."""
    listing = Listing(root)
    if not root.is_dir():
        listing.problem("missing folders", [str(root)], "check the path given with --data")
        return listing
    table = next(
        (p for p in sorted(root.iterdir()) if p.name.lower() == "labels.csv" and p.is_file()), None
    )
    try:
        if table is not None:
            _from_csv(listing, table)
        else:
            _from_folders(listing)
    except DataError as error:  # a csv that cannot be read at all
        listing.problem("unusable lists", [error.message], error.fix)
    return listing


def _from_csv(listing: Listing, path: Path) -> None:
    sheet = read_csv_table(path)
    listing.notes.extend(sheet.notes)
    listing.columns = tuple(name for name in COLUMNS if name in sheet.columns)
    unknown = [w for c, w in zip(sheet.columns, sheet.written, strict=True) if c not in COLUMNS]
    listing.problem("unknown columns", map(_nearest, unknown), f"allowed are {', '.join(COLUMNS)}")
    missing = [name for name in ("file", "label") if name not in sheet.columns]
    listing.problem(
        "missing columns",
        missing,
        "the first line of labels.csv must be file,label[,group][,split][,site]",
    )
    if missing:
        return
    if not sheet.rows:
        listing.problem("lists without images", [path.name], "add one line per image")
    listing.rows = [
        Row(
            normal(values["file"]),
            values["label"],
            *(values.get(name, "") for name in ("group", "split", "site")),
        )
        for _, values in sheet.rows
    ]
    _check_files(listing)
    _check_cells(listing, [number for number, _ in sheet.rows])
    listing.rows = [
        Row(r.file, r.label, r.group, _SPLITS.get(plain(r.split), r.split), r.site)
        for r in listing.rows
    ]


def _nearest(column: str) -> str:
    near = difflib.get_close_matches(plain(column), COLUMNS, n=1, cutoff=0.5)
    return f"{column!r}" + (f" (did you mean {near[0]}?)" if near else "")


def normal(name: str) -> str:
    """One spelling per file: forward slashes, no './'."""
    return str(PurePosixPath(name.replace("\\", "/"))) if name else ""


def _check_files(listing: Listing) -> None:
    names = [row.file for row in listing.rows if row.file]
    outside = [
        n
        for n in names
        if n.startswith("/") or ".." in PurePosixPath(n).parts or ":" in n.split("/")[0]
    ]
    listing.problem(
        "paths that leave the folder",
        dict.fromkeys(outside),
        "write paths relative to the folder of labels.csv, without ..",
    )
    twice = [name for name, count in Counter(names).items() if count > 1]
    listing.problem("files listed more than once", twice, "keep one line per image")
    inside = dict.fromkeys(n for n in names if n not in set(outside))
    listing.problem(
        "missing files",
        (n for n in inside if not (listing.root / n).is_file()),
        "copy the files there or remove their lines",
    )
    odd = [n for n in inside if (listing.root / n).is_file() and not is_image(listing.root / n)]
    listing.problem("files of an unknown type", odd, f"use one of {', '.join(SUFFIXES)}")


def _check_cells(listing: Listing, lines: list[int]) -> None:
    def empty(column: str) -> list[str]:
        return [
            f"line {line}"
            for line, row in zip(lines, listing.rows, strict=True)
            if not getattr(row, column)
        ]

    for column in ("file", "label", "split", "site"):
        if column in listing.columns:
            listing.problem(
                f"empty cells in column {column}",
                empty(column),
                f"fill in the {column} or remove the line",
            )
    wrong = dict.fromkeys(
        row.split for row in listing.rows if row.split and plain(row.split) not in _SPLITS
    )
    listing.problem("unknown splits", wrong, "a split is train, val or test")
    if "group" in listing.columns and empty("group"):
        listing.notes.append(
            f"{len(empty('group'))} images without a group: each counts as its own group"
        )


def list_files(root: Path) -> list[str]:
    """All files below a folder by name, without hidden ones and what macOS adds to archives."""
    files = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
    return [
        f for f in files if not any(part.startswith((".", "__MACOSX")) for part in f.split("/"))
    ]


def _from_folders(listing: Listing) -> None:
    """`<class>/<image>`, or `<split>/<class>/<image>` when all top folders are called train, val or test."""
    root = listing.root
    files = list_files(root)
    images = [f for f in files if is_image(root / f)]
    tables = [f for f in files if f.endswith((".csv", ".xlsx", ".json"))]
    hint = f" (is {tables[0]} the list? labels.csv is the name that is read)" if tables else ""
    if not images:
        listing.problem(
            "folders without images",
            [f"{root.name or root}{hint}"],
            f"put {', '.join(SUFFIXES)} files there",
        )
        return
    tops = {f.split("/")[0] for f in images if "/" in f}
    by_split = bool(tops) and all(plain(top) in _SPLITS for top in tops)
    depth = 2 if by_split else 1
    loose = [f for f in images if f.count("/") < depth]
    listing.problem(
        "images without a label",
        loose,
        f"add a labels.csv, or sort the images into one folder per class{hint}",
    )
    listing.columns = ("file", "label", "split") if by_split else ("file", "label")
    for name in images:
        parts = name.split("/")
        if len(parts) > depth:
            listing.rows.append(
                Row(name, parts[depth - 1], split=_SPLITS[plain(parts[0])] if by_split else "")
            )
    listing.notes.append("no labels.csv: the folders' names are the labels")
    if len(files) > len(images):
        listing.notes.append(f"{len(files) - len(images)} files that are no images were ignored")
