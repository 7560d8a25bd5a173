"""The files of three labelling tools: each has a function that writes and one that reads.

cleanlab      a csv with the columns of its label issues; a person's decision is in
              `corrected_label`. A file without that column is the opinion of a program: the labels
              that it flags come back as its decisions, with "cleanlab" as the reviewer.
Label Studio  tasks with predictions as JSON, a labelling configuration, and its JSON export. Images
              of a folder are referred to as Label Studio's local storage does; images without files
              of their own are included in the tasks.
FiftyOne      a folder of the type FiftyOneImageClassificationDataset: `data/` has the images,
              `labels.json` the labels (the given one, or the decision). Coming back, a label that
              differs from the given one is a decision; the given label is a decision only where the
              attribute `decided` says so: a tool cannot tell "reviewed and kept" from "never
              reviewed". FiftyOne exports attributes only on request, so the name of an image
              contains its row and a hash of its pixels: row-17-9f2c4a1b03de.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import Audit, Suspect
from fedgsca.labels.decisions import Decision
from fedgsca.support.csv_table import read_csv_table, write_cells
from fedgsca.support.files import open_atomic, write_atomic

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

    audit: Audit
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


@dataclass(frozen=True)
class ExchangeFormat:
    """How a tool's files are written and read."""

    write: Callable[[Path, ReviewBatch], list[Path]]
    read: Callable[[Path, Audit], Iterator[Verdict]]


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


def read_cleanlab(path: Path, audit: Audit) -> Iterator[Verdict]:
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
    write_atomic(configuration, _labelling_configuration(batch.audit.classes).encode())
    return [out, configuration]


def _build_task(suspect: Suspect, batch: ReviewBatch) -> dict[str, Any]:
    prediction = {
        "model_version": "fedgsca",
        "score": suspect.probability,
        "result": [_choice(suspect.suggestion)],
    }
    task: dict[str, Any] = {
        "data": {
            "image": _image_reference(suspect, batch),
            "id": suspect.id,
            "hash": suspect.hash,
            "given": suspect.given,
            "reason": suspect.reason,
        },
        "predictions": [prediction],
    }
    decision = batch.decisions.get(suspect.row)
    if decision is not None:
        task["annotations"] = [_annotation(decision)]
    return task


def _image_reference(suspect: Suspect, batch: ReviewBatch) -> str:
    root = batch.images.site_data.originals
    if root is not None and (root / suspect.id).is_file():
        return f"/data/local-files/?d={quote(f'{root.name}/{suspect.id}')}"
    return "data:image/png;base64," + base64.b64encode(batch.images.png(suspect.row)).decode()


def _annotation(decision: Decision) -> dict[str, Any]:
    result = [_choice(decision.final or UNSURE)]
    if decision.reason:
        note = {
            "from_name": "note",
            "to_name": "image",
            "type": "textarea",
            "value": {"text": [decision.reason]},
        }
        result.append(note)
    return {"result": result, "lead_time": decision.seconds, "was_cancelled": False}


def _choice(label: str) -> dict[str, Any]:
    return {
        "from_name": "label",
        "to_name": "image",
        "type": "choices",
        "value": {"choices": [label]},
    }


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


def read_label_studio(path: Path, audit: Audit) -> Iterator[Verdict]:
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


# ---- FiftyOne ----


HASH_DIGITS = 12  # of the pixels' hash in a file's name


def write_fiftyone(out: Path, batch: ReviewBatch) -> list[Path]:
    """Write labels.json, and the images into data/."""
    labels = {}
    for suspect in batch.suspects:
        name = f"row-{suspect.row}-{suspect.hash[:HASH_DIGITS]}"
        write_atomic(out / "data" / f"{name}.png", batch.images.png(suspect.row))
        labels[name] = _describe_label(suspect, batch.decisions.get(suspect.row))
    tree = {"classes": list(batch.audit.classes), "labels": labels}
    text = json.dumps(tree, indent=1, ensure_ascii=False)
    write_atomic(out / "labels.json", text.encode() + b"\n")
    return [out / "labels.json", out / "data"]


def _describe_label(suspect: Suspect, decision: Decision | None) -> dict[str, Any]:
    """An entry of labels.json."""
    attributes: dict[str, Any] = {
        "file": suspect.id,
        "hash": suspect.hash,
        "given": suspect.given,
        "suggested": suspect.suggestion,
        "probability": suspect.probability,
        "suspicion": suspect.suspicion,
        "reason": suspect.reason,
    }
    label = suspect.given
    if decision is not None:
        attributes |= {"decided": decision.action, "note": decision.reason}
        label = decision.final or suspect.given
    return {"label": label, "attributes": attributes}


def read_fiftyone(path: Path, audit: Audit) -> Iterator[Verdict]:
    """The decisions in labels.json, or in the folder that contains it."""
    tree = json.loads((path / "labels.json" if path.is_dir() else path).read_bytes())
    classes = tree.get("classes") or []
    for name, entry in tree["labels"].items():
        if entry is None:  # the label was removed: no opinion
            continue
        label, attributes = _read_entry(entry, classes)
        verdict = _read_verdict(name, label, attributes, _find_suspect(name, audit))
        if verdict is not None:
            yield verdict


def _read_entry(entry: Any, classes: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The label and the attributes; an entry may be a bare label, a label the number of a class."""
    attributes: dict[str, Any] = {}
    label = entry
    if isinstance(entry, dict):
        label = entry["label"]
        attributes = entry.get("attributes") or {}
    if isinstance(label, int):
        label = classes[label]
    return str(label), attributes


def _read_verdict(
    name: str, label: str, attributes: dict[str, Any], suspect: Suspect | None
) -> Verdict | None:
    """None if nobody has decided about this image."""
    file = name
    content_hash = None
    given = None
    if suspect is not None:
        file, content_hash, given = suspect.id, suspect.hash, suspect.given
    action = attributes.get("decided")
    if label == given and not action:
        return None
    is_unsure = action == "unsure" and label == given
    return Verdict(
        id=str(attributes.get("file", file)),
        label=None if is_unsure else label,
        reviewer="fiftyone",
        hash=attributes.get("hash", content_hash),
        reason=str(attributes.get("note") or ""),
    )


def _find_suspect(name: str, audit: Audit) -> Suspect | None:
    """The label that an exported image's name refers to; None if it is not one of this audit."""
    parts = Path(name).name.split("-")
    if len(parts) < 3 or parts[0] != "row" or not parts[1].isdecimal():
        return None
    suspect = audit.by_row(int(parts[1]))
    if suspect is None or suspect.hash[:HASH_DIGITS] != parts[2]:
        return None
    return suspect
