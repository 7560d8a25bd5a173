"""From finished settings to the page: recovery, audit and count. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from itertools import combinations
from statistics import fmean

from benchmarks.generalisation.measure import BASELINE, CEILING, OURS, Result, SiteResult
from fedgsca.lab.report.comparison_rows import recovery

# differences in F1 up to this many points, and in AUROC up to this much, count as equal
TOLERANCE = 0.5
AUROC_TOLERANCE = 0.01
# what a site without wrong labels may be told
CLEAN_SHARE = 0.05

INTRODUCTION = """Written by `python -m benchmarks.generalisation`; do not edit. Frozen
EfficientNet-Lite0 features at 96 pixels; every method has the model's rate and the same class
balance. *Shifted*: each site has an appearance of its own (`data.shift=strong`); *habits*: of four
sites, one reads grades higher or never uses the first class, another never uses the second.
*Alone*: the site's own evidence, as `fedgsca audit-folder`. Settings, not sites, have the same
weight in F1; sites have it in the audit."""


def make_page(part: str, results: Sequence[Result], planned: int) -> str:
    """Markdown of all tables."""
    seeds = ", ".join(map(str, sorted({result.setting.seed for result in results})))
    versions = ", ".join(sorted({result.version for result in results}))
    rates = {(result.rate, result.balance) for result in results}
    lines = [
        "# Hospitals that differ: the suite",
        "",
        INTRODUCTION,
        "",
        f"{date.today()}; part {part}; {len(results)} of {planned} settings; seeds {seeds}; source"
        f" {versions}; rate and balance {', '.join(f'{a:g}, {b:g}' for a, b in sorted(rates))}.",
    ]
    keys: dict[str, Callable[[Result], str]] = {
        "kind of sites": lambda result: result.setting.kind,
        "noise": lambda result: result.setting.noise,
        "data": lambda result: result.setting.data,
        "division": lambda result: f"{result.setting.sites} {result.setting.partition}",
        "kind and noise": lambda result: f"{result.setting.kind}: {result.setting.noise}",
    }
    for title, key in keys.items():
        groups = {"all": list(results)} | group_by(results, key)
        lines += ["", f"## By {title}", ""]
        lines += f1_table(groups)
        lines += ["", *audit_table(groups), "", *count_table(groups)]
    lines += ["", "## Every setting, mean over seeds", ""]
    lines += f1_table(group_by(results, lambda result: describe(result)))
    return "\n".join(lines) + "\n"


def group_by(results: Iterable[Result], key: Callable[[Result], str]) -> dict[str, list[Result]]:
    """The results by key, in the order of their first appearance."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups


def describe(result: Result) -> str:
    """A setting without its seed."""
    setting = result.setting
    return f"{setting.data}, {setting.kind}, {setting.noise}, {setting.sites} {setting.partition}"


# ---- F1 ----


def recoveries(results: Sequence[Result]) -> list[float]:
    """One for each setting whose ceiling is above FedAvg, of means over its seeds."""
    values = []
    for group in group_by([r for r in results if CEILING in r.f1], describe).values():
        means = [fmean(result.f1[name] for result in group) for name in (OURS, BASELINE, CEILING)]
        value = recovery(*means)
        if value is not None:
            values.append(value)
    return values


