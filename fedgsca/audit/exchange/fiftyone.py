"""FiftyOne: a folder of the type FiftyOneImageClassificationDataset, `data/` with the images and `labels.json`.

The label is the given one, or what was decided; the rest are attributes. Coming back, a label that differs from the given one is a
decision; one that does not is a decision only where the attribute `decided` says so, because a tool cannot tell "seen and kept" from
"never looked at".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgsca.audit.decisions import Decision
from fedgsca.audit.exchange import Batch, Verdict
from fedgsca.audit.table import Suspect
from fedgsca.files import write_atomic


def write(out: Path, batch: Batch) -> list[Path]:
    labels = {}
    for suspect in batch.suspects:
        name = f"row-{suspect.row}"
        write_atomic(out / "data" / f"{name}.png", batch.images.png(suspect.row))
        labels[name] = _target(suspect, batch.decided.get(suspect.row))
    whole = {"classes": list(batch.audit.classes), "labels": labels}
    write_atomic(out / "labels.json", json.dumps(whole, indent=1, ensure_ascii=False).encode() + b"\n")
    return [out / "labels.json", out / "data"]


def _target(suspect: Suspect, decision: Decision | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "id": suspect.id, "hash": suspect.hash, "given": suspect.given, "suggested": suspect.suggested,
        "probability": suspect.probability, "suspicion": suspect.suspicion, "reason": suspect.reason,
    }  # fmt: skip
    if decision is not None:
        attributes |= {"decided": decision.action, "note": decision.reason}
    label = suspect.given if decision is None or decision.final is None else decision.final
    return {"label": label, "attributes": attributes}


def read(path: Path) -> Iterator[Verdict]:
    """`path`: labels.json, or the folder that holds it."""
    whole = json.loads((path / "labels.json" if path.is_dir() else path).read_bytes())
    classes = whole.get("classes") or []
    for target in whole["labels"].values():
        label, known = target["label"], target["attributes"]
        label = classes[label] if isinstance(label, int) else str(label)  # FiftyOne may write the number of the class
        decided = known.get("decided")
        if label != known["given"] or decided:
            verdict = None if decided == "unsure" and label == known["given"] else label
            yield Verdict(str(known["id"]), verdict, "fiftyone", known.get("hash"), str(known.get("note") or ""))
