"""The ranked list of one site's labels on disk: written as a stream, read by position.

    audit.json      AuditSummary; written last: a folder without it is not an audit
    suspects.jsonl  one label per line, the most suspicious first; all labels of the site
    suspects.idx    one record per line of suspects.jsonl: its offset, and the columns to filter by
    audit.csv       the same list for a spreadsheet
    clean.json      per class the rows of the most certainly correct examples

These files contain class names, never class numbers. They contain file names and stay at the site.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.federation.records import AuditSummary, LabelSummary
from fedgsca.labels.decisions import Decisions
from fedgsca.labels.score import evidence_level
from fedgsca.support.csv_table import write_cells
from fedgsca.support.files import (
    make_private_folder,
    open_atomic,
    remove_abandoned,
    remove_quietly,
    write_atomic,
)
from fedgsca.support.text import did_you_mean

VERSION = 1
INDEX_RECORD = np.dtype(
    [("offset", "<u8"), ("row", "<u4"), ("given", "<u2"), ("suggested", "<u2"), ("priority", "<u4")]
)


@dataclass(frozen=True)
class Suspect:
    """One label and the evidence against it: a line of suspects.jsonl."""

    # from 1
    rank: int
    # of the site's samples, from 0
    row: int
    # as in the data's labels.csv
    id: str
    # of the decoded pixels, see audit_images.content_hash
    hash: str
    given: str
    # the most probable class other than `given`
    suggestion: str
    # of `suggestion`
    probability: float
    # the next two classes with their probabilities; `given` may be one of them
    runners_up: tuple[tuple[str, float], ...]
    # 0 to 1, higher is worse; the list is sorted by it
    suspicion: float
    reason: str
    # on the priority list
    priority: bool
    # name of the second opinion -> label and confidence
    opinions: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    # identical and near-identical images with another label: row, id and label of each
    copies: tuple[tuple[int, str, str], ...] = ()

    def to_json(self) -> bytes:
        """The line of suspects.jsonl."""
        values = {FILE_KEYS.get(name, name): value for name, value in asdict(self).items()}
        return json.dumps(values, ensure_ascii=False).encode() + b"\n"

    @staticmethod
    def from_json(line: bytes) -> Suspect:
        """The label of a line; raises ValueError, TypeError or KeyError for anything else."""
        values: dict[str, Any] = json.loads(line)
        opinions = values.pop("opinions").items()
        return Suspect(
            suggestion=str(values.pop("suggested")),
            runners_up=tuple((str(name), float(p)) for name, p in values.pop("others")),
            opinions={source: (str(name), float(p)) for source, (name, p) in opinions},
            copies=tuple((int(row), str(a), str(b)) for row, a, b in values.pop("copies")),
            **values,
        )


FILE_KEYS = {"suggestion": "suggested", "runners_up": "others"}  # attribute -> key in the files
COLUMNS = tuple(FILE_KEYS.get(f.name, f.name) for f in fields(Suspect))
CSV_HEADER = (
    "rank",
    "row",
    "id",
    "hash",
    "given",
    "suggested",
    "evidence",
    "second",
    "third",
    "suspicion",
    "reason",
    "priority",
    "opinions",
    "copies",
)


@dataclass(frozen=True)
class Audit:
    """The audit of one site. The list of labels stays on the disk."""

    path: Path
    header: AuditSummary

    @property
    def site(self) -> str:
        """The name of the site, or "test" for an audit of test labels."""
        return self.header.site

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in index order."""
        return self.header.classes

    @property
    def summary(self) -> LabelSummary:
        """Numbers about the site's labels as a whole."""
        return self.header.summary

    @property
    def num_suspects(self) -> int:
        """The number of labels on the priority list."""
        return int(np.count_nonzero(self.index["priority"] == 1))

    @cached_property
    def index(self) -> np.ndarray:
        """(n,) of INDEX_RECORD, in the order of ranks."""
        path = self.path / "suspects.idx"
        with reading_audit_file(path):
            index: np.ndarray = np.fromfile(path, INDEX_RECORD)
            if len(index) != len(self):
                raise ValueError(f"{len(index)} entries instead of {len(self)}")
        return index

    @cached_property
    def clean(self) -> Mapping[str, tuple[int, ...]]:
        """Class name -> rows of clean examples, the most certain first."""
        path = self.path / "clean.json"
        examples = {}
        with reading_audit_file(path):
            for name, rows in dict(json.loads(path.read_bytes())).items():
                examples[str(name)] = tuple(int(row) for row in rows)
        return examples

    def __len__(self) -> int:
        """The number of labels in the list: those of the site that nobody has checked."""
        return self.header.num_labels

    def open_decisions(self) -> Decisions:
        """The decisions of all reviewers about these labels; scripts add theirs with `record`."""
        return Decisions(self.path, self.classes, self.header.order)

    def ranked_labels(self) -> Iterator[Suspect]:
        """All labels of the site, the most suspicious first, one in memory at a time."""
        return self._read(range(len(self)))

    def suspects(self) -> Iterator[Suspect]:
        """The labels on the priority list, the most suspicious first, one in memory at a time."""
        return self._read(self.positions())

    def _read(self, positions: Iterable[int]) -> Iterator[Suspect]:
        path = self.path / "suspects.jsonl"
        with reading_audit_file(path), open(path, "rb") as handle:
            for position in positions:
                handle.seek(int(self.index["offset"][position]))
                yield Suspect.from_json(handle.readline())

    def positions(
        self, *, given: str | None = None, suggestion: str | None = None, priority: bool = True
    ) -> np.ndarray:
        """Positions from 0 of the labels that pass the filter, ascending.

        `priority` selects the priority list, `given` and `suggestion` a class by name.
        """
        mask = np.ones(len(self.index), bool)
        if priority:
            mask = self.index["priority"] == 1
        if given is not None:
            mask &= self.index["given"] == self.class_index(given)
        if suggestion is not None:
            mask &= self.index["suggested"] == self.class_index(suggestion)
        return np.flatnonzero(mask)

    def window(
        self,
        start: int,
        count: int,
        *,
        given: str | None = None,
        suggestion: str | None = None,
        priority: bool = True,
    ) -> list[Suspect]:
        """`count` labels of the filtered list from position `start`; fewer at its end."""
        start = max(start, 0)
        positions = self.positions(given=given, suggestion=suggestion, priority=priority)
        return self.at(positions[start : start + count])

    def at(self, positions: Iterable[int]) -> list[Suspect]:
        """The labels at these positions (rank - 1) of the full list."""
        return list(self._read(positions))

    def class_index(self, name: str) -> int:
        """The index of a class by its name."""
        if name not in self.classes:
            raise RunFolderError(
                "audit.unknown-class",
                f"the audit in {self.path} has no class named {name!r}",
                fix=f"{did_you_mean(name, self.classes)}use one of: {', '.join(self.classes)}",
            )
        return self.classes.index(name)


