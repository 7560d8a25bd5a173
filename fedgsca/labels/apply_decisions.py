"""From decisions to a corrected labels file beside the original, which is never touched."""

from __future__ import annotations

import csv
import glob
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.class_names import read_folder_names
from fedgsca.data.file_list import normal_path
from fedgsca.data.readers.folder import COLUMNS
from fedgsca.data.relabel import LabelChange, count_pairs, is_log_of, log_path, write_log
from fedgsca.data.table import ImageTable
from fedgsca.errors import ConfigError, DataError, RunFolderError
from fedgsca.labels.audit_images import content_hash
from fedgsca.labels.audit_table import Audit, find_audits, read_audit
from fedgsca.labels.consensus import Consensus, find_consensus, unknown_reviewer
from fedgsca.labels.decisions import Decision, Decisions
from fedgsca.labels.protocol import ReviewResult, load_texts, write_protocol
from fedgsca.labels.site_data import SiteData, open_audited_sites, split_source
from fedgsca.support.checked_labels import NO_ORIGINAL, CheckedLabels
from fedgsca.support.csv_table import CsvRow, CsvTable, read_csv_table, rename_columns
from fedgsca.support.files import remove_abandoned, write_atomic
from fedgsca.support.json_record import Record, stored_as

NAME = "labels.corrected"
_MARK_COLUMNS = ("checked", "original")


@dataclass(frozen=True)
class DecisionCounts(Record):
    """How many labels were reviewed, by outcome."""

    num_reviewed: int = field(metadata=stored_as("looked_at"))
    num_changed: int = field(metadata=stored_as("changed"))
    num_confirmed: int = field(metadata=stored_as("confirmed"))
    num_unsure: int = field(metadata=stored_as("unsure"))
    num_disputed: int = field(metadata=stored_as("disputed"))


@dataclass(frozen=True)
class CorrectedLabels:
    """The result of applying decisions."""

    # folder of the run that was audited
    run: Path
    # the corrected labels; None: no label changes and none was confirmed, nothing was written
    file: Path | None
    counts: DecisionCounts
    changes: Sequence[LabelChange]
    # lines of the original labels.csv whose images the run did not use; they are unchanged
    num_unused: int
    # noise was injected into the run's labels
    has_noise: bool
    # labels that the file marks as checked, with those of earlier reviews
    num_checked: int = 0
    # the page to print and sign
    protocol: Path | None = None


def apply_decisions(
    path: Path | str,
    *,
    prefer: str | None = None,
    without: Sequence[str] = (),
    out: Path | str | None = None,
    language: str = "",
) -> CorrectedLabels:
    """Write the corrected labels of one audit, or of all audits of a run.

    Labels that all reviewers agree on are changed, and they are marked as checked, also if they do
    not change; labels that nobody reviewed, disputed labels and labels that nobody could tell stay
    as given. `prefer` names the reviewer who settles disputes, `without` people whose decisions do
    not count, `out` the file to write (default: labels.corrected.csv beside the original),
    `language` that of the page to sign. Nothing is overwritten.
    """
    load_texts(language)
    audits = [read_audit(folder) for folder in find_audits(Path(path))]
    outcomes = _find_outcomes(audits, prefer, without)
    audits = [audit for audit in audits if audit.site in outcomes]
    run = (audits[0].path / audits[0].header.run).resolve()
    sites = open_audited_sites(audits[0])
    _check_source_images(sites)
    labels, checked = _read_labels(sites)
    old_labels, num_checked = labels.copy(), checked.count
    changes: list[LabelChange] = []
    for audit in audits:
        site_data, outcome = sites[audit.site], outcomes[audit.site]
        _check_decisions(audit, site_data, outcome)
        changes += _change_labels(site_data, outcome, labels, checked)
    counts = _count_outcomes(outcomes, len(changes))
    site_data = next(iter(sites.values()))
    has_noise = site_data.truth is not None
    if not changes and checked.count == num_checked:
        return CorrectedLabels(run, None, counts, changes, 0, has_noise)
    file = _choose_file(site_data, run, None if out is None else Path(out))
    content, num_unused = _render_labels(site_data, labels, checked)
    remove_abandoned(file.parent, f"{glob.escape(file.stem)}*.tmp")
    facts = _log_facts(run, outcomes, counts, changes, _describe_policy(outcomes, prefer, without))
    write_log(file, content, facts, changes)
    write_atomic(file, content)
    train = site_data.table.rows("train")
    result = ReviewResult(
        audits=audits,
        counts=counts.to_json(),
        changes=changes,
        classes=site_data.table.classes,
        old_labels=old_labels[train],
        new_labels=labels[train],
        without=without,
    )
    page = write_protocol(file, result, language)
    return CorrectedLabels(run, file, counts, changes, num_unused, has_noise, checked.count, page)


