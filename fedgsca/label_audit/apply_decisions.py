"""From decisions to a corrected labels file beside the original, which is never touched."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.file_list import normal
from fedgsca.data.label_changes import Change, count_pairs, log_path, write_log
from fedgsca.data.table import Table
from fedgsca.errors import DataError, RunFolderError
from fedgsca.label_audit.audit_images import content_hash
from fedgsca.label_audit.audit_table import Audit, find_audits, read_audit
from fedgsca.label_audit.consensus import Consensus, consensus
from fedgsca.label_audit.decisions import Decision, Decisions
from fedgsca.label_audit.site_data import SiteData, check_data, open_sites
from fedgsca.support.csv_table import read_csv_table
from fedgsca.support.files import write_atomic

NAME = "labels.corrected"


@dataclass(frozen=True)
class Applied:
    """What was done."""

    run: Path
    file: Path | None  # None: no label changes, nothing was written
    counts: Mapping[str, int]
    changes: Sequence[Change]
    left_out: int  # lines of labels.csv whose images the run did not use
    noisy: bool  # the run's labels had noise injected


def apply(path: Path, *, prefer: str | None = None, out: Path | None = None) -> Applied:
    """Write the corrected labels of one audit, or of all audits of a run. Labels that nobody looked at stay as given."""
    audits = [read_audit(folder) for folder in find_audits(path)]
    opinions = {
        audit.header["site"]: consensus(store, prefer=prefer)
        for audit in audits
        if (store := _store(audit)).reviewers()
    }
    if not opinions:
        raise RunFolderError(
            "todo.apply-decisions-1",
            f"nothing has been decided in {path} yet",
            fix=f"fedgsca review {audits[0].path}",
        )
    run = (audits[0].path / audits[0].header["run"]).resolve()
    data = audits[0].header["data"]
    sites = open_sites(run, source=data["source"], labels=data.get("labels"))
    changes, labels = list[Change](), _given(sites)
    for audit in audits:
        site = audit.header["site"]
        if site in opinions:
            held = _checked(audit, sites[site], opinions[site])
            changes += _changes(held, opinions[site], labels)
    counts = _counts(opinions, changes)
    held = next(iter(sites.values()))
    noisy = held.truth is not None
    if not changes:
        return Applied(run, None, counts, changes, 0, noisy)
    file = _free(_place(held, run)) if out is None else out
    if out is not None and (out.exists() or log_path(out).exists()):
        raise RunFolderError(
            "todo.apply-decisions-2",
            f"{out} exists, and nothing is overwritten",
            fix="choose another --out",
        )
    content, left_out = _content(held, labels)
    write_log(file, content, _facts(run, opinions, counts, changes, prefer), changes)
    write_atomic(file, content)
    return Applied(run, file, counts, changes, left_out, noisy)


def _store(audit: Audit) -> Decisions:
    store = Decisions(audit.path)
    if audit.header.get("split", "train") != "train" and store.reviewers():
        raise DataError(
            "todo.apply-decisions-3",
            f"{audit.path} is an audit of {audit.header['split']} images, whose labels are locked",
            fix="correct the source by hand if you must; results before and after are then not comparable",
        )
    return store


def _given(sites: Mapping[str, SiteData]) -> np.ndarray:
    """(n,) class indices of the whole table, as given to the sites."""
    labels = next(iter(sites.values())).table.trained_on.copy()
    for held in sites.values():
        labels[held.rows] = held.given
    return labels


def _checked(audit: Audit, held: SiteData, opinion: Consensus) -> SiteData:
    """Decisions are about these very images and labels, or nothing is written."""
    check_data(held, audit.header["data"]["fingerprint"])
    table, wrong = held.table, list[str]()
    for row, said in {**opinion.settled, **opinion.disputed, **opinion.unsure}.items():
        where = held.rows[row] if 0 <= row < len(held) else None
        for decision in said:
            if (
                where is None
                or decision.id != table.ids[where]
                or decision.given != table.classes[held.given[row]]
            ):
                wrong.append(f"{decision.id} (row {row}): not in the data, or with another label")
            elif table.split[where] != "train":
                wrong.append(f"{decision.id}: a {table.split[where]} image, whose label is locked")
            elif decision.hash != content_hash(held.image(row)):
                wrong.append(f"{decision.id}: the image is another one")
            elif decision.final is not None and decision.final not in table.classes:
                wrong.append(f"{decision.id}: there is no class {decision.final!r}")
    if wrong:
        raise DataError(
            "todo.apply-decisions-4",
            f"{len(wrong)} decisions in {audit.path} do not belong to this data, first: {wrong[0]}",
            fix="restore the data as it was reviewed, or audit and review it again; nothing was written",
        )
    return held


def _changes(held: SiteData, opinion: Consensus, labels: np.ndarray) -> list[Change]:
    """Put the settled labels in place; returns those that differ."""
    found, names = [], held.table.classes
    for row, said in opinion.settled.items():
        old, new = int(held.given[row]), names.index(str(said[0].final))
        if old != new:
            labels[held.rows[row]] = new
            found.append(_change(held.site, said, names[old]))
    return found


def _change(site: str, said: Sequence[Decision], old: str) -> Change:
    last = max(said, key=lambda d: d.time)
    people = ", ".join(sorted({d.reviewer for d in said}))
    return Change(
        site,
        last.id,
        old,
        str(last.final),
        people,
        last.time,
        "; ".join(d.reason for d in said if d.reason),
        last.hash,
    )


def _counts(opinions: Mapping[str, Consensus], changes: Sequence[Change]) -> dict[str, int]:
    settled, disputed, unsure = (
        sum(len(getattr(o, kind)) for o in opinions.values())
        for kind in ("settled", "disputed", "unsure")
    )
    looked = settled + disputed + unsure
    return {
        "looked_at": looked,
        "changed": len(changes),
        "confirmed": settled - len(changes),
        "unsure": unsure,
        "disputed": disputed,
    }


def _facts(
    run: Path,
    opinions: Mapping[str, Consensus],
    counts: Mapping[str, int],
    changes: Sequence[Change],
    prefer: str | None,
) -> dict[str, Any]:
    from fedgsca.report.previous_run import snapshot

    said = [
        d
        for o in opinions.values()
        for part in (o.settled, o.disputed, o.unsure)
        for each in part.values()
        for d in each
    ]
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "sites": sorted(opinions),
        "policy": "unanimous" if prefer is None else f"unanimous, else {prefer}",
        "reviewers": sorted({d.reviewer for d in said}),
        "counts": dict(counts),
        "pairs": count_pairs((change.old, change.new) for change in changes),
        "before": snapshot(run),
    }


def _place(held: SiteData, run: Path) -> Path:
    """Beside the original: in its folder, beside its file; what is built in has none, so in the run's folder."""
    if held.root is not None:
        return held.root / f"{NAME}.csv"
    source = Path(held.source.partition(":")[2] or held.source)
    return (
        source.with_name(f"{source.stem}.{NAME}.csv") if source.is_file() else run / f"{NAME}.csv"
    )


