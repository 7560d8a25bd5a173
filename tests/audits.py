"""A finished run of a second with an audit beside it, for tests of everything that reads audits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.federation.records import AuditSummary
from fedgsca.labels.audit_images import content_hash
from fedgsca.labels.audit_table import Audit, Suspect, write_audit
from fedgsca.labels.site_data import SiteData, open_sites
from tests.toys import finished_run, toy_config


def toy_audit(folder: Path, site: str = "site-2", source: Path | None = None, **sets: Any) -> Audit:
    """An audit of one site; its ranking is invented: wrong labels first, where there is a truth."""
    config = toy_config(
        "fedavg", source=source, **{"train__rounds": 6, "audit__enabled": True, **sets}
    )
    if not (folder / "result.json").exists():  # a second site of the same run
        shutil.copytree(finished_run(config), folder, dirs_exist_ok=True)
    site_data = open_sites(folder)[site]
    data = {"source": site_data.source, "fingerprint": site_data.table.fingerprint}
    header = {
        "run": "../..",
        "site": site,
        "data": data,
        "classes": list(site_data.table.classes),
        "method": "fedavg",
        "summary": {},
    }
    clean = {}
    for label, name in enumerate(site_data.table.classes):
        rows = np.flatnonzero(site_data.given == label)[:4]
        clean[name] = rows.tolist()
    target = folder / "audit" / site
    return write_audit(target, AuditSummary.from_json(header), invent_ranking(site_data), clean)


def invent_ranking(site_data: SiteData) -> Iterator[Suspect]:
    """Every label of the site, suspicion from 1 down to 0, the first tenth to be reviewed."""
    classes = site_data.table.classes
    n = len(site_data)
    wrong = np.zeros(n, bool)
    if site_data.truth is not None:
        wrong = site_data.given != site_data.truth
    for rank, row in enumerate(np.argsort(~wrong, kind="stable").tolist(), start=1):
        given = classes[site_data.given[row]]
        suggestion, third = [name for name in classes if name != given][:2]
        yield Suspect(
            rank=rank,
            row=row,
            id=str(site_data.table.ids[site_data.rows[row]]),
            hash=pixels_hash(site_data, row),
            given=given,
            suggestion=suggestion,
            probability=0.7,
            runners_up=((given, 0.2), (third, 0.1)),
            suspicion=1 - rank / n,
            reason=f"given {given}, the model says {suggestion}",
            priority=rank <= n // 10,
        )


def pixels_hash(site_data: SiteData, row: int) -> str:
    return content_hash(np.asarray(site_data.table.images[site_data.rows[row]]))