def _find_outcomes(
    audits: Sequence[Audit], prefer: str | None, without: Sequence[str]
) -> dict[str, Consensus]:
    """Site -> outcome, of the sites with decisions that count, at least one."""
    opened_decisions = {audit.site: Decisions(audit.path) for audit in audits}
    names: set[str] = set()
    for decisions in opened_decisions.values():
        names.update(decisions.reviewers())
    for name in without:
        if name not in names:
            raise unknown_reviewer(name, "--without", sorted(names), audits[0].path)
    outcomes = {}
    for site, decisions in opened_decisions.items():
        if set(decisions.reviewers()) - set(without):
            outcomes[site] = find_consensus(decisions, prefer=prefer, without=without)
    if not outcomes:
        raise RunFolderError(
            "audit.no-decisions",
            f"nobody has decided about a label in {audits[0].path} yet",
            fix=f"run `fedgsca review {audits[0].path}`",
        )
    return outcomes


def _read_labels(sites: Mapping[str, SiteData]) -> tuple[np.ndarray, CheckedLabels]:
    """(n,) class indices of the full table, as given to the sites, and which were checked."""
    table = next(iter(sites.values())).table
    labels = table.trained_on.copy()
    for site_data in sites.values():
        labels[site_data.rows] = site_data.given
    if table.checked is not None:
        return labels, CheckedLabels(table.checked.mask.copy(), table.checked.original.copy())
    n = len(table)
    return labels, CheckedLabels(np.zeros(n, bool), np.full(n, NO_ORIGINAL))


def _check_source_images(sites: Mapping[str, SiteData]) -> None:
    """Refuse a simulation with images that the data source does not have."""
    if any(site_data.table.source_table is not None for site_data in sites.values()):
        raise ConfigError(
            "audit.open-set-images",
            "the run has images of no class (noise O), which are not in the data source, so their"
            " labels cannot be corrected there",
            fix="apply decisions to a run without noise O",
        )


def _check_decisions(audit: Audit, site_data: SiteData, outcome: Consensus) -> None:
    """Refuse decisions about images or labels other than those of the data."""
    problems = []
    for row, decisions in outcome.by_row().items():
        for decision in decisions:
            problem = _find_mismatch(decision, row, site_data)
            if problem is not None:
                problems.append(f"{decision.id} {problem}")
    if problems:
        raise DataError(
            "audit.decisions-mismatch",
            f"{len(problems)} decisions in {audit.path} do not belong to this data; the first:"
            f" {problems[0]}",
            fix="restore the data as it was reviewed, or audit and review it again; nothing was"
            " written",
        )


def _find_mismatch(decision: Decision, row: int, site_data: SiteData) -> str | None:
    """Why the decision is not about this sample of the site; None if it is."""
    table = site_data.table
    table_row = site_data.rows[row] if 0 <= row < len(site_data) else None
    if table_row is None or decision.id != table.ids[table_row]:
        return f"(row {row}) is not in the data"
    if decision.given != table.classes[site_data.given[row]]:
        return f"(row {row}) has another label in the data"
    if table.split[table_row] != "train":
        return f"is a {table.split[table_row]} image, whose label is locked"
    if decision.hash != content_hash(site_data.content(row)):
        return "is a different image in the data"
    if decision.final is not None and decision.final not in table.classes:
        return f"gets the class {decision.final!r}, which does not exist"
    return None


def _change_labels(
    site_data: SiteData, outcome: Consensus, labels: np.ndarray, checked: CheckedLabels
) -> list[LabelChange]:
    """Write what reviewers agree on into `labels` and `checked`; returns the labels that change."""
    changes = []
    names = site_data.table.classes
    for row, decisions in outcome.agreements.items():
        table_row = site_data.rows[row]
        last = max(decisions, key=lambda decision: decision.time)
        old, new = int(site_data.given[row]), names.index(str(last.final))
        if not checked.mask[table_row]:
            checked.mask[table_row] = True
            checked.original[table_row] = old
        if old == new:
            continue
        labels[table_row] = new
        change = LabelChange(
            site=site_data.site,
            id=last.id,
            old=names[old],
            new=names[new],
            reviewers=", ".join(sorted({decision.reviewer for decision in decisions})),
            time=last.time,
            reason="; ".join(decision.reason for decision in decisions if decision.reason),
            hash=last.hash,
        )
        changes.append(change)
    return changes


def _count_outcomes(outcomes: Mapping[str, Consensus], num_changed: int) -> DecisionCounts:
    num_agreed = sum(len(outcome.agreements) for outcome in outcomes.values())
    num_disputed = sum(len(outcome.disputes) for outcome in outcomes.values())
    num_unsure = sum(len(outcome.unsure) for outcome in outcomes.values())
    return DecisionCounts(
        num_reviewed=num_agreed + num_disputed + num_unsure,
        num_changed=num_changed,
        num_confirmed=num_agreed - num_changed,
        num_unsure=num_unsure,
        num_disputed=num_disputed,
    )


def _log_facts(
    run: Path,
    outcomes: Mapping[str, Consensus],
    counts: DecisionCounts,
    changes: Sequence[LabelChange],
    policy: str,
) -> dict[str, Any]:
    """What the log says beside the changes themselves."""
    from fedgsca.lab.report.previous_run import snapshot_run

    reviewers: set[str] = set()
    for outcome in outcomes.values():
        for decisions in outcome.by_row().values():
            reviewers.update(decision.reviewer for decision in decisions)
    previous_run = snapshot_run(run)
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "sites": sorted(outcomes),
        "policy": policy,
        "reviewers": sorted(reviewers),
        "counts": counts.to_json(),
        "pairs": count_pairs((change.old, change.new) for change in changes),
        "before": None if previous_run is None else previous_run.to_json(),
    }