def _free(path: Path) -> Path:
    """The first name that is not in use: labels.corrected.csv, labels.corrected-2.csv, ..."""
    number, found = 1, path
    while found.exists() or log_path(found).exists():
        number += 1
        found = path.with_name(f"{path.stem}-{number}.csv")
    return found


def _content(held: SiteData, labels: np.ndarray) -> tuple[bytes, int]:
    """The corrected file, and how many lines of the original it leaves out."""
    table, original = held.table, None
    if held.root is not None:
        original = next(
            (p for p in sorted(held.root.iterdir()) if p.name.lower() == "labels.csv"), None
        )
    if original is None or not _is_list_of(original, table):
        train = table.rows("train")
        return _csv(
            ("file", "label"), [(str(table.ids[row]), table.classes[labels[row]]) for row in train]
        ), 0
    sheet = read_csv_table(original)
    position = {str(name): row for row, name in enumerate(table.ids)}
    rows = []
    for _, cells in sheet.rows:
        row = position.get(normal(cells["file"]))
        if row is not None:
            new = table.classes[labels[row]] if table.split[row] == "train" else cells["label"]
            rows.append([new if column == "label" else cells[column] for column in sheet.columns])
    return _csv(sheet.written, rows), len(sheet.rows) - len(rows)


def _is_list_of(path: Path, table: Table) -> bool:
    """Whether every image of the table stands in this list; a published data set may have a labels.csv of another kind."""
    sheet = read_csv_table(path)
    return {"file", "label"} <= set(sheet.columns) and set(map(str, table.ids)) <= {
        normal(c["file"]) for _, c in sheet.rows
    }


def _csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().encode()
