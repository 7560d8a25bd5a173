"""Plain files for other labelling tools: suspects go out, people's decisions come back."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedgsca.errors import DataError, RunFolderError
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import Audit, Suspect
from fedgsca.labels.decisions import MAX_REVIEWER_NAME, Decision, Decisions, resolve_action
from fedgsca.labels.exchange_formats import (
    ExchangeFormat,
    ReviewBatch,
    Verdict,
    read_cleanlab,
    read_fiftyone,
    read_label_studio,
    write_cleanlab,
    write_fiftyone,
    write_label_studio,
)
from fedgsca.support.text import did_you_mean, one_line, printable

FORMATS: Mapping[str, ExchangeFormat] = {
    "cleanlab": ExchangeFormat(write_cleanlab, read_cleanlab),
    "label-studio": ExchangeFormat(write_label_studio, read_label_studio),
    "fiftyone": ExchangeFormat(write_fiftyone, read_fiftyone),
}
_MAX_NOTE = 2000  # characters
_MAX_SECONDS = 1e6


def export_suspects(
    audit: Audit,
    format_name: str,
    out: Path,
    *,
    all_labels: bool = False,
    reviewer: str | None = None,
) -> list[Path]:
    """Write the priority list, or all labels, in another tool's format; returns the files.

    `reviewer` says whose decisions are included. Nothing is overwritten.
    """
    if out.exists():
        raise RunFolderError(
            "file.already-exists",
            f"{out} already exists and is not overwritten",
            fix="choose another --out",
        )
    decisions = _decisions_to_export(audit, reviewer)
    suspects = audit.ranked_labels() if all_labels else audit.suspects()
    batch = ReviewBatch(audit, suspects, decisions, AuditImages.open(audit))
    return _find_format(format_name).write(out, batch)


def _decisions_to_export(audit: Audit, reviewer: str | None) -> Mapping[int, Decision]:
    """Row -> decision of this reviewer, or of the only one."""
    decisions = Decisions(audit.path)
    if reviewer is not None:
        return decisions.by_reviewer(reviewer)
    names = decisions.reviewers()
    if len(names) > 1:
        raise DataError(
            "audit.several-reviewers",
            f"several people have decided about these labels: {', '.join(names)}",
            fix="add --reviewer NAME to say whose decisions to export",
        )
    return decisions.by_reviewer(names[0]) if names else {}


def import_verdicts(
    audit: Audit, format_name: str, path: Path, *, reviewer: str | None = None
) -> dict[str, int]:
    """Add another tool's verdicts as decisions: all of them or, if one does not fit, none.

    `reviewer` replaces the names in the file. Returns reviewer -> number of new decisions, which is
    0 if all of them were imported before.
    """
    verdicts = _read_verdicts(audit, format_name, path)
    ids = {verdict.id for verdict in verdicts}
    suspects = {suspect.id: suspect for suspect in audit.ranked_labels() if suspect.id in ids}
    problems = []
    for verdict in verdicts:
        problem = _find_mismatch(verdict, suspects.get(verdict.id), audit.classes)
        if problem is not None:
            problems.append(problem)
    if problems:
        raise DataError(
            "audit.import-mismatch",
            f"{len(problems)} of {len(verdicts)} entries of {path} do not belong to {audit.path};"
            f" the first: {problems[0]}",
            fix="give a file that was exported from this audit; nothing was added",
        )
    decisions = Decisions(audit.path)
    counts: Counter[str] = Counter()
    for verdict in verdicts:
        name = reviewer or verdict.reviewer
        decision = _decision_of(verdict, suspects[verdict.id], name)
        is_new = decisions.add(decision) is decision
        counts[name] += int(is_new)
    return dict(counts)


def _read_verdicts(audit: Audit, format_name: str, path: Path) -> list[Verdict]:
    try:
        verdicts = list(_find_format(format_name).read(path, audit))
        return [_clean_verdict(verdict) for verdict in verdicts]
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        OverflowError,
    ) as error:
        problem = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError):
            problem = error.strerror or str(error)
        raise DataError(
            "audit.unreadable-import",
            f"{path} cannot be read as a file of {format_name}: {one_line(problem)}",
            fix="give the file that the tool exported",
        ) from error


def _clean_verdict(verdict: Verdict) -> Verdict:
    """The verdict with texts that a file and a terminal can contain, and a possible duration."""
    seconds = verdict.seconds
    if seconds is not None and not 0 <= seconds < _MAX_SECONDS:
        seconds = None
    return replace(
        verdict,
        reviewer=one_line(verdict.reviewer, MAX_REVIEWER_NAME) or "unknown",
        reason=printable(verdict.reason)[:_MAX_NOTE],
        seconds=seconds,
    )


def _find_format(name: str) -> ExchangeFormat:
    if name not in FORMATS:
        raise DataError(
            "audit.unknown-format",
            f"there is no exchange format named {name!r}",
            fix=f"{did_you_mean(name, FORMATS)}use --format with one of: {', '.join(FORMATS)}",
        )
    return FORMATS[name]


def _find_mismatch(
    verdict: Verdict, suspect: Suspect | None, classes: tuple[str, ...]
) -> str | None:
    """Why the verdict is not about a label of this audit; None if it is."""
    if suspect is None:
        return f"{verdict.id}: there is no such image"
    if verdict.hash is not None and verdict.hash != suspect.hash:
        return f"{verdict.id}: the audit has a different image of this name"
    if verdict.label is not None and verdict.label not in classes:
        return f"{verdict.id}: there is no class named {verdict.label!r}"
    return None


def _decision_of(verdict: Verdict, suspect: Suspect, reviewer: str) -> Decision:
    action, label = resolve_action(suspect, verdict.label)
    # the same verdict read twice is one decision
    digest = hashlib.sha256(repr((reviewer, verdict)).encode()).hexdigest()[:24]
    return Decision(
        reviewer=reviewer,
        row=suspect.row,
        id=suspect.id,
        hash=suspect.hash,
        given=suspect.given,
        action=action,
        label=label,
        reason=verdict.reason,
        seconds=verdict.seconds,
        request=f"import-{digest}",
    )
