"""The ranked list of one site's labels on disk: written once, streamed, read by position without loading it.

audit.json      what was audited and the summary; written last: without it there is no audit
suspects.jsonl  one label per line, the most suspicious first; all labels of the site
suspects.idx    one record per line of suspects.jsonl: where it starts, and what the list is filtered by
audit.csv       the same list for a spreadsheet
clean.json      per class the rows of the most certainly right examples

Class names, never numbers, stand in these files. They hold file names and stay at the site.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.support.csv_table import write_cells
from fedgsca.support.files import open_atomic, remove_quietly, write_atomic

VERSION = 1
RECORD = np.dtype(
    [("offset", "<u8"), ("row", "<u4"), ("given", "<u2"), ("suggested", "<u2"), ("priority", "<u4")]
)


@dataclass(frozen=True)
class Suspect:
    """One label and what speaks against it."""

    rank: int  # from 1
    row: int  # of the site's samples, from 0
    id: str  # as in the data's labels.csv
    hash: str  # of the decoded pixels, see images.content_hash
    given: str
    suggested: str  # the most probable other class
    probability: float  # of `suggested`, averaged over the rounds
    others: tuple[
        tuple[str, float], ...
    ]  # the next two, the given class among them where it is one of them
    suspicion: float  # 0 to 1, higher is worse; the list is sorted by it
    rounds: int  # in which the model looked at the sample before it trained on it
    votes: int  # of these, rounds in which it said `suggested`
    posterior: float | None  # of "clean", from the method's own selector, where it has one
    reason: str
    priority: bool  # within the review quota
    opinions: Mapping[str, tuple[str, float]] = field(
        default_factory=dict
    )  # who -> label and how sure

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), ensure_ascii=False).encode() + b"\n"

    @staticmethod
    def from_json(line: bytes) -> Suspect:
        read: dict[str, Any] = json.loads(line)
        pairs = tuple((str(name), float(p)) for name, p in read.pop("others"))
        opinions = {
            who: (str(name), float(p)) for who, (name, p) in read.pop("opinions", {}).items()
        }
        return Suspect(**read, others=pairs, opinions=opinions)


COLUMNS = tuple(f.name for f in fields(Suspect) if f.name not in ("others", "opinions"))


@dataclass(frozen=True)
class Audit:
    """An audit folder, opened. The list stays on the disk."""

    path: Path
    header: Mapping[str, Any]

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.header["classes"])

    @cached_property
    def index(self) -> np.ndarray:
        """(n,) of RECORD, in the order of ranks."""
        with damaged(self.path / "suspects.idx"):
            found: np.ndarray = np.fromfile(self.path / "suspects.idx", RECORD)
            if len(found) != self.header["scored"]:
                raise ValueError(f"{len(found)} entries instead of {self.header['scored']}")
        return found

    @cached_property
    def clean(self) -> Mapping[str, list[dict[str, Any]]]:
        """Class name -> [{"row", "hash"}], the most certain first."""
        with damaged(self.path / "clean.json"):
            return dict(json.loads((self.path / "clean.json").read_bytes()))

    def __len__(self) -> int:
        return int(self.header["scored"])

    def suspects(self) -> Iterator[Suspect]:
        """All labels, the most suspicious first, one line in memory at a time."""
        with (
            damaged(self.path / "suspects.jsonl"),
            open(self.path / "suspects.jsonl", "rb") as handle,
        ):
            for line in handle:
                yield Suspect.from_json(line)

    def ranks(
        self, *, given: str | None = None, suggested: str | None = None, priority: bool = True
    ) -> np.ndarray:
        """Positions from 0 in the list that pass the filter, ascending. `priority`: only those within the review quota."""
        keep = self.index["priority"] == 1 if priority else np.ones(len(self.index), bool)
        for column, name in (("given", given), ("suggested", suggested)):
            if name is not None:
                keep &= self.index[column] == self.number(name)
        return np.flatnonzero(keep)

    def window(
        self,
        start: int,
        count: int,
        *,
        given: str | None = None,
        suggested: str | None = None,
        priority: bool = True,
    ) -> list[Suspect]:
        """`count` labels of the filtered list from position `start`; fewer at its end."""
        return self.at(
            self.ranks(given=given, suggested=suggested, priority=priority)[
                max(start, 0) : max(start, 0) + count
            ]
        )

    def at(self, positions: Iterable[int]) -> list[Suspect]:
        """The labels at these positions (rank - 1) of the whole list."""
        found = []
        with (
            damaged(self.path / "suspects.jsonl"),
            open(self.path / "suspects.jsonl", "rb") as handle,
        ):
            for position in positions:
                handle.seek(int(self.index["offset"][position]))
                found.append(Suspect.from_json(handle.readline()))
        return found

    def by_row(self, row: int) -> Suspect | None:
        """The label of one of the site's samples; None for a row that it does not have."""
        where = (
            np.flatnonzero(self.index["row"] == row) if 0 <= row < 2**32 else np.zeros(0, np.int64)
        )
        return self.at(where[:1])[0] if len(where) else None

    def number(self, name: str) -> int:
        try:
            return self.classes.index(name)
        except ValueError:
            known = ", ".join(self.classes)
            raise RunFolderError(
                "todo.audit-table-1",
                f"{self.path}: there is no class {name!r}",
                fix=f"the classes are {known}",
            ) from None


