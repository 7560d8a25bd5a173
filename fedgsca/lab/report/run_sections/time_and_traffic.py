"""Where the time goes, and how many bytes are sent."""

from __future__ import annotations

from statistics import median

from fedgsca.lab.report.elements import PageElement, PageSection
from fedgsca.lab.report.number_text import percent_text, seconds_text
from fedgsca.lab.report.page_sections import run_section
from fedgsca.lab.report.run_facts import phase_seconds
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.table import Cell, Table
from fedgsca.support.text import size_text


@run_section(position=110)
def cost_section(run: LoadedRun) -> PageSection | None:
    """From timing.jsonl and the bytes in the log."""
    blocks: list[PageElement] = [*_time_tables(run), *_traffic_tables(run)]
    if not blocks:
        return None
    return PageSection("cost", "Time and traffic", "", blocks)


def _time_tables(run: LoadedRun) -> list[Table]:
    if not run.timing:
        return []
    phases = phase_seconds(run)
    total = sum(map(sum, phases.values())) or 1.0
    rows: list[list[str | Cell]] = []
    for phase, seconds in phases.items():
        share = sum(seconds) / total
        cell = Cell(percent_text(share), bar=share)
        rows.append([phase, seconds_text(median(seconds)), seconds_text(sum(seconds)), cell])
    head = ["Phase", "Median per round", "All rounds", "Share"]
    note = f"{_memory_sentence(run)} {_slowest_site_sentence(run)}".strip()
    return [Table("Where the time goes", head, rows, bars=(3,), note=note)]


def _memory_sentence(run: LoadedRun) -> str:
    if run.result is None or not run.result.peak_memory_mb > 0:
        return ""
    return f"Peak memory {run.result.peak_memory_mb:,.0f} MB."


def _slowest_site_sentence(run: LoadedRun) -> str:
    seconds: dict[str, list[float]] = {}
    for record in run.timing:
        for site, value in record.sites.items():
            seconds.setdefault(site, []).append(value)
    if len(seconds) < 2:
        return ""
    medians = {site: median(seconds[site]) for site in sorted(seconds)}
    slowest = max(medians, key=medians.__getitem__)
    typical = seconds_text(median(medians.values()))
    return (
        f"Slowest site: {slowest}, {seconds_text(medians[slowest])} per round; "
        f"the median over the sites is {typical}."
    )


def _traffic_tables(run: LoadedRun) -> list[Table]:
    directions = {
        "Server to sites": [record.bytes_down for record in run.metrics if record.bytes_down],
        "Sites to server": [record.bytes_up for record in run.metrics if record.bytes_up],
    }
    # rounds may ask some of the sites only
    counts = [len(record.asked_sites or run.sites) for record in run.metrics]
    num_sites = int(median(counts)) if counts else 0
    rows = []
    for direction, sizes in directions.items():
        if sizes:
            per_round = int(median(sizes))
            per_site = per_round // max(num_sites, 1)
            rows.append(
                [direction, size_text(per_site), size_text(per_round), size_text(sum(sizes))]
            )
    if not rows:
        return []
    head = ["Direction", "One site, one round", "One round", "All rounds"]
    return [Table("Traffic", head, rows)]
