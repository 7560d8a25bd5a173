"""Plain files for other label tools: the list goes out with its suggestions, what people decided there comes back as decisions.

A format is a module with `write(out, batch)` and `read(path, audit)`, named in FORMATS.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fedgsca.errors import DataError, RunFolderError
from fedgsca.label_audit.audit_images import Images
from fedgsca.label_audit.audit_table import Audit, Suspect
from fedgsca.label_audit.decisions import Decision, Decisions

FORMATS = {"cleanlab": "cleanlab", "label-studio": "label_studio", "fiftyone": "fiftyone"}
UNSURE = "cannot tell"


@dataclass(frozen=True)
class Batch:
    """What goes out: labels in the order of suspicion, what one reviewer decided about them, and their images."""

    audit: Audit
    suspects: Iterable[Suspect]
    decided: Mapping[int, Decision]  # row -> decision
    images: Images


@dataclass(frozen=True)
class Verdict:
    """What comes back: somebody's label for one image."""

    id: str
    label: str | None  # None: cannot tell
    reviewer: str
    hash: str | None = None
    reason: str = ""
    seconds: float | None = None


def export(
    audit: Audit, kind: str, out: Path, *, everything: bool = False, reviewer: str | None = None
) -> list[Path]:
    """Write the priority list, or everything, in another tool's format. Nothing is overwritten."""
    if out.exists():
        raise RunFolderError(
            "todo.--init---1",
            f"{out} exists, and nothing is overwritten",
            fix="choose another --out",
        )
    store = Decisions(audit.path)
    people = store.reviewers()
    if reviewer is None and len(people) > 1:
        raise DataError(
            "todo.--init---2",
            f"several people decided here: {', '.join(people)}",
            fix="--reviewer NAME says whose decisions go out",
        )
    decided = store.of(reviewer or (people[0] if people else ""))
    suspects = (s for s in audit.suspects() if everything or s.priority)
    written: list[Path] = _module(kind).write(
        out, Batch(audit, suspects, decided, Images.open(audit))
    )
    return written


def bring_in(audit: Audit, kind: str, path: Path, *, reviewer: str | None = None) -> dict[str, int]:
    """Add another tool's verdicts as decisions; all of them or, if one does not fit, none. Returns how many by reviewer."""
    try:
        verdicts: list[Verdict] = list(_module(kind).read(path, audit))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise DataError(
            "todo.--init---3",
            f"{path} cannot be read as {kind}: {why}",
            fix="give the file that the tool exported",
        ) from error
    wanted = {verdict.id for verdict in verdicts}
    known = {suspect.id: suspect for suspect in audit.suspects() if suspect.id in wanted}
    wrong = [
        problem
        for verdict in verdicts
        if (problem := _misfit(verdict, known.get(verdict.id), audit.classes))
    ]
    if wrong:
        raise DataError(
            "todo.--init---4",
            f"{len(wrong)} of {len(verdicts)} entries of {path} do not belong to {audit.path}, first: {wrong[0]}",
            fix="give a file that was exported from this audit; nothing was added",
        )
    store, counts = Decisions(audit.path), dict[str, int]()
    for verdict in verdicts:
        name = reviewer or verdict.reviewer
        store.add(_decision(verdict, known[verdict.id], name))
        counts[name] = counts.get(name, 0) + 1
    return counts


def _module(kind: str) -> Any:
    if kind not in FORMATS:
        raise DataError(
            "todo.--init---5", f"unknown format {kind!r}", fix=f"--format {', '.join(FORMATS)}"
        )
    return import_module(f"fedgsca.label_audit.exchange.{FORMATS[kind]}")


def _misfit(verdict: Verdict, suspect: Suspect | None, classes: tuple[str, ...]) -> str | None:
    if suspect is None:
        return f"{verdict.id}: no such image"
    if verdict.hash is not None and verdict.hash != suspect.hash:
        return f"{verdict.id}: another image has this name"
    if verdict.label is not None and verdict.label not in classes:
        return f"{verdict.id}: there is no class {verdict.label!r}"
    return None


def _decision(verdict: Verdict, suspect: Suspect, reviewer: str) -> Decision:
    label = None if verdict.label == suspect.given else verdict.label
    action = (
        "unsure"
        if verdict.label is None
        else "keep"
        if label is None
        else "accept"
        if label == suspect.suggested
        else "change"
    )
    # the same verdict read twice is one decision
    name = hashlib.sha256(repr((reviewer, verdict)).encode()).hexdigest()[:24]
    return Decision(
        reviewer, suspect.row, suspect.id, suspect.hash, suspect.given, action, label,
        reason=verdict.reason, seconds=verdict.seconds, request=f"import-{name}",
    )  # fmt: skip
