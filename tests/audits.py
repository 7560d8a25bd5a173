"""A finished run of a second with an audit folder beside it, made by hand: for tests of everything that reads audits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from toys import toy_config

from fedgsca.engine.rounds import run
from fedgsca.label_audit.audit_images import content_hash
from fedgsca.label_audit.audit_table import Audit, Suspect, write_audit
from fedgsca.label_audit.site_data import SiteData, open_sites


def toy_audit(folder: Path, site: str = "site-2", source: Path | None = None, **sets: Any) -> Audit:
    """An audit of one site; its ranking is made up: the wrong labels first, where they are known."""
    run(toy_config("fedavg", source=source, **{"train__rounds": 1, **sets}), folder)
    held = open_sites(folder)[site]
    header = {
        "run": "../..", "site": site, "data": {"source": held.source, "fingerprint": held.table.fingerprint},
        "classes": list(held.table.classes), "method": "fedavg", "rounds": [0, 1], "split": "train", "summary": {},
    }  # fmt: skip
    clean = {
        name: [
            {"row": int(row), "hash": pixels_hash(held, int(row))}
            for row in np.flatnonzero(held.given == c)[:4]
        ]
        for c, name in enumerate(held.table.classes)
    }
    return write_audit(folder / "audit" / site, header, made_up(held), clean)


def made_up(held: SiteData) -> Iterator[Suspect]:
    """Every label of the site, suspicion falling from 1 to 0, the first tenth within the quota."""
    classes, n = held.table.classes, len(held)
    wrong = np.zeros(n, bool) if held.truth is None else held.given != held.truth
    for rank, row in enumerate(np.argsort(~wrong, kind="stable").tolist(), start=1):
        given = classes[held.given[row]]
        others = [name for name in classes if name != given]
        yield Suspect(
            rank, row, str(held.table.ids[held.rows[row]]), pixels_hash(held, row), given, others[0], 0.7,
            ((given, 0.2), (others[1], 0.1)), 1 - rank / n, 5, 4, None, f"given {given}, the model says {others[0]}", rank <= n // 10,
        )  # fmt: skip


def pixels_hash(held: SiteData, row: int) -> str:
    return content_hash(np.asarray(held.table.images[held.rows[row]]))
