"""The page: goals, main table, learning rates, audit; Markdown that also reads in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.generalisation.plan import (
    BASELINE,
    FROZEN,
    LEARNING_RATES,
    OURS,
    Setting,
    default_lr,
    rate_text,
)
from benchmarks.generalisation.results import CellResult, RankingScore
from benchmarks.generalisation.summary import (
    AuditPair,
    AuditSummary,
    Overview,
    Scores,
    SettingRow,
    collect_scores,
    describe_setting,
    mean_score,
    summarise,
    summarise_audits,
    summarise_setting,
)
from fedgsca.lab.report.run_facts import method_title
from fedgsca.lab.table import Cell, Row, Table
from fedgsca.lab.table import to_markdown as write_tables
from fedgsca.support.text import DASH

# (setting, seed) -> site -> cleanlab's ranking
CleanlabScores = Mapping[tuple[Setting, int], Mapping[str, RankingScore]]


@dataclass(frozen=True)
class Page:
    """Everything that the page shows."""

    part: str
    rows: tuple[SettingRow, ...]
    overview: Overview
    pairs: tuple[AuditPair, ...]
    scores: Scores
    versions: tuple[str, ...]
    finished: int
    planned: int


def make_page(
    part: str,
    results: Sequence[CellResult],
    cleanlab: CleanlabScores,
    methods: Sequence[str],
    planned: int,
) -> Page:
    """The page of all finished runs."""
    scores = collect_scores(results)
    val_scores = collect_scores(results, on_validation=True)
    settings = list(dict.fromkeys(result.cell.setting for result in results))
    rows = [summarise_setting(setting, scores, val_scores, methods) for setting in settings]
    pairs = []
    for result in results:
        cell = result.cell
        if cell.lr != default_lr(cell.setting.model) or cell.setting.model != FROZEN:
            continue
        rankings = cleanlab.get((cell.setting, cell.seed), {})
        for audit in result.sites:
            pairs.append(AuditPair(cell.setting, cell.seed, audit, rankings.get(audit.site)))
    versions = tuple(sorted({result.version for result in results}))
    overview = summarise(rows)
    return Page(part, tuple(rows), overview, tuple(pairs), scores, versions, len(results), planned)


def to_markdown(page: Page) -> str:
    """The whole page."""
    head = (
        f"# Generalisation, part {page.part}\n\n{page.finished} of {page.planned} runs are"
        f" finished. Package: {', '.join(page.versions)}.\n"
    )
    tables = [
        goal_table(page),
        main_table(page.rows),
        rank_table(page.overview),
        lr_table(page.scores),
        audit_table(page.pairs),
    ]
    return f"{head}\n{write_tables(tables)}\n"


def to_tree(page: Page) -> dict[str, Any]:
    """The page as JSON."""
    return {
        "part": page.part,
        "versions": list(page.versions),
        "finished": page.finished,
        "planned": page.planned,
        "overview": asdict(page.overview),
        "settings": [asdict(row) for row in page.rows],
        "audit": asdict(summarise_audits(page.pairs)),
        "goals": [asdict(goal) for goal in list_goals(page)],
    }


# ---- goals ----


@dataclass(frozen=True)
class Goal:
    """A target of the project and whether it is met."""

    text: str
    value: str
    is_met: bool


def list_goals(page: Page) -> list[Goal]:
    """The goals that can be judged by the finished runs."""
    overview = page.overview
    goals = []
    capped_mean = overview.capped_recovery
    if capped_mean is not None and overview.worst_recovery is not None:
        name, worst = overview.worst_recovery
        goals += [
            Goal(
                f"mean recovery at least 0.85 ({overview.recoveries} noisy settings)",
                f"{capped_mean:.2f} with each at most 1, plain {overview.mean_recovery:.2f}",
                capped_mean >= 0.85,
            ),
            Goal(
                "no setting below 0.5",
                _count_text(overview.low_recoveries, f"worst {worst:.2f}: {name}"),
                not overview.low_recoveries,
            ),
        ]
    if overview.mean_to_tuned is not None:
        goals.append(
            Goal(
                "at most 0.5 points below FedAvg tuned on clean validation labels "
                f"({overview.tuned_settings} noisy settings)",
                _count_text(overview.below_tuned, f"mean {overview.mean_to_tuned:+.1f}"),
                not overview.below_tuned,
            )
        )
    if overview.ranks:
        best = min(overview.ranks, key=lambda name: overview.ranks[name])
        goals.append(
            Goal(
                f"first by mean rank ({overview.ranked_settings} noisy settings)",
                f"{overview.ranks[OURS]:.2f}, first: {best}",
                best == OURS,
            )
        )
    if overview.worst_clean is not None:
        goals.append(
            Goal(
                f"without noise at most 0.5 points below FedAvg ({overview.clean_settings})",
                _count_text(overview.below_clean, f"worst {overview.worst_clean:+.1f}"),
                not overview.below_clean,
            )
        )
    if overview.cnn_settings:
        goals.append(
            Goal(
                f"small CNN at most 0.5 points below FedAvg ({overview.cnn_settings})",
                _count_text(overview.below_cnn, "none below"),
                not overview.below_cnn,
            )
        )
    return goals + _audit_goals(summarise_audits(page.pairs))


def _audit_goals(audit: AuditSummary) -> list[Goal]:
    goals = []
    if audit.ratio is not None:
        goals += [
            Goal(
                f"precision at least 1.4 times cleanlab's ({audit.pairs} noisy sites)",
                f"{audit.ratio:.2f}",
                audit.ratio >= 1.4,
            ),
            Goal(
                "AUROC better at every noisy site",
                f"worse at {audit.worse_auroc}",
                audit.worse_auroc == 0,
            ),
            Goal(
                "precision at no site worse by more than one label",
                f"worse by more than one label at {audit.much_worse_precision}",
                audit.much_worse_precision == 0,
            ),
        ]
    if audit.near_count is not None:
        goals.append(
            Goal(
                f"count within 5 points at nine noisy sites of ten ({audit.noisy_sites})",
                f"{audit.near_count:.2f}",
                audit.near_count >= 0.9,
            )
        )
    if audit.low_clean is not None:
        goals.append(
            Goal(
                f"clean sites shown less than 3 % ({audit.clean_sites})",
                f"{audit.low_clean:.2f}",
                audit.low_clean == 1.0,
            )
        )
    return goals


def _count_text(names: Sequence[str], remark: str) -> str:
    if not names:
        return remark
    return f"{len(names)} below ({remark}): " + ", ".join(names)


def goal_table(page: Page) -> Table:
    """The goals, met or missed."""
    rows = []
    for goal in list_goals(page):
        rows.append([goal.text, goal.value, "met" if goal.is_met else "missed"])
    return Table("Goals", ["goal", "result", ""], rows, words=(1, 2))


# ---- tables ----


def number(value: float | None, form: str = ".1f") -> str:
    """A number, or a dash."""
    return DASH if value is None else format(value, form)


def main_table(rows: Sequence[SettingRow]) -> Table:
    """One line per setting."""
    head = ["data", "network", "noise", "sites", "FedAvg", "tuned (lr)", method_title(OURS)]
    head += ["best rival", "ceiling", "recovery", "to tuned", "rank", "seeds"]
    lines: list[Row] = []
    order = sorted(rows, key=lambda row: (row.setting.model != FROZEN, row.setting.data))
    for row in order:
        setting = row.setting
        rival = DASH if row.rival is None else f"{row.rival[0]} {row.rival[1]:.1f}"
        tuned = number(row.tuned)
        if row.tuned_lr is not None:
            tuned += f" ({rate_text(row.tuned_lr)})"
        line: list[str | Cell] = [
            setting.data,
            setting.model,
            "none" if not setting.is_noisy else setting.noise,
            setting.partition,
            number(row.baseline),
            tuned,
            Cell(number(row.ours), "best"),
            rival,
            number(row.ceiling),
            number(row.recovery, ".2f"),
            number(row.to_tuned, "+.1f"),
            number(row.ranks.get(OURS), "g"),
            str(row.seeds),
        ]
        lines.append(line)
    note = "Recovery: (F1 - FedAvg) / (ceiling - FedAvg) of the means; a dash: no gap."
    return Table("Settings", head, lines, words=(1, 2, 3), note=note)


def rank_table(overview: Overview) -> Table:
    """Mean ranks of the methods, the best first."""
    order = sorted(overview.ranks.items(), key=lambda item: item[1])
    rows = [[method_title(name), f"{rank:.2f}"] for name, rank in order]
    title = f"Mean rank over {overview.ranked_settings} noisy settings that all methods have"
    return Table(title, ["method", "mean rank"], rows)


def lr_table(scores: Scores) -> Table:
    """F1 over two decades of learning rate; seeds that all six runs have."""
    rates = LEARNING_RATES[FROZEN]
    head = ["data, noise"]
    head += [f"{method_title(name)} {rate_text(lr)}" for name in (BASELINE, OURS) for lr in rates]
    rows = []
    table = []
    settings = list(dict.fromkeys(setting for setting, _, _ in scores))
    for setting in settings:
        keys = [(setting, method, lr) for method in (BASELINE, OURS) for lr in rates]
        if setting.model != FROZEN or not all(key in scores for key in keys):
            continue
        seeds = sorted(set.intersection(*[set(scores[key]) for key in keys]))
        if seeds:
            values = [mean_score(scores, *key, seeds) or 0.0 for key in keys]
            table.append(values)
            rows.append([describe_setting(setting), *(f"{value:.1f}" for value in values)])
    if table:
        rows.append(["mean", *(f"{value:.1f}" for value in np.mean(table, axis=0))])
    return Table("Learning rates", head, rows)


AUDIT_HEAD = (
    "data",
    "noise",
    "noisy, clean sites",
    "AUROC",
    "cleanlab",
    "precision",
    "cleanlab",
    "ratio",
    "AUROC worse",
    "precision worse (by > 1 label)",
    "count within 5 points",
    "interval holds",
    "clean below 3 %",
    "cannot tell",
)


def audit_table(pairs: Sequence[AuditPair]) -> Table:
    """The audit against cleanlab, by data and noise, and over all sites."""
    rows = []
    places = list(dict.fromkeys((pair.setting.data, pair.setting.noise) for pair in pairs))
    for data, noise in sorted(places):
        members = [
            pair for pair in pairs if (pair.setting.data, pair.setting.noise) == (data, noise)
        ]
        rows.append(_audit_row(data, "none" if noise == "0" else noise, members))
    for partition in dict.fromkeys(pair.setting.partition for pair in pairs):
        members = [pair for pair in pairs if pair.setting.partition == partition]
        rows.append(_audit_row("all", f"all, {partition}", members))
    rows.append(_audit_row("all", "all", pairs))
    told = summarise_audits(pairs)
    note = (
        "Where the audit gives a number: count within 5 points at "
        f"{number(told.told_near_count, '.2f')} of the noisy sites, clean sites below 3 %: "
        f"{number(told.told_low_clean, '.2f')}."
    )
    return Table("The audit against cleanlab", AUDIT_HEAD, rows, words=(1,), note=note)


def _audit_row(data: str, noise: str, pairs: Sequence[AuditPair]) -> list[str]:
    audit = summarise_audits(pairs)
    scores = (audit.auroc, audit.cleanlab_auroc, audit.precision, audit.cleanlab_precision)
    return [
        data,
        noise,
        f"{audit.noisy_sites}, {audit.clean_sites}",
        *(number(score, ".3f") for score in scores),
        number(audit.ratio, ".2f"),
        f"{audit.worse_auroc} of {audit.pairs}",
        f"{audit.worse_precision} ({audit.much_worse_precision})",
        number(audit.near_count, ".2f"),
        number(audit.coverage, ".2f"),
        number(audit.low_clean, ".2f"),
        number(audit.cannot_tell, ".2f"),
    ]