def write_audit(
    folder: Path,
    header: Mapping[str, Any],
    suspects: Iterable[Suspect],
    clean: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Audit:
    """Write all files of an audit. `suspects` may be a generator; they must come in the order of their ranks."""
    remove_quietly(folder / "audit.json")  # an audit that is being replaced is not complete
    number = {name: i for i, name in enumerate(header["classes"])}
    count = 0
    with (
        open_atomic(folder / "suspects.jsonl") as lines,
        open_atomic(folder / "suspects.idx") as index,
        open_atomic(folder / "audit.csv") as sheet,
    ):
        offset = 0
        write_cells(
            sheet,
            [
                *COLUMNS[:7],
                "second",
                "second_probability",
                "third",
                "third_probability",
                *COLUMNS[7:],
                "opinions",
            ],
        )
        for suspect in suspects:
            record = (
                offset,
                suspect.row,
                number[suspect.given],
                number[suspect.suggested],
                suspect.priority,
            )
            index.write(np.array(record, RECORD).tobytes())
            offset += lines.write(suspect.to_json())
            write_cells(sheet, _cells(suspect))
            count += 1
    write_atomic(folder / "clean.json", _dump(clean))
    whole = {**header, "version": VERSION, "scored": count, "columns": list(COLUMNS)}
    write_atomic(folder / "audit.json", _dump(whole))
    return Audit(folder, whole)


def read_audit(path: Path) -> Audit:
    """The audit in this folder; a run's folder, or its audit/, will do if only one site was audited."""
    found = find_audits(path)
    if len(found) > 1:
        sites = ", ".join(folder.name for folder in found)
        raise RunFolderError(
            "todo.audit-table-2",
            f"{path} has audits of several sites: {sites}",
            fix=f"name one, for example {found[0]}",
        )
    with damaged(found[0] / "audit.json"):
        header = dict(json.loads((found[0] / "audit.json").read_bytes()))
        if header["version"] != VERSION:
            raise ValueError(f"it has version {header['version']}, this program reads {VERSION}")
    return Audit(found[0], header)


def find_audits(path: Path) -> list[Path]:
    """Folders of complete audits at, or under, this path, in the order of site names."""
    if (path / "audit.json").is_file():
        return [path]
    found = [
        p.parent for inner in (path, path / "audit") for p in sorted(inner.glob("*/audit.json"))
    ]
    if not found:
        raise RunFolderError(
            "todo.audit-table-3",
            f"there is no audit in {path}",
            fix="make one with `fedgsca audit RUN`, then give RUN/audit/SITE",
        )
    return found


@contextlib.contextmanager
def damaged(path: Path) -> Iterator[None]:
    """What is wrong with a file of the audit, in words."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise RunFolderError(
            "todo.audit-table-4",
            f"{path} is damaged or missing: {what}",
            fix="run `fedgsca audit` again; decisions are kept apart and stay",
        ) from error


def _cells(suspect: Suspect) -> list[object]:
    flat = [_plain(getattr(suspect, name)) for name in COLUMNS]
    padded = [*suspect.others, ("", ""), ("", "")][:2]
    said = "; ".join(
        f"{who}: {label} {p:.2f}" for who, (label, p) in sorted(suspect.opinions.items())
    )
    return [*flat[:7], *(_plain(cell) for pair in padded for cell in pair), *flat[7:], said]


def _plain(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else value


def _dump(value: object) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"
