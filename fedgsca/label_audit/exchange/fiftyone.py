"""FiftyOne: a folder of the type FiftyOneImageClassificationDataset, `data/` with the images and `labels.json`.

The label is the given one, or what was decided; the rest are attributes. Coming back, a label that differs from the given one is a
decision; one that does not is a decision only where the attribute `decided` says so, because a tool cannot tell "seen and kept" from
"never looked at". FiftyOne exports labels alone unless it is asked for attributes, so the name of an image says which row it is and
which pixels: row-17-9f2c4a1b03de.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgsca.label_audit.audit_table import Audit, Suspect
from fedgsca.label_audit.decisions import Decision
from fedgsca.label_audit.exchange import Batch, Verdict
from fedgsca.support.files import write_atomic

PREFIX = 12  # digits of the pixels' hash in a file's name


def write(out: Path, batch: Batch) -> list[Path]:
    labels = {}
    for suspect in batch.suspects:
        name = f"row-{suspect.row}-{suspect.hash[:PREFIX]}"
        write_atomic(out / "data" / f"{name}.png", batch.images.png(suspect.row))
        labels[name] = _target(suspect, batch.decided.get(suspect.row))
    whole = {"classes": list(batch.audit.classes), "labels": labels}
    write_atomic(
        out / "labels.json", json.dumps(whole, indent=1, ensure_ascii=False).encode() + b"\n"
    )
    return [out / "labels.json", out / "data"]


def _target(suspect: Suspect, decision: Decision | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "file": suspect.id, "hash": suspect.hash, "given": suspect.given, "suggested": suspect.suggested,
        "probability": suspect.probability, "suspicion": suspect.suspicion, "reason": suspect.reason,
    }  # fmt: skip
    if decision is not None:
        attributes |= {"decided": decision.action, "note": decision.reason}
    label = suspect.given if decision is None or decision.final is None else decision.final
    return {"label": label, "attributes": attributes}


def read(path: Path, audit: Audit) -> Iterator[Verdict]:
    """`path`: labels.json, or the folder that holds it."""
    whole = json.loads((path / "labels.json" if path.is_dir() else path).read_bytes())
    classes = whole.get("classes") or []
    for name, target in whole["labels"].items():
        if target is None:  # the label was taken away: no opinion
            continue
        known = target.get("attributes") or {} if isinstance(target, dict) else {}
        label = target["label"] if isinstance(target, dict) else target
        label = (
            classes[label] if isinstance(label, int) else str(label)
        )  # FiftyOne may write the number of the class
        suspect, decided = _named(name, audit), known.get("decided")
        given = suspect.given if suspect else None
        if label != given or decided:
            verdict = None if decided == "unsure" and label == given else label
            file, pixels = (suspect.id, suspect.hash) if suspect else (name, None)
            yield Verdict(
                str(known.get("file", file)),
                verdict,
                "fiftyone",
                known.get("hash", pixels),
                str(known.get("note") or ""),
            )


def _named(name: str, audit: Audit) -> Suspect | None:
    """The label that an exported image's name stands for; None if it is none of this audit."""
    start, row, pixels = (*Path(name).name.split("-"), "", "")[:3]
    found = audit.by_row(int(row)) if start == "row" and row.isdecimal() else None
    return found if found is not None and found.hash[:PREFIX] == pixels else None
