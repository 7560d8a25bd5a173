"""Label Studio: tasks with predictions as JSON, a labelling configuration, and its JSON export.

Images of a folder are referred to as Label Studio's local storage does; images without files of
their own are included in the tasks.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from fedgsca.label_audit.audit_table import Audit, Suspect
from fedgsca.label_audit.decisions import Decision
from fedgsca.label_audit.exchange import UNSURE, ReviewBatch, Verdict
from fedgsca.support.files import open_atomic, write_atomic


def write_batch(out: Path, batch: ReviewBatch) -> list[Path]:
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
    root = batch.images.site_data.root
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


def read_verdicts(path: Path, audit: Audit) -> Iterator[Verdict]:
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
