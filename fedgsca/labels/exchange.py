"""Plain files for other tools: suspects go out, and decisions of people come back.

cleanlab      a csv with the columns of its label issues; a person's decision is in
              `corrected_label`. A file without that column is the opinion of a program: the labels
              that it flags come back as its decisions, with "cleanlab" as the reviewer.
Label Studio  tasks with predictions as JSON, a labelling configuration, and its JSON export. Images
              of a folder are referred to as Label Studio's local storage does; images without files
              of their own are included in the tasks.
CVAT          "CVAT for images 1.1", an XML file with one tag per image. A suggestion that nobody
              touched has the source "auto" and is no decision.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from fedgsca.errors import DataError, RunFolderError
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import Audit, Suspect
from fedgsca.labels.decisions import MAX_REVIEWER_NAME, Decision, Decisions
from fedgsca.support.csv_table import read_csv_table, write_cells
from fedgsca.support.files import open_atomic, write_atomic
from fedgsca.support.text import did_you_mean, one_line, printable

UNSURE = "cannot tell"
COLUMNS = (
    "id",
    "hash",
    "given_label",
    "predicted_label",
    "label_quality",
    "is_label_issue",
    "corrected_label",
    "note",
)


@dataclass(frozen=True)
class ReviewBatch:
    """What goes out: labels in the order of suspicion, one reviewer's decisions, and the images."""

    suspects: Iterable[Suspect]
    # row -> decision
    decisions: Mapping[int, Decision]
    images: AuditImages


@dataclass(frozen=True)
class Verdict:
    """What comes back: somebody's label for one image."""

    id: str
    # None: cannot tell
    label: str | None
    reviewer: str
    hash: str | None = None
    reason: str = ""
    seconds: float | None = None


# ---- cleanlab ----


def write_cleanlab(out: Path, batch: ReviewBatch) -> list[Path]:
    """Write the labels as one csv file."""
    with open_atomic(out) as sheet:
        write_cells(sheet, COLUMNS)
        for suspect in batch.suspects:
            write_cells(sheet, _csv_cells(suspect, batch.decisions.get(suspect.row)))
    return [out]


def _csv_cells(suspect: Suspect, decision: Decision | None) -> list[str]:
    """One label in the order of COLUMNS."""
    corrected_label = ""
    note = ""
    if decision is not None:
        corrected_label = decision.final or UNSURE
        note = decision.reason
    quality = f"{1 - suspect.suspicion:.6f}"  # cleanlab: lower is worse
    return [
        suspect.id,
        suspect.hash,
        suspect.given,
        suspect.suggestion,
        quality,
        str(suspect.priority),
        corrected_label,
        note,
    ]


def read_cleanlab(path: Path) -> Iterator[Verdict]:
    """The decisions of people, or the issues that cleanlab flags."""
    sheet = read_csv_table(path)
    id_columns = [column for column in ("id", "file") if column in sheet.columns]
    if not id_columns:
        raise ValueError(f"there is no column id (columns: {', '.join(sheet.header)})")
    has_decisions = "correctedlabel" in sheet.columns
    for _, cells in sheet.rows:
        if has_decisions:
            label = _remove_apostrophe(cells["correctedlabel"])
        else:
            label = _remove_apostrophe(cells["predictedlabel"])
            if cells["islabelissue"].lower() not in ("true", "1"):
                continue
        if label:
            yield Verdict(
                id=_remove_apostrophe(cells[id_columns[0]]),
                label=None if label == UNSURE else label,
                reviewer="cleanlab",
                hash=cells.get("hash") or None,
                reason=_remove_apostrophe(cells.get("note", "")),
            )


def _remove_apostrophe(cell: str) -> str:
    """The cell without the apostrophe that protects spreadsheets from formulas."""
    return cell[1:] if cell.startswith("'") and cell[1:2] in "=+-@" else cell


# ---- Label Studio ----


