"""FiftyOne: a folder of the type FiftyOneImageClassificationDataset.

`data/` has the images, `labels.json` the labels: the given one, or the decision; everything else is
an attribute. Coming back, a label that differs from the given one is a decision; the given label is
a decision only where the attribute `decided` says so, because a tool cannot distinguish "reviewed
and kept" from "never reviewed". FiftyOne exports attributes only on request, so the name of an
image contains its row and a hash of its pixels: row-17-9f2c4a1b03de.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedgsca.label_audit.audit_table import Audit, Suspect
from fedgsca.label_audit.decisions import Decision
from fedgsca.label_audit.exchange import ReviewBatch, Verdict
from fedgsca.support.files import write_atomic

HASH_DIGITS = 12  # of the pixels' hash in a file's name


def write_batch(out: Path, batch: ReviewBatch) -> list[Path]:
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


def read_verdicts(path: Path, audit: Audit) -> Iterator[Verdict]:
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
