"""Label Studio: tasks with predictions as JSON, a labelling configuration beside them, and its JSON export read back.

Images of a folder are named as Label Studio's local storage names them; images without files of their own travel inside the tasks.
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
from fedgsca.label_audit.exchange import UNSURE, Batch, Verdict
from fedgsca.support.files import open_atomic, write_atomic


def write(out: Path, batch: Batch) -> list[Path]:
    with open_atomic(out) as handle:
        handle.write(b"[")
        for number, suspect in enumerate(batch.suspects):
            handle.write(
                (b",\n" if number else b"\n")
                + json.dumps(_task(suspect, batch), ensure_ascii=False).encode()
            )
        handle.write(b"\n]\n")
    labelling = out.with_suffix(".config.xml")
    write_atomic(labelling, _labelling(batch.audit.classes).encode())
    return [out, labelling]


def _task(suspect: Suspect, batch: Batch) -> dict[str, Any]:
    root = batch.images.held.root
    if root is not None and (root / suspect.id).is_file():
        image = f"/data/local-files/?d={quote(f'{root.name}/{suspect.id}')}"
    else:
        image = "data:image/png;base64," + base64.b64encode(batch.images.png(suspect.row)).decode()
    task: dict[str, Any] = {
        "data": {
            "image": image,
            "id": suspect.id,
            "hash": suspect.hash,
            "given": suspect.given,
            "reason": suspect.reason,
        },
        "predictions": [
            {
                "model_version": "fedgsca",
                "score": suspect.probability,
                "result": [_choice(suspect.suggested)],
            }
        ],
    }
    decision = batch.decided.get(suspect.row)
    if decision is not None:
        result = [_choice(decision.final or UNSURE)]
        task["annotations"] = [
            {"result": result, "lead_time": decision.seconds, "was_cancelled": False}
        ]
        if decision.reason:
            result.append(
                {
                    "from_name": "note",
                    "to_name": "image",
                    "type": "textarea",
                    "value": {"text": [decision.reason]},
                }
            )
    return task


def _choice(label: str) -> dict[str, Any]:
    return {
        "from_name": "label",
        "to_name": "image",
        "type": "choices",
        "value": {"choices": [label]},
    }


def _labelling(classes: tuple[str, ...]) -> str:
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


def read(path: Path, audit: Audit) -> Iterator[Verdict]:
    """Of every task, each annotator's newest annotation."""
    for task in json.loads(path.read_bytes()):
        if "data" not in task:  # the short form loses who decided, and our own names of the images
            raise ValueError(
                "an entry without data: choose JSON, not JSON-MIN, when you export from Label Studio"
            )
        newest: dict[str, dict[str, Any]] = {}
        for annotation in sorted(
            task.get("annotations", []), key=lambda a: str(a.get("updated_at") or "")
        ):
            if not annotation.get("was_cancelled"):
                newest[_who(annotation.get("completed_by"))] = annotation
        for who, annotation in newest.items():
            found = {part["type"]: part["value"] for part in annotation["result"]}
            if "choices" in found:
                label = found["choices"]["choices"][0]
                note = found.get("textarea", {}).get("text", "")
                data, spent = task["data"], annotation.get("lead_time")
                yield Verdict(
                    str(data["id"]), None if label == UNSURE else label, who, data.get("hash"),
                    note if isinstance(note, str) else "; ".join(note), None if spent is None else float(spent),
                )  # fmt: skip


def _who(person: Any) -> str:
    """Label Studio names a person by number, or by a record with an address, depending on the kind of export."""
    if isinstance(person, dict):
        return str(person.get("email") or f"user {person.get('id')}")
    return "label-studio" if person is None else f"user {person}"
