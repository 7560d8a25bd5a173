"""A site's record of what the evidence heads say about its labels. It never leaves the site.

evidence/<site>/site.json             which samples these are (EvidenceHeader)
evidence/<site>/round-*.safetensors   the newest judgement (fedgsca/evidence.py), versioned like
                                      the site's memory
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgsca.errors import RunFolderError
from fedgsca.evidence import SiteEvidence
from fedgsca.federation.run_folder import read_config
from fedgsca.methods.base import head_rounds
from fedgsca.methods.parts.evidence_store import NOTE_PREFIX, evidence_arrays, read_arrays
from fedgsca.methods.site_store import Store
from fedgsca.support.files import write_atomic
from fedgsca.support.json_record import Record

if TYPE_CHECKING:
    from fedgsca.federation.simulation import Experiment
    from fedgsca.methods.site import Site

ALL_ROUNDS = 2**31  # later than any round


# ---- during a run ----


@dataclass(frozen=True)
class EvidenceHeader(Record):
    """evidence/<site>/site.json: which samples the evidence is about."""

    site: str
    samples: int
    classes: tuple[str, ...]
    fingerprint: str
    config: Mapping[str, Any]
    # there was no run: the site was judged by the images of one folder
    is_alone: bool = False


def add_evidence(site: Site, round_index: int, experiment: Experiment, folder: Path) -> None:
    """Store the evidence about a site's labels, in rounds that have a new one."""
    arrays = {
        name.removeprefix(NOTE_PREFIX): array
        for name, array in site.notes.items()
        if name.startswith(NOTE_PREFIX)
    }
    if not arrays:
        return
    place = folder / "evidence" / site.name
    if not (place / "site.json").exists():
        header = EvidenceHeader(
            site=site.name,
            samples=site.num_samples,
            classes=tuple(experiment.table.classes),
            fingerprint=experiment.table.fingerprint,
            config=experiment.config.to_tree(),
        )
        write_header(place, header)
    Store(place, site.store.files).write(round_index, arrays)


def write_header(place: Path, header: EvidenceHeader) -> None:
    """Write site.json into the folder of a site's evidence."""
    write_atomic(place / "site.json", encode_header(header))


def encode_header(header: EvidenceHeader) -> bytes:
    """The content of site.json, with its checksum."""
    tree = header.to_json()
    tree["digest"] = _tree_digest(tree)
    return json.dumps(tree, indent=1).encode()


def write_evidence(store: Store, round_index: int, evidence: SiteEvidence) -> None:
    """Store evidence about labels; `store` is that of a site's evidence."""
    store.write(round_index, evidence_arrays(evidence))


# ---- for the audit ----


def sites_with_evidence(run: Path) -> list[str]:
    """Names of the sites that have evidence in this folder, at least one."""
    sites = sorted(path.parent.name for path in (run / "evidence").glob("*/site.json"))
    if not sites:
        _raise_without_evidence(run)
    return sites


def _raise_without_evidence(run: Path) -> None:
    """Say why a folder has no evidence, and how to get it."""
    if not (run / "config.toml").is_file():
        raise RunFolderError(
            "audit.no-evidence",
            f"{run} contains no evidence about labels",
            fix="give the folder of a run of fedgsca-e or of a run with --audit; `fedgsca"
            " audit-folder` judges the labels of a folder of images without a run",
        )
    config = read_config(run)
    rounds = head_rounds(config)
    if not rounds:
        raise RunFolderError(
            "audit.no-evidence",
            f"{run} has no evidence about labels: {config.method} ran without evidence heads",
            fix="run it again with --audit and at least six rounds, without privacy, or use"
            " `fedgsca audit-folder`, which needs no run",
        )
    raise RunFolderError(
        "audit.no-evidence",
        f"{run} has no evidence about labels yet: the first judgement is that of round"
        f" {rounds[0] + 1}",
        fix=f"continue the run with `fedgsca resume {run}`, then audit again",
    )


def read_header(run: Path, site: str) -> EvidenceHeader:
    """Which samples the evidence of a site is about."""
    path = run / "evidence" / site / "site.json"
    try:
        tree = dict(json.loads(path.read_bytes()))
        if tree.pop("digest", None) != _tree_digest(tree):
            raise ValueError("its content does not match its checksum")
        return EvidenceHeader.from_json(tree)
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise RunFolderError(
            "audit.damaged-evidence",
            f"{path} is damaged or missing: {error}",
            fix="restore the file from a backup, or make the run again",
        ) from None


def _tree_digest(tree: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def read_evidence(run: Path, site: str, *, before_round: int = ALL_ROUNDS) -> SiteEvidence:
    """The newest evidence about a site's labels, or that of rounds earlier than `before_round`."""
    arrays = Store(run / "evidence" / site).read_before(before_round)
    if not arrays:
        raise RunFolderError(
            "audit.no-evidence",
            f"{site} in {run} has no evidence about its labels yet",
            fix=f"continue the run with `fedgsca resume {run}`, then audit again",
        )
    try:
        return read_arrays(arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            "audit.damaged-evidence",
            f"the evidence of {site} in {run} is damaged: {type(error).__name__} {error}",
            fix="restore the folder from a backup, or make the run again",
        ) from None
