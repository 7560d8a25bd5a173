"""From finished runs to the numbers of the page. Pure functions.

F1 is in percent, a mean over seeds; recovery is that of all tables (report/comparison_rows.py). A
small gap still gives a large ratio, so the goal is judged by the mean in which no setting counts
more than 1; the plain mean is shown beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.generalisation.plan import (
    BASELINE,
    CEILING,
    CNN,
    FROZEN,
    LEARNING_RATES,
    OURS,
    Rate,
    Setting,
    default_lr,
)
from benchmarks.generalisation.results import CellResult, RankingScore, SiteAudit
from fedgsca.lab.report.comparison_rows import recovery
from fedgsca.labels.build_audit import first_tenth

# differences in F1 up to this many points count as equal
TOLERANCE = 0.5
LOW_RECOVERY = 0.5
# of the labels: how far an estimated share may be from the true one, and what a clean site may show
COUNT_TOLERANCE = 0.05
CLEAN_LIMIT = 0.03
# (setting, method, learning rate) -> seed -> score
Scores = Mapping[tuple[Setting, str, Rate], Mapping[int, float]]


def collect_scores(results: Iterable[CellResult], *, on_validation: bool = False) -> Scores:
    """F1 by setting, method, learning rate and seed.

    `on_validation`: that on validation images, where they are not the ones F1 is measured on.
    """
    scores: dict[tuple[Setting, str, Rate], dict[int, float]] = {}
    for result in results:
        cell = result.cell
        score = result.f1
        if on_validation and result.val_f1 is not None:
            score = result.val_f1
        scores.setdefault((cell.setting, cell.method, cell.lr), {})[cell.seed] = score
    return scores


def mean_score(
    scores: Scores, setting: Setting, method: str, lr: Rate, seeds: Sequence[int] | None = None
) -> float | None:
    """The mean over the seeds that are finished, or over `seeds` if all of them are; else None."""
    values = scores.get((setting, method, lr), {})
    if seeds is not None and not set(seeds) <= set(values):
        return None
    chosen_values = list(values.values()) if seeds is None else [values[seed] for seed in seeds]
    return float(np.mean(chosen_values)) if chosen_values else None


def rank_methods(scores: Mapping[str, float]) -> dict[str, float]:
    """Method -> rank, 1 is the best; equal scores share the mean of their ranks."""
    ranks = {}
    for method, score in scores.items():
        better = sum(value > score for value in scores.values())
        equal = sum(value == score for value in scores.values())
        ranks[method] = better + (equal + 1) / 2
    return ranks


def tuned_lr(scores: Scores, setting: Setting, method: str = BASELINE) -> Rate | None:
    """The learning rate with the highest mean score on clean validation labels.

    None until all learning rates are finished with the same seeds.
    """
    rates = LEARNING_RATES[setting.model]
    if len(rates) < 2:
        return None
    finished_seeds = [set(scores.get((setting, method, lr), {})) for lr in rates]
    seeds = sorted(set.intersection(*finished_seeds))
    if not seeds:
        return None
    means = [mean_score(scores, setting, method, lr, seeds) or 0.0 for lr in rates]
    return rates[int(np.argmax(means))]


@dataclass(frozen=True)
class SettingRow:
    """One line of the main table; None: not finished."""

    setting: Setting
    seeds: int
    baseline: float | None
    tuned: float | None
    tuned_lr: Rate | None
    ours: float | None
    # name and F1, over the seeds that the rivals have
    rival: tuple[str, float] | None
    ceiling: float | None
    recovery: float | None
    # standard deviation of FedGSCA's F1 over seeds
    spread: float | None
    # method -> rank among all methods, over common seeds; empty until all are finished
    ranks: Mapping[str, float]

    @property
    def to_baseline(self) -> float | None:
        return _difference(self.ours, self.baseline)

    @property
    def to_tuned(self) -> float | None:
        return _difference(self.ours, self.tuned)


def _difference(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def summarise_setting(
    setting: Setting, scores: Scores, val_scores: Scores, methods: Sequence[str]
) -> SettingRow:
    """The line of a setting. Means are over the seeds that FedAvg and FedGSCA have in common."""
    usual = default_lr(setting.model)
    baseline_seeds = set(scores.get((setting, BASELINE, usual), {}))
    common_seeds = sorted(baseline_seeds & set(scores.get((setting, OURS, usual), {})))
    if setting.is_noisy and setting.model == FROZEN:
        ceiling_seeds = set(scores.get((setting, CEILING, usual), {}))
        common_seeds = [seed for seed in common_seeds if seed in ceiling_seeds]
    baseline = _mean_over(scores, setting, BASELINE, usual, common_seeds)
    ours = _mean_over(scores, setting, OURS, usual, common_seeds)
    ceiling = _mean_over(scores, setting, CEILING, usual, common_seeds)
    best_lr = tuned_lr(val_scores, setting)
    tuned = None
    if best_lr is not None:
        tuned = _mean_over(scores, setting, BASELINE, best_lr, common_seeds)
    ratio = None
    if ours is not None and baseline is not None and ceiling is not None:
        ratio = recovery(ours, baseline, ceiling)
    values = scores.get((setting, OURS, usual), {})
    spread = float(np.std([values[seed] for seed in common_seeds])) if common_seeds else None
    by_method = method_scores(setting, scores, methods)
    rivals = {name: by_method[name] for name in by_method if name not in (BASELINE, OURS)}
    best_rival = max(rivals.items(), key=lambda item: item[1], default=None)
    ranks = rank_methods(by_method) if len(by_method) == len(methods) else {}
    return SettingRow(
        setting=setting,
        seeds=len(common_seeds),
        baseline=baseline,
        tuned=tuned,
        tuned_lr=best_lr,
        ours=ours,
        rival=best_rival,
        ceiling=ceiling,
        recovery=ratio,
        spread=spread,
        ranks=ranks,
    )


def _mean_over(
    scores: Scores, setting: Setting, method: str, lr: Rate, seeds: Sequence[int]
) -> float | None:
    return mean_score(scores, setting, method, lr, seeds) if seeds else None


def method_scores(setting: Setting, scores: Scores, methods: Sequence[str]) -> dict[str, float]:
    """Method -> F1 over the seeds that every finished method has."""
    usual = default_lr(setting.model)
    finished_methods = [name for name in methods if scores.get((setting, name, usual))]
    if not finished_methods:
        return {}
    seed_sets = [set(scores[(setting, name, usual)]) for name in finished_methods]
    seeds = sorted(set.intersection(*seed_sets))
    by_method = {}
    for name in finished_methods:
        score = _mean_over(scores, setting, name, usual, seeds)
        if score is not None:
            by_method[name] = score
    return by_method


@dataclass(frozen=True)
class Overview:
    """The numbers above the main table, over frozen settings unless said otherwise."""

    noisy_settings: int
    recoveries: int
    mean_recovery: float | None
    # the same with every setting counting at most 1
    capped_recovery: float | None
    worst_recovery: tuple[str, float] | None
    low_recoveries: tuple[str, ...]
    # noisy settings with a tuned FedAvg, those that are worse by more than TOLERANCE, and the mean
    tuned_settings: int
    below_tuned: tuple[str, ...]
    mean_to_tuned: float | None
    # settings without noise: largest loss against FedAvg, and those beyond TOLERANCE
    clean_settings: int
    below_clean: tuple[str, ...]
    worst_clean: float | None
    # small CNN
    cnn_settings: int
    below_cnn: tuple[str, ...]
    # method -> mean rank over the noisy settings in which all methods are finished
    ranks: Mapping[str, float]
    ranked_settings: int


def describe_setting(setting: Setting) -> str:
    """As in the text: "ham10000 S40 dirichlet"."""
    model = "" if setting.model == FROZEN else f" {setting.model}"
    return f"{setting.data} {setting.noise} {setting.partition}{model}"


def summarise(rows: Sequence[SettingRow]) -> Overview:
    """The overview of all rows, as far as they are finished."""
    frozen_rows = [row for row in rows if row.setting.model == FROZEN]
    noisy_rows = [row for row in frozen_rows if row.setting.is_noisy and row.ours is not None]
    clean_rows = [row for row in frozen_rows if not row.setting.is_noisy]
    clean_rows = [row for row in clean_rows if row.to_baseline is not None]
    cnn_rows = [row for row in rows if row.setting.model == CNN and row.to_baseline is not None]
    ratios = {}
    for row in noisy_rows:
        if row.recovery is not None:
            ratios[describe_setting(row.setting)] = row.recovery
    distances = {}
    for row in noisy_rows:
        if row.to_tuned is not None:
            distances[describe_setting(row.setting)] = row.to_tuned
    ranked_rows = [row for row in noisy_rows if row.ranks]
    methods = ranked_rows[0].ranks if ranked_rows else {}
    clean_gaps = [row.to_baseline for row in clean_rows if row.to_baseline is not None]
    return Overview(
        noisy_settings=len(noisy_rows),
        recoveries=len(ratios),
        mean_recovery=_mean(list(ratios.values())),
        capped_recovery=_mean([min(value, 1.0) for value in ratios.values()]),
        worst_recovery=min(ratios.items(), key=lambda item: item[1], default=None),
        low_recoveries=tuple(name for name, value in ratios.items() if value < LOW_RECOVERY),
        tuned_settings=len(distances),
        below_tuned=tuple(name for name, value in distances.items() if value < -TOLERANCE),
        mean_to_tuned=_mean(list(distances.values())),
        clean_settings=len(clean_rows),
        below_clean=_below_baseline(clean_rows),
        worst_clean=min(clean_gaps, default=None),
        cnn_settings=len(cnn_rows),
        below_cnn=_below_baseline(cnn_rows),
        ranks={name: float(np.mean([row.ranks[name] for row in ranked_rows])) for name in methods},
        ranked_settings=len(ranked_rows),
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _below_baseline(rows: Sequence[SettingRow]) -> tuple[str, ...]:
    names = []
    for row in rows:
        gap = row.to_baseline
        if gap is not None and gap < -TOLERANCE:
            names.append(f"{describe_setting(row.setting)} ({gap:+.1f})")
    return tuple(names)


# ---- the audit ----


@dataclass(frozen=True)
class AuditPair:
    """A site audited by FedGSCA's run; with cleanlab's ranking where it was measured."""

    setting: Setting
    seed: int
    audit: SiteAudit
    cleanlab: RankingScore | None


@dataclass(frozen=True)
class AuditSummary:
    """Audit against cleanlab over some sites. Ranking: noisy sites that both have ranked."""

    sites: int
    noisy_sites: int
    clean_sites: int
    # sites in the comparison
    pairs: int
    auroc: float | None
    cleanlab_auroc: float | None
    precision: float | None
    cleanlab_precision: float | None
    worse_auroc: int
    worse_precision: int
    # by more than one label
    much_worse_precision: int
    # share of the noisy sites whose estimated share is within COUNT_TOLERANCE
    near_count: float | None
    # of all sites
    coverage: float | None
    # of the clean sites: share shown less than CLEAN_LIMIT
    low_clean: float | None
    cannot_tell: float | None
    # the first two, only over sites where the audit gives a number
    told_near_count: float | None
    told_low_clean: float | None

    @property
    def ratio(self) -> float | None:
        """Precision as a multiple of cleanlab's."""
        if self.precision is None or not self.cleanlab_precision:
            return None
        return self.precision / self.cleanlab_precision


