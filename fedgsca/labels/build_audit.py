"""The audit of one site, from its evidence to its folder."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedgsca.data.duplicates import find_contradictions
from fedgsca.errors import DataError
from fedgsca.evidence import FEDERATION, SITE, SiteEvidence
from fedgsca.federation.label_evidence import read_evidence, read_header
from fedgsca.federation.records import (
    CANNOT_TELL,
    COUNT_HOLDS,
    SITES_DIFFER,
    AuditData,
    AuditSummary,
    ClassAudit,
    CopySummary,
    EvidenceSource,
    LabelSummary,
    RankingTruth,
    SuspectPair,
    WrongEstimate,
)
from fedgsca.labels import score
from fedgsca.labels.audit_images import content_hash
from fedgsca.labels.audit_table import COLUMNS, VERSION, Audit, Suspect, write_audit
from fedgsca.labels.second_opinion import SecondOpinion, ask_second_opinion, unit_vectors
from fedgsca.labels.site_data import SiteData
from fedgsca.labels.wrong_count import CountModels, fit_models
from fedgsca.metrics import auroc
from fedgsca.support.files import remove_quietly, write_atomic
from fedgsca.support.text import percent

# a class of which so large a share looks wrong is no count of wrong labels, if it has so many
DIFFERING_SHARE = 0.75
MIN_DIFFERING = 8
# in place of a method's name, in the audit of a folder without a run
FOLDER_AUDIT = "alone"
NO_IMAGES_WARNING = (
    "This data has features and no images, so there are no pictures here. Find each sample by its"
    " name in your own system before you decide about its label."
)


@dataclass(frozen=True)
class LabelAssessment:
    """Everything that is computed about the labels of one site."""

    site_data: SiteData
    ranking: score.LabelRanking
    models: CountModels
    opinions: Mapping[str, SecondOpinion]
    # of rows: (near-)identical images with different labels
    pairs: Sequence[tuple[int, int]] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in index order."""
        return self.site_data.table.classes


def audit_site(
    run: Path,
    site_data: SiteData,
    out: Path,
    *,
    quota: float = 0.1,
    review: int | None = None,
    opinions: Sequence[str] = (),
) -> Audit:
    """Rank the labels of one site and write the audit.

    `quota` is the share of labels to review, `review` their number in place of a share, `opinions`
    are names of second opinions.
    """
    evidence = read_evidence(run, site_data.site)
    if evidence.num_labels != len(site_data):
        raise DataError(
            "audit.evidence-mismatch",
            f"the run has evidence about {evidence.num_labels} labels of {site_data.site}, but the"
            f" data has {len(site_data)}",
            fix="restore the data and the configuration of the run",
        )
    ranking = score.rank_labels(evidence, site_data.given, quota, site_data.checked)
    pairs = find_contradictions(site_data.table, site_data.rows, site_data.given)
    ranking = score.list_copies_first(ranking, site_data.given, pairs)
    if review is not None:
        first_rows = np.isin(np.arange(len(site_data)), ranking.order[:review])
        ranking = replace(ranking, priority=first_rows)
    models = fit_models(evidence, site_data.given, site_data.checked)
    features = site_data.features(np.arange(len(site_data))) if opinions else None
    second_opinions = {
        name: ask_second_opinion(name, features, site_data.given, site_data.table.num_classes)
        for name in opinions
    }
    assessment = LabelAssessment(site_data, ranking, models, second_opinions, pairs)
    clean_rows = score.select_clean_examples(site_data.given, ranking)
    _write_features(assessment, clean_rows, out)
    clean = {assessment.classes[label]: rows.tolist() for label, rows in clean_rows.items()}
    header = _build_header(assessment, run, out, describe_source(evidence))
    # one at a time: hashes and texts of 100,000 labels are never in memory together
    order = enumerate(ranking.order.tolist(), start=1)
    suspects = (_describe_label(assessment, row, rank) for rank, row in order)
    return write_audit(out, header, suspects, clean)