def write_audit(
    folder: Path,
    header: AuditSummary,
    suspects: Iterable[Suspect],
    clean: Mapping[str, Sequence[int]],
) -> Audit:
    """Write all files of an audit. `suspects` may be a generator, in the order of the ranks.

    `version`, `num_labels` and `columns` of the header are filled in here.
    """
    make_private_folder(folder)
    remove_abandoned(folder, "*.tmp")
    remove_quietly(folder / "audit.json")  # an audit that is being replaced is not complete
    class_index = {name: i for i, name in enumerate(header.classes)}
    count = 0
    with (
        open_atomic(folder / "suspects.jsonl") as lines,
        open_atomic(folder / "suspects.idx") as index,
        open_atomic(folder / "audit.csv") as sheet,
    ):
        offset = 0
        write_cells(sheet, CSV_HEADER)
        for suspect in suspects:
            given = class_index[suspect.given]
            suggestion = class_index[suspect.suggestion]
            record = (offset, suspect.row, given, suggestion, suspect.priority)
            index.write(np.array(record, INDEX_RECORD).tobytes())
            offset += lines.write(suspect.to_json())
            write_cells(sheet, _csv_cells(suspect))
            count += 1
    write_atomic(folder / "clean.json", _dump(clean))
    header = replace(header, version=VERSION, num_labels=count, columns=COLUMNS)
    write_atomic(folder / "audit.json", _dump(header.to_json()))
    return Audit(folder, header)


def read_audit(path: Path) -> Audit:
    """The audit in this folder; a run's folder, or its audit/, will do if it has only one audit."""
    folders = find_audits(path)
    if len(folders) > 1:
        sites = ", ".join(folder.name for folder in folders)
        raise RunFolderError(
            "audit.several-sites",
            f"{path} contains audits of several sites: {sites}",
            fix=f"name the folder of one, for example {folders[0]}",
        )
    file = folders[0] / "audit.json"
    with reading_audit_file(file):
        tree = dict(json.loads(file.read_bytes()))
        version = tree["version"]
    if version != VERSION:
        raise RunFolderError(
            "audit.unknown-version",
            f"{file} has version {version}, but this program reads version {VERSION}",
            fix="run `fedgsca audit` again; decisions are kept in a file of their own",
        )
    return Audit(folders[0], AuditSummary.from_json(tree))


def find_audits(path: Path) -> list[Path]:
    """Folders of complete audits at or below this path, in the order of site names."""
    if (path / "audit.json").is_file():
        return [path]
    files = sorted(path.glob("*/audit.json")) + sorted((path / "audit").glob("*/audit.json"))
    if not files:
        raise RunFolderError(
            "audit.not-found",
            f"there is no audit in {path}",
            fix="run `fedgsca audit RUN`, then give RUN/audit/SITE",
        )
    return [file.parent for file in files]


@contextlib.contextmanager
def reading_audit_file(path: Path) -> Iterator[None]:
    """Report whatever fails in the block as a damaged or missing file of the audit."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise RunFolderError(
            "audit.damaged-file",
            f"{path} is damaged or missing: {problem}",
            fix="run `fedgsca audit` again; decisions are kept in a file of their own",
        ) from error


def _csv_cells(suspect: Suspect) -> list[object]:
    """The label as a line of audit.csv, in the order of CSV_HEADER; levels, not probabilities."""
    names = [name for name, _ in suspect.runners_up[:2]]
    opinions = [
        f"{source}: {label} ({evidence_level(confidence)})"
        for source, (label, confidence) in sorted(suspect.opinions.items())
    ]
    return [
        suspect.rank,
        suspect.row,
        suspect.id,
        suspect.hash,
        suspect.given,
        suspect.suggestion,
        evidence_level(suspect.probability),
        *[*names, "", ""][:2],
        f"{suspect.suspicion:.4f}",
        suspect.reason,
        "yes" if suspect.priority else "no",
        "; ".join(opinions),
        "; ".join(f"{name}: {label}" for _, name, label in suspect.copies),
    ]


def _dump(value: object) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"