def write_label_studio(out: Path, batch: ReviewBatch) -> list[Path]:
    """Write the tasks as JSON, and the labelling configuration beside them."""
    with open_atomic(out) as handle:
        handle.write(b"[")
        separator = b"\n"
        for suspect in batch.suspects:
            task = json.dumps(_build_task(suspect, batch), ensure_ascii=False)
            handle.write(separator + task.encode())
            separator = b",\n"
        handle.write(b"\n]\n")
    configuration = out.with_suffix(".config.xml")
    write_atomic(configuration, _labelling_configuration(batch.images.audit.classes).encode())
    return [out, configuration]


def _build_task(suspect: Suspect, batch: ReviewBatch) -> dict[str, Any]:
    facts = ("id", "hash", "given", "reason", "rank")
    data = {"image": _image_reference(suspect, batch)}
    prediction = {
        "model_version": "fedgsca",
        "score": suspect.suspicion,
        "result": [_answer("label", "choices", suspect.suggestion)],
    }
    task: dict[str, Any] = {
        "data": data | {name: getattr(suspect, name) for name in facts},
        "predictions": [prediction],
    }
    decision = batch.decisions.get(suspect.row)
    if decision is not None:
        result = [_answer("label", "choices", decision.final or UNSURE)]
        if decision.reason:
            result.append(_answer("note", "textarea", decision.reason))
        lead_time = decision.seconds
        task["annotations"] = [{"result": result, "lead_time": lead_time, "was_cancelled": False}]
    return task


def _answer(name: str, kind: str, text: str) -> dict[str, Any]:
    """One choice or text, in the words of the labelling configuration."""
    key = "choices" if kind == "choices" else "text"
    return {"from_name": name, "to_name": "image", "type": kind, "value": {key: [text]}}


def _image_reference(suspect: Suspect, batch: ReviewBatch) -> str:
    root = batch.images.site_data.originals
    if root is not None and (root / suspect.id).is_file():
        return f"/data/local-files/?d={quote(f'{root.name}/{suspect.id}')}"
    return "data:image/png;base64," + base64.b64encode(batch.images.png(suspect.row)).decode()


def _labelling_configuration(classes: tuple[str, ...]) -> str:
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in (*classes, UNSURE))
    return f"""<View>
  <Header value="Given: $given. $reason"/>
  <Image name="image" value="$image" zoom="true" zoomControl="true"/>
  <Choices name="label" toName="image" choice="single" required="true">
{choices}
  </Choices>
  <TextArea name="note" toName="image" maxSubmissions="1" placeholder="Note"/>
</View>
"""


def read_label_studio(path: Path) -> Iterator[Verdict]:
    """Of every task, each annotator's newest annotation."""
    for task in json.loads(path.read_bytes()):
        if "data" not in task:  # the short form loses the annotators and our names of the images
            raise ValueError(
                "an entry has no data: choose JSON, not JSON-MIN, when you export from Label Studio"
            )
        for reviewer, annotation in _newest_annotations(task).items():
            verdict = _read_annotation(task["data"], reviewer, annotation)
            if verdict is not None:
                yield verdict