def labels_lost(pair: AuditPair) -> float:
    """Wrong labels that cleanlab finds more in the first tenth of the list; negative: fewer."""
    assert pair.cleanlab is not None
    size = first_tenth(pair.audit.labels)
    return ((pair.cleanlab.precision or 0.0) - (pair.audit.precision or 0.0)) * size


def summarise_audits(pairs: Sequence[AuditPair]) -> AuditSummary:
    """The comparison over all these sites."""
    audits = [pair.audit for pair in pairs]
    noisy_sites = [audit for audit in audits if audit.wrong]
    clean_sites = [audit for audit in audits if not audit.wrong]
    ranked_pairs = [pair for pair in pairs if pair.audit.wrong and pair.cleanlab is not None]
    ours = [pair.audit for pair in ranked_pairs]
    cleanlab = [pair.cleanlab for pair in ranked_pairs if pair.cleanlab is not None]
    lost = [labels_lost(pair) for pair in ranked_pairs]
    gaps = [(b.auroc or 0.0) - (a.auroc or 0.0) for a, b in zip(ours, cleanlab, strict=True)]
    holds = [audit.low <= audit.wrong <= audit.high for audit in audits]
    return AuditSummary(
        sites=len(audits),
        noisy_sites=len(noisy_sites),
        clean_sites=len(clean_sites),
        pairs=len(ranked_pairs),
        auroc=_mean([audit.auroc or 0.0 for audit in ours]),
        cleanlab_auroc=_mean([score.auroc or 0.0 for score in cleanlab]),
        precision=_mean([audit.precision or 0.0 for audit in ours]),
        cleanlab_precision=_mean([score.precision or 0.0 for score in cleanlab]),
        worse_auroc=sum(gap > 0 for gap in gaps),
        worse_precision=sum(count > 1e-9 for count in lost),
        much_worse_precision=sum(count > 1 + 1e-9 for count in lost),
        near_count=_mean([is_near(audit) for audit in noisy_sites]),
        coverage=_mean(holds),
        low_clean=_mean([is_low(audit) for audit in clean_sites]),
        cannot_tell=_mean([not audit.can_tell for audit in audits]),
        told_near_count=_mean([is_near(audit) for audit in noisy_sites if audit.can_tell]),
        told_low_clean=_mean([is_low(audit) for audit in clean_sites if audit.can_tell]),
    )


def is_near(audit: SiteAudit) -> bool:
    """Whether the estimated share of wrong labels is within COUNT_TOLERANCE of the truth."""
    return abs(audit.estimate - audit.wrong) / audit.labels <= COUNT_TOLERANCE


def is_low(audit: SiteAudit) -> bool:
    """Whether a clean site is shown less than CLEAN_LIMIT wrong labels."""
    return audit.estimate / audit.labels < CLEAN_LIMIT
