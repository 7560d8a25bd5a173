"""An audit of one site, from its evidence to its folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.engine.label_evidence import Evidence, about, read_evidence
from fedgsca.errors import DataError
from fedgsca.label_audit import score
from fedgsca.label_audit.audit_images import content_hash
from fedgsca.label_audit.audit_table import Audit, Suspect, write_audit
from fedgsca.label_audit.model_outputs import evidence_of_test
from fedgsca.label_audit.ranking_quality import against_truth
from fedgsca.label_audit.second_opinion import Opinion, second_opinion
from fedgsca.label_audit.site_data import SiteData, check_data
from fedgsca.support.files import remove_quietly, write_atomic

TEST_WARNING = (
    "These are test labels. They decide how good every model looks. Correcting those that a model doubts, and only those, makes"
    " that model's score better without making the model better, and no later score can be compared with an earlier one. If test"
    " labels must be corrected, let people who do not see the model's opinion label all of them, or a random part, again."
)


@dataclass(frozen=True)
class Site:
    """All that is known about one site's labels."""

    held: SiteData
    evidence: Evidence
    ranking: score.Ranking
    opinions: Mapping[str, Opinion]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.held.table.classes


def audit_site(
    run: Path,
    held: SiteData,
    out: Path,
    *,
    quota: float = 0.1,
    opinions: Sequence[str] = (),
    split: str = "train",
) -> Audit:
    """Rank the labels of one site (or, if `split` says so, of the test set) and write the audit into `out`."""
    if split == "test":
        evidence = evidence_of_test(held, run)
    else:
        check_data(held, about(run, held.site)["fingerprint"])
        evidence = read_evidence(run, held.site)
    if len(evidence) != len(held):
        raise DataError(
            "todo.build-audit-1",
            f"{held.site}: evidence about {len(evidence)} labels, but the data has {len(held)}",
            fix="restore the data and the configuration of the run",
        )
    ranking = score.rank(evidence, held.given, quota)
    every = np.arange(len(held))
    features = held.features(every, run) if opinions else None
    said = {
        who: second_opinion(who, features, held.given, held.table.num_classes) for who in opinions
    }
    site = Site(held, evidence, ranking, said)
    clean = score.clean_examples(evidence, held.given)
    _keep_features(site, clean, run, out)
    named = {
        site.classes[label]: [
            {"row": int(row), "hash": content_hash(held.image(row))} for row in rows
        ]
        for label, rows in clean.items()
    }
    return write_audit(out, _header(site, run, out, split), _suspects(site), named)


def _suspects(site: Site) -> Iterator[Suspect]:
    """One at a time, so that neither hashes nor texts of 100,000 labels are ever in memory together."""
    held, evidence, ranking, classes = site.held, site.evidence, site.ranking, site.classes
    for position, row in enumerate(ranking.order.tolist()):
        given, suggested = int(held.given[row]), int(ranking.suggested[row])
        probs = evidence.probs[row]
        rest = [int(c) for c in np.argsort(-probs, kind="stable") if c != suggested][:2]
        yield Suspect(
            rank=position + 1,
            row=row,
            id=str(held.table.ids[held.rows[row]]),
            hash=content_hash(held.image(row)),
            given=classes[given],
            suggested=classes[suggested],
            probability=_short(probs[suggested]),
            others=tuple((classes[c], _short(probs[c])) for c in rest),
            suspicion=_short(ranking.suspicion[row], 6),
            rounds=evidence.rounds,
            votes=int(evidence.votes[row, suggested]),
            posterior=None if evidence.posterior is None else _short(evidence.posterior[row]),
            reason=score.reason(evidence, row, given, suggested, classes),
            priority=bool(ranking.priority[row]),
            opinions={
                who: (classes[label[row]], _short(sure[row]))
                for who, (label, sure) in site.opinions.items()
            },
        )


def _short(value: float, digits: int = 4) -> float:
    return round(float(value), digits)


def _header(site: Site, run: Path, out: Path, split: str) -> dict[str, Any]:
    held, config = site.held, site.held.config
    window = config.audit.window(config.train.rounds)
    return {
        "run": os.path.relpath(run, out),
        "site": held.site,
        "data": {
            "source": held.source,
            "labels": held.labels,
            "fingerprint": held.table.fingerprint,
        },
        "classes": list(site.classes),
        "method": config.method,
        "rounds": [window.start, window.stop]
        if split == "train"
        else [config.train.rounds, config.train.rounds],
        "seen": site.evidence.rounds,
        "split": split,
        "warning": TEST_WARNING if split == "test" else None,
        "summary": summary(site),
    }


def summary(site: Site) -> dict[str, Any]:
    """Numbers about the site's labels as a whole; in a simulation also what the truth says about the ranking."""
    held, ranking, classes = site.held, site.ranking, site.classes
    whole = score.estimate(site.evidence, held.given, ranking.suspicion)
    likely = ranking.order[: round(whole.count)]
    pairs = Counter(
        zip(held.given[likely].tolist(), ranking.suggested[likely].tolist(), strict=True)
    )
    per_class = []
    for label, name in enumerate(classes):
        mine = held.given == label
        wrong = score.estimate(site.evidence, held.given, ranking.suspicion, mine)
        suspects = int(np.count_nonzero(ranking.priority & mine))
        per_class.append(
            {
                "class": name,
                "labels": int(mine.sum()),
                "estimated_wrong": _numbers(wrong),
                "suspects": suspects,
            }
        )
    found: dict[str, Any] = {
        "labels": len(held),
        "estimated_wrong": _numbers(whole),
        "suspects": int(ranking.priority.sum()),
        "per_class": per_class,
        "confusions": [
            {"given": classes[a], "suggested": classes[b], "count": n}
            for (a, b), n in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
        ],
    }
    if held.truth is not None:
        found["truth"] = against_truth(ranking.order, held.given != held.truth)
    return found


def _numbers(found: score.Estimate) -> dict[str, int]:
    return {"count": round(found.count), "low": int(found.low), "high": round(found.high)}


def _keep_features(site: Site, clean: Mapping[int, np.ndarray], run: Path, out: Path) -> None:
    """Unit vectors of the labels to review and of the clean examples, so that the review page needs no network."""
    from safetensors.numpy import save

    rows = np.unique(np.concatenate([np.flatnonzero(site.ranking.priority), *clean.values()]))
    features = site.held.features(rows, run)
    if features is None:
        remove_quietly(out / "features.safetensors")
        return
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    write_atomic(
        out / "features.safetensors",
        save({"rows": rows.astype(np.int64), "features": unit.astype(np.float16)}),
    )