def _describe_policy(
    outcomes: Mapping[str, Consensus], prefer: str | None, without: Sequence[str]
) -> str:
    """Whose labels count, in words for the log."""
    policy = "unanimous"
    agreements = chain.from_iterable(outcome.agreements.values() for outcome in outcomes.values())
    if any(decisions[0].adjudication for decisions in agreements):
        policy += ", else the adjudication"
    if prefer is not None:
        policy += f", else {prefer}"
    if without:
        policy += f"; without {', '.join(without)}"
    return policy


def _choose_file(site_data: SiteData, run: Path, out: Path | None) -> Path:
    """`out`, which must not exist yet, or by default an unused name beside the original."""
    if out is None:
        path = _default_file(site_data, run)
        other_paths = (path.with_name(f"{path.stem}-{number}.csv") for number in count(2))
        return next(file for file in chain([path], other_paths) if not _is_in_use(file))
    if _is_in_use(out):
        raise RunFolderError(
            "file.already-exists",
            f"{out} already exists and is not overwritten",
            fix="choose another --out",
        )
    return out


def _is_in_use(path: Path) -> bool:
    """Whether the file or its log exists.

    A log without its file is what `apply` leaves when it is killed: it is written again.
    """
    if path.exists():
        return True
    return log_path(path).exists() and not is_log_of(path)


def _default_file(site_data: SiteData, run: Path) -> Path:
    """In the folder of the data or beside its file; for built-in data, in the run's folder."""
    if site_data.root is not None:
        return site_data.root / f"{NAME}.csv"
    _, source = split_source(site_data.source)
    if source.is_file():
        return source.with_name(f"{source.stem}.{NAME}.csv")
    return run / f"{NAME}.csv"


def _render_labels(
    site_data: SiteData, labels: np.ndarray, checked: CheckedLabels
) -> tuple[bytes, int]:
    """The corrected file, and how many of its lines are for images that the run did not use."""
    table = site_data.table
    original = _read_original(site_data) or _list_images(table)
    position = {normal_path(str(name)): row for row, name in enumerate(table.ids)}
    new_columns = [name for name in _MARK_COLUMNS if name not in original.columns]
    rows = []
    num_unused = 0
    for _, cells in original.rows:
        cells = {**dict.fromkeys(new_columns, ""), **cells}
        table_row = position.get(normal_path(cells["file"]))
        if table_row is not None:
            cells |= _render_marks(table, table_row, checked)
        if table_row is None:
            num_unused += 1
        elif table.split[table_row] == "train":
            cells["label"] = table.classes[labels[table_row]]
        else:  # one spelling in the whole file
            cells["label"] = table.class_names.get(cells["label"], cells["label"])
        rows.append([cells[column] for column in (*original.columns, *new_columns)])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([(*original.header, *new_columns), *rows])
    return text.getvalue().encode(), num_unused


def _list_images(table: ImageTable) -> CsvTable:
    """A labels.csv of the training images, for data that has none."""
    header = ("file", "label")
    names = table.ids[table.rows("train")].tolist()
    rows = tuple(CsvRow(0, {"file": str(name), "label": ""}) for name in names)
    return CsvTable(header, header, rows)


def _render_marks(table: ImageTable, row: int, checked: CheckedLabels) -> dict[str, str]:
    """The cells that say whether a person has checked a label, and what it was before."""
    original = int(checked.original[row])
    return {
        "checked": "1" if checked.mask[row] else "",
        "original": "" if original == NO_ORIGINAL else table.classes[original],
    }


def _read_original(site_data: SiteData) -> CsvTable | None:
    """The labels.csv of a folder, if it lists every image of the table.

    A published data set may have a labels.csv of another kind.
    """
    if site_data.root is None:
        return None
    for path in sorted(site_data.root.iterdir()):
        if path.name.lower() == "labels.csv":
            sheet = _rename_marks(read_csv_table(path), site_data.root)
            return sheet if _lists_every_image(sheet, site_data.table) else None
    return None


def _rename_marks(sheet: CsvTable, root: Path) -> CsvTable:
    """Marks that names.toml calls otherwise get their usual names, which --labels knows, too."""
    own_names = read_folder_names(root, COLUMNS).columns
    names = {key: name for key, name in own_names.items() if name in _MARK_COLUMNS}
    columns = zip(sheet.columns, sheet.header, strict=True)
    header = tuple(names.get(column, own_name) for column, own_name in columns)
    return replace(rename_columns(sheet, names), header=header)


def _lists_every_image(sheet: CsvTable, table: ImageTable) -> bool:
    if not {"file", "label"} <= set(sheet.columns):
        return False
    files = {normal_path(cells["file"]) for _, cells in sheet.rows}
    return files >= set(map(str, table.ids))