def _describe_label(assessment: LabelAssessment, row: int, rank: int) -> Suspect:
    site_data = assessment.site_data
    ranking = assessment.ranking
    classes = assessment.classes
    given_labels = site_data.given
    given = int(given_labels[row])
    suggestion = int(ranking.suggestion[row])
    probs = ranking.probs[row]
    runners_up = [int(c) for c in np.argsort(-probs, kind="stable") if c != suggestion][:2]
    ids, rows = site_data.table.ids, site_data.rows
    copies = ranking.copies.get(row, ())
    return Suspect(
        rank=rank,
        row=row,
        id=str(ids[rows[row]]),
        hash=content_hash(site_data.content(row)),
        given=classes[given],
        suggestion=classes[suggestion],
        probability=_rounded(probs[suggestion]),
        runners_up=tuple((classes[c], _rounded(probs[c])) for c in runners_up),
        suspicion=_rounded(ranking.suspicion[row], 6),
        reason=score.describe_label(ranking, row, given, classes),
        priority=bool(ranking.priority[row]),
        opinions={
            name: (classes[opinion.labels[row]], _rounded(opinion.confidence[row]))
            for name, opinion in assessment.opinions.items()
        },
        copies=tuple((copy, str(ids[rows[copy]]), classes[given_labels[copy]]) for copy in copies),
    )


def _rounded(value: float, digits: int = 4) -> float:
    return round(float(value), digits)


def _build_header(
    assessment: LabelAssessment, run: Path, out: Path, source: EvidenceSource | None
) -> AuditSummary:
    site_data = assessment.site_data
    checked = assessment.ranking.checked
    config = site_data.config
    is_alone = read_header(run, site_data.site).is_alone
    return AuditSummary(
        run=os.path.relpath(run, out),
        site=site_data.site,
        data=AuditData(
            site_data.source,
            site_data.labels,
            site_data.table.fingerprint,
            dict(site_data.class_names) or None,
        ),
        classes=assessment.classes,
        method=FOLDER_AUDIT if is_alone else config.method,
        warning=None if site_data.table.has_images else NO_IMAGES_WARNING,
        summary=summarise_labels(assessment),
        version=VERSION,
        num_labels=len(site_data),
        columns=COLUMNS,
        num_checked=None if checked is None else checked.count,
        order=site_data.table.order,
        evidence=source,
    )


def describe_source(evidence: SiteEvidence) -> EvidenceSource | None:
    """What the audit says about who judged the labels; None: nothing unusual."""
    if not evidence.looks_different:
        return None
    own_share = evidence.judgements[SITE].share_explained
    common_share = max(evidence.judgements[FEDERATION].share_explained, 0.0)
    return EvidenceSource(
        SITE,
        "Your images look different from those of the others: by themselves they explain"
        f" {percent(own_share, 0)} of your labels, those of all sites {percent(common_share, 0)}."
        " Doubts may be a difference between sites",
    )


def summarise_labels(assessment: LabelAssessment) -> LabelSummary:
    """Numbers about the site's labels as a whole; in a simulation also the ranking's quality."""
    site_data = assessment.site_data
    ranking = assessment.ranking
    classes = _summarise_classes(assessment)
    differing = [i for i, entry in enumerate(classes) if entry.verdict == SITES_DIFFER]
    count_mask = ~np.isin(site_data.given, differing) if differing else None
    errors = score.count_errors(assessment.models, len(site_data), count_mask)
    copies = _summarise_copies(assessment)
    least = 0 if copies is None else copies.least_wrong
    truth = None
    if site_data.truth is not None:
        # rows of the listed labels, ascending: the list is measured by itself
        rows = np.sort(ranking.order)
        wrong = (site_data.given != site_data.truth)[rows]
        truth = measure_ranking(np.searchsorted(rows, ranking.order), wrong)
    return LabelSummary(
        labels=len(site_data),
        estimated_wrong=_round_estimate(errors, least),
        suspects=int(ranking.priority.sum()),
        per_class=classes,
        confusions=_count_confusions(assessment, round(errors.count)),
        truth=truth,
        copies=copies,
    )


def _summarise_copies(assessment: LabelAssessment) -> CopySummary | None:
    ranking = assessment.ranking
    if not ranking.copies:
        return None
    least_wrong = score.count_certain_errors(assessment.pairs, ranking.checked)
    open_pairs = [pair for pair in assessment.pairs if not ranking.copies.keys().isdisjoint(pair)]
    return CopySummary(len(open_pairs), len(ranking.copies), least_wrong)