def _newest_annotations(task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Annotator -> annotation."""
    newest = {}
    annotations = task.get("annotations", [])
    for annotation in sorted(annotations, key=lambda entry: str(entry.get("updated_at") or "")):
        if not annotation.get("was_cancelled"):
            newest[_annotator_name(annotation.get("completed_by"))] = annotation
    return newest


def _read_annotation(
    data: dict[str, Any], reviewer: str, annotation: dict[str, Any]
) -> Verdict | None:
    """None if the annotation contains no choice of a class."""
    values = {part["type"]: part["value"] for part in annotation["result"]}
    if "choices" not in values:
        return None
    label = values["choices"]["choices"][0]
    note = values.get("textarea", {}).get("text", "")
    seconds = annotation.get("lead_time")
    return Verdict(
        id=str(data["id"]),
        label=None if label == UNSURE else label,
        reviewer=reviewer,
        hash=data.get("hash"),
        reason=note if isinstance(note, str) else "; ".join(note),
        seconds=None if seconds is None else float(seconds),
    )


def _annotator_name(person: Any) -> str:
    """Depending on the export, a person is a number, or a record with an e-mail address."""
    if isinstance(person, dict):
        return str(person.get("email") or f"user {person.get('id')}")
    return "label-studio" if person is None else f"user {person}"


# ---- CVAT ----


def write_cvat(out: Path, batch: ReviewBatch) -> list[Path]:
    """Write CVAT for images 1.1: the suggestion, or the decision, is a tag of each image."""
    root = ElementTree.Element("annotations")
    ElementTree.SubElement(root, "version").text = "1.1"
    for suspect in batch.suspects:
        height, width = batch.images.array(suspect.row).shape[:2]
        facts = {"id": str(suspect.row), "name": suspect.id}
        facts |= {"width": str(width), "height": str(height)}
        image = ElementTree.SubElement(root, "image", facts)
        decision = batch.decisions.get(suspect.row)
        label = suspect.suggestion if decision is None else decision.final or UNSURE
        source = "auto" if decision is None else "manual"
        tag = ElementTree.SubElement(image, "tag", label=label, source=source)
        attributes = {"rank": suspect.rank, "given": suspect.given, "hash": suspect.hash}
        attributes["note"] = suspect.reason if decision is None else decision.reason
        for name, value in attributes.items():
            ElementTree.SubElement(tag, "attribute", name=name).text = str(value)
    write_atomic(out, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))
    return [out]


def read_cvat(path: Path) -> Iterator[Verdict]:
    """The tags that a person set or changed; a suggestion that nobody touched stays "auto"."""
    content = path.read_bytes()
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:  # CVAT writes neither
        raise ValueError("it defines entities, which CVAT does not do")
    for image in ElementTree.fromstring(content).iter("image"):
        for tag in image.iter("tag"):
            if tag.get("source", "manual") == "manual":
                label = str(tag.get("label"))
                attributes = {item.get("name"): item.text or "" for item in tag.iter("attribute")}
                yield Verdict(
                    id=str(image.get("name")),
                    label=None if label == UNSURE else label,
                    reviewer="cvat",
                    hash=attributes.get("hash"),
                    reason=attributes.get("note", ""),
                )


# ---- all of them ----

Writer: TypeAlias = Callable[[Path, ReviewBatch], list[Path]]
Reader: TypeAlias = Callable[[Path], Iterator[Verdict]]
FORMATS: Mapping[str, tuple[Writer, Reader]] = {
    "cleanlab": (write_cleanlab, read_cleanlab),
    "label-studio": (write_label_studio, read_label_studio),
    "cvat": (write_cvat, read_cvat),
}
# what reading a file of another program, or one that is damaged, may raise
_MISFITS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    SyntaxError,
)
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
    write, _ = _find_format(format_name)
    decisions = _decisions_to_export(audit, reviewer)
    suspects = audit.ranked_labels() if all_labels else audit.suspects()
    return write(out, ReviewBatch(suspects, decisions, AuditImages.open(audit)))


def _decisions_to_export(audit: Audit, reviewer: str | None) -> Mapping[int, Decision]:
    """Row -> decision of this reviewer, or of the only one."""
    decisions = Decisions(audit.path)
    names = decisions.reviewers() if reviewer is None else [reviewer]
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
    verdicts = _read_verdicts(format_name, path)
    ids = {verdict.id for verdict in verdicts}
    suspects = {suspect.id: suspect for suspect in audit.ranked_labels() if suspect.id in ids}
    mismatches = (_find_mismatch(v, suspects.get(v.id), audit.classes) for v in verdicts)
    problems = [problem for problem in mismatches if problem is not None]
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
        counts[name] += int(decisions.add(decision) is decision)
    return dict(counts)


def _read_verdicts(format_name: str, path: Path) -> list[Verdict]:
    _, read = _find_format(format_name)
    try:
        return [_clean_verdict(verdict) for verdict in read(path)]
    except _MISFITS as error:
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


def _find_format(name: str) -> tuple[Writer, Reader]:
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
    # the same verdict read twice is one decision
    digest = hashlib.sha256(repr((reviewer, verdict)).encode()).hexdigest()[:24]
    return Decision.about(
        suspect,
        verdict.label,
        reviewer=reviewer,
        reason=verdict.reason,
        seconds=verdict.seconds,
        request=f"import-{digest}",
    )
