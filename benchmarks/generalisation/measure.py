"""One run of the suite: macro F1, and the audit of every site against the truth."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.generalisation.plan import OURS, Cell, Dataset, Size, cell_config
from benchmarks.generalisation.results import (
    CellResult,
    RankingScore,
    SiteAudit,
    package_version,
)
from benchmarks.generalisation.sources import share_features
from fedgsca.evidence import Judgement
from fedgsca.federation.label_evidence import read_evidence
from fedgsca.federation.records import RoundRecord
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.labels.build_audit import first_tenth, precision_at
from fedgsca.labels.score import count_errors, rank_labels
from fedgsca.labels.second_opinion import label_quality, out_of_sample_probs
from fedgsca.labels.wrong_count import fit_models
from fedgsca.metrics import HEADLINE_ROUNDS, auroc


def measure_cell(
    cell: Cell,
    dataset: Dataset,
    size: Size,
    scratch: Path,
    settings: Mapping[str, object] | None = None,
) -> CellResult:
    """Run a cell in a folder below `scratch`, which is removed again."""
    config = cell_config(cell, dataset, size, settings)
    folder = scratch / cell.name
    shutil.rmtree(folder, ignore_errors=True)
    # once per data set: not part of the time of a run
    share_features(config)
    start = time.perf_counter()
    experiment = prepare(config)
    try:
        result = run(config, folder, experiment=experiment)
        assert result is not None  # the run is not stopped early
        records = read_rounds(folder)
        last_scores = [record.val_f1 for record in records[-HEADLINE_ROUNDS:]]
        scores = [score for score in last_scores if score is not None]
        sites = audit_sites(experiment, folder) if cell.method == OURS else ()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return CellResult(
        cell=cell,
        f1=result.f1,
        val_f1=float(np.mean(scores)) if scores else None,
        seconds=time.perf_counter() - start,
        version=package_version(),
        sites=sites,
        per_class={name: score.f1 for name, score in result.per_class.items()},
        notes=list_refusals(records),
    )


def list_refusals(records: Sequence[RoundRecord]) -> tuple[str, ...]:
    """What the coordinator's guard refused: all sites are honest, so each is a false alarm."""
    notes = []
    for record in records:
        for name, reason in record.refusals.items():
            notes.append(f"round {record.round}: {name}: {reason}")
    return tuple(notes)


def true_labels(experiment: Experiment) -> dict[str, np.ndarray]:
    """Site -> (n,) true labels, also without noise."""
    return {name: experiment.table.labels[rows] for name, rows in experiment.rows.items()}


def audit_sites(experiment: Experiment, folder: Path) -> tuple[SiteAudit, ...]:
    """The audit of every site."""
    audits = []
    for name, truth in sorted(true_labels(experiment).items()):
        given = experiment.sites[name].labels
        audits.append(audit_site(name, read_evidence(folder, name), given, given != truth))
    return tuple(audits)


def audit_site(name: str, judgement: Judgement, given: np.ndarray, wrong: np.ndarray) -> SiteAudit:
    """Ranking and count of one site; given (n,), wrong (n,) bool."""
    ranking = rank_labels(judgement, given)
    errors = count_errors(fit_models(judgement, given), len(given))
    scores = np.empty(len(given))
    scores[ranking.order] = -np.arange(len(given), dtype=np.float64)
    quality = score_ranking(scores, wrong)
    return SiteAudit(
        site=name,
        labels=len(given),
        wrong=int(wrong.sum()),
        estimate=float(errors.count),
        low=float(errors.low),
        high=float(errors.high),
        can_tell=bool(errors.can_tell),
        auroc=quality.auroc,
        precision=quality.precision,
    )


def score_ranking(scores: np.ndarray, wrong: np.ndarray) -> RankingScore:
    """The quality of a ranking by scores (n,), higher is worse; None without wrong labels."""
    if not wrong.any():
        return RankingScore(None, None)
    order = np.argsort(-scores, kind="stable")
    return RankingScore(auroc(scores, wrong), precision_at(order, wrong, first_tenth(len(wrong))))


def measure_cleanlab(cell: Cell, dataset: Dataset, size: Size) -> dict[str, RankingScore]:
    """What cleanlab finds inside each site, by cross-validated regressions on the same features."""
    config = cell_config(cell, dataset, size)
    share_features(config)
    experiment = prepare(config)
    scores = {}
    for name, truth in true_labels(experiment).items():
        samples = experiment.sites[name]
        wrong = samples.labels != truth
        if not wrong.any():
            scores[name] = RankingScore(None, None)
            continue
        features = np.asarray(samples.inputs)
        probs = out_of_sample_probs(features, samples.labels, experiment.table.num_classes)
        scores[name] = score_ranking(-label_quality(probs, samples.labels), wrong)
    return scores