def _summarise_classes(assessment: LabelAssessment) -> tuple[ClassAudit, ...]:
    given = assessment.site_data.given
    ranking = assessment.ranking
    classes = []
    for label, name in enumerate(assessment.classes):
        mask = given == label
        errors = score.count_errors(assessment.models, len(given), mask)
        suspects = int(np.count_nonzero(ranking.priority & mask))
        num_labels = int(mask.sum())
        verdict = judge_class(errors, num_labels)
        classes.append(ClassAudit(name, num_labels, _round_estimate(errors), suspects, verdict))
    return tuple(classes)


def judge_class(errors: score.ErrorEstimate, num_labels: int) -> str:
    """What can be said about a class with this many labels: one of the verdicts of ClassAudit.

    People mislabel some images of a class. If nearly all look wrong, the site and the evidence mean
    something else by the class, or its images look different here.
    """
    if not errors.can_tell:
        return CANNOT_TELL
    is_whole = num_labels >= MIN_DIFFERING and errors.count >= DIFFERING_SHARE * num_labels
    return SITES_DIFFER if is_whole else COUNT_HOLDS


def _count_confusions(assessment: LabelAssessment, count: int) -> tuple[SuspectPair, ...]:
    """Given and suggested classes of the first `count` labels, the most frequent pair first."""
    ranking = assessment.ranking
    rows = ranking.order[:count]
    given = assessment.site_data.given[rows].tolist()
    counter = Counter(zip(given, ranking.suggestion[rows].tolist(), strict=True))
    pairs = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    names = assessment.classes
    return tuple(SuspectPair(names[a], names[b], number) for (a, b), number in pairs)


def _round_estimate(errors: score.ErrorEstimate, least: int = 0) -> WrongEstimate:
    """In whole labels; so many are wrong at least."""
    is_unsure = None if errors.can_tell else True
    low, count, high = int(errors.low), round(errors.count), round(errors.high)
    return WrongEstimate(max(count, least), max(low, least), max(high, least), is_unsure)


def _write_features(
    assessment: LabelAssessment, clean: Mapping[int, np.ndarray], out: Path
) -> None:
    """Store unit vectors of the priority list and the clean examples: the page needs no network."""
    from safetensors.numpy import save

    rows = np.unique(np.concatenate([np.flatnonzero(assessment.ranking.priority), *clean.values()]))
    features = None
    if len(rows):  # none at a site of which all labels were checked
        features = assessment.site_data.features(rows)
    if features is None:
        remove_quietly(out / "features.safetensors")
        return
    unit = unit_vectors(features).astype(np.float16)
    content = save({"rows": rows.astype(np.int64), "features": unit})
    write_atomic(out / "features.safetensors", content)


# ---- how good a ranking is, in a simulation ----


def precision_at(order: np.ndarray, wrong: np.ndarray, k: int) -> float | None:
    """Share of wrong labels among the first k of the list `order`; None for an empty list."""
    if not k or not len(order):
        return None
    return float(wrong[order[:k]].mean())


def first_tenth(n: int) -> int:
    """The size of the first tenth of a list of n labels, at least one label if there is any."""
    return math.ceil(0.1 * n)


def measure_ranking(order: np.ndarray, wrong: np.ndarray) -> RankingTruth:
    """What a reviewer finds in the list `order`, (n,) rows; `wrong` is (n,) bool by row.

    "10%" is the first tenth of the list. Where fewer than a tenth of the labels are wrong, no list
    can reach 1 there; "errors", the first as many labels as there are errors, can do so at every
    site. Both are None at a site without errors.
    """
    n = len(order)
    errors = int(wrong.sum())
    scores = np.empty(n)
    scores[order] = -np.arange(n, dtype=np.float64)
    precision: dict[str, float | None] = {}
    recall: dict[str, float | None] = {}
    for name, k in (("10%", first_tenth(n)), ("errors", errors)):
        precision[name] = precision_at(order, wrong, k) if errors else None
        recall[name] = int(wrong[order[:k]].sum()) / errors if errors and k else None
    return RankingTruth(
        num_wrong=errors,
        auroc=auroc(scores, wrong),
        precision_at=precision,
        recall_at=recall,
    )