def f1_table(groups: dict[str, list[Result]]) -> list[str]:
    """F1 of the three methods; distances are of settings, means over their seeds."""
    lines = [
        "| | settings, runs | FedAvg | FedGSCA-E | ceiling | to FedAvg | worst"
        f" | below by more than {TOLERANCE} | recovery |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, results in groups.items():
        settings = group_by(results, describe).values()
        gaps = [fmean(r.f1[OURS] - r.f1[BASELINE] for r in setting) for setting in settings]
        ceilings = [result.f1[CEILING] for result in results if CEILING in result.f1]
        cells = [
            f"{len(gaps)}, {len(results)}",
            f"{fmean(result.f1[BASELINE] for result in results):.1f}",
            f"{fmean(result.f1[OURS] for result in results):.1f}",
            mean_text(ceilings, ".1f"),
            f"{fmean(gaps):+.1f}",
            f"{min(gaps):+.1f}",
            str(sum(gap < -TOLERANCE for gap in gaps)),
            mean_text(recoveries(results), ".2f"),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def mean_text(values: Sequence[float], style: str) -> str:
    """The mean, or a dash without values."""
    return format(fmean(values), style) if values else "–"


# ---- audit ----


def noisy_sites(results: Iterable[Result]) -> list[SiteResult]:
    """Sites with wrong labels that cleanlab could rank."""
    sites = [site for result in results for site in result.sites]
    return [site for site in sites if site.wrong and "cleanlab" in site.rankings]


def audit_table(groups: dict[str, list[Result]]) -> list[str]:
    """AUROC and precision in the first tenth: the run's audit, the site alone, cleanlab."""
    lines = [
        "| | noisy sites | AUROC: run, alone, cleanlab | precision: run, alone, cleanlab"
        " | run / cleanlab | run below cleanlab, below alone in AUROC by more than"
        f" {AUROC_TOLERANCE} |",
        "|---|---|---|---|---|---|",
    ]
    for name, results in groups.items():
        sites = noisy_sites(results)
        if not sites:
            continue
        areas = {key: [site.rankings[key].auroc or 0.0 for site in sites] for key in RANKINGS}
        shares = {key: [site.rankings[key].precision or 0.0 for site in sites] for key in RANKINGS}
        worse = []
        for rival in ("cleanlab", "alone"):
            pairs = zip(areas["run"], areas[rival], strict=True)
            worse.append(str(sum(ours < other - AUROC_TOLERANCE for ours, other in pairs)))
        base = fmean(shares["cleanlab"])
        cells = [
            str(len(sites)),
            ", ".join(f"{fmean(areas[key]):.3f}" for key in RANKINGS),
            ", ".join(f"{fmean(shares[key]):.3f}" for key in RANKINGS),
            f"{fmean(shares['run']) / base:.2f}" if base else "–",
            ", ".join(worse),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


RANKINGS = ("run", "alone", "cleanlab")


# ---- count ----


def count_table(groups: dict[str, list[Result]]) -> list[str]:
    """The run's estimate of how many labels are wrong, where it gives a number."""
    lines = [
        "| | sites | cannot tell | mean error of the share, points | interval holds"
        " | estimates within the interval of another seed | clean sites told less than"
        f" {100 * CLEAN_SHARE:.0f} % or nothing |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, results in groups.items():
        sites = [site for result in results for site in result.sites]
        counts = [(site, site.rankings["run"]) for site in sites if site.rankings["run"].can_tell]
        errors = [100 * abs((c.count or 0.0) - site.wrong) / site.labels for site, c in counts]
        holds = [float((c.low or 0.0) <= site.wrong <= (c.high or 0.0)) for site, c in counts]
        clean_sites = [site for site in sites if not site.wrong]
        cells = [
            str(len(sites)),
            f"{1 - len(counts) / len(sites):.2f}",
            mean_text(errors, ".1f"),
            mean_text(holds, ".2f"),
            mean_text(agreements(results), ".2f"),
            mean_text([float(is_told_little(site)) for site in clean_sites], ".2f"),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def is_told_little(site: SiteResult) -> bool:
    """Whether a site without wrong labels is told a small share, or that nothing can be said."""
    ranking = site.rankings["run"]
    return not ranking.can_tell or (ranking.count or 0.0) / site.labels < CLEAN_SHARE


def agreements(results: Iterable[Result]) -> list[float]:
    """For every site and pair of seeds with numbers: does one's interval contain the other's share?

    Two values for each pair. Seeds draw other noise at the same rate, and other images.
    """
    values = []
    for group in group_by(results, describe).values():
        by_site: dict[str, list[SiteResult]] = {}
        for result in group:
            for site in result.sites:
                if site.rankings["run"].can_tell:
                    by_site.setdefault(site.site, []).append(site)
        for sites in by_site.values():
            for pair in combinations(sites, 2):
                values += [float(contains(*pair)), float(contains(*pair[::-1]))]
    return values


def contains(site: SiteResult, other: SiteResult) -> bool:
    """Whether the interval of a site, as shares, contains the share estimated for another."""
    mine, share = site.rankings["run"], (other.rankings["run"].count or 0.0) / other.labels
    return (mine.low or 0.0) / site.labels <= share <= (mine.high or 0.0) / site.labels


def site_lines(results: Iterable[Result]) -> list[list[object]]:
    """One line for each site and ranking, for a csv file; the first is the header."""
    keys = ("data", "kind", "noise", "sites", "partition", "seed")
    names = ("auroc", "precision", "count", "low", "high", "can_tell")
    lines: list[list[object]] = [
        [*keys, "site", "site_noise", "labels", "wrong", "ranking", *names]
    ]
    for result in results:
        setting = [getattr(result.setting, key) for key in keys]
        for site in result.sites:
            facts = [site.site, site.noise, site.labels, site.wrong]
            for name, ranking in site.rankings.items():
                values = [getattr(ranking, key) for key in names]
                lines.append([*setting, *facts, name, *values])
    return lines
