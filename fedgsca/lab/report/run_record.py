"""Cost, events and warnings of a run, and what is needed to repeat it."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from fedgsca.federation.filters.distance import LOW, ROUNDS
from fedgsca.lab.report.elements import (
    BulletList,
    Collapsible,
    PageElement,
    PageSection,
    count_text,
    fold_long_table,
    percent_text,
    range_text,
    seconds_text,
)
from fedgsca.lab.report.run_facts import (
    describe_event,
    distant_rounds,
    event_rounds,
    method_events,
    phase_seconds,
)
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.table import Cell, Table
from fedgsca.support.text import size_text


def cost_section(run: LoadedRun) -> PageSection | None:
    """From timing.jsonl and the bytes in the log."""
    blocks: list[PageElement] = [*_time_tables(run), *_traffic_tables(run)]
    if not blocks:
        return None
    return PageSection("cost", "Time and traffic", "", blocks)


def _time_tables(run: LoadedRun) -> list[Table]:
    phases = phase_seconds(run)
    total = sum(map(sum, phases.values())) or 1.0
    rows: list[list[str | Cell]] = []
    for phase, seconds in phases.items():
        share = sum(seconds) / total
        cell = Cell(percent_text(share), bar=share)
        rows.append([phase, seconds_text(median(seconds)), seconds_text(sum(seconds)), cell])
    head = ["Phase", "Median per round", "All rounds", "Share"]
    note = f"{_memory_sentence(run)} {_slowest_site_sentence(run)}".strip()
    return [Table("Where the time goes", head, rows, bars=(3,), note=note)] if rows else []


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


def event_section(run: LoadedRun) -> PageSection | None:
    """Absent if nothing unusual happened."""
    blocks: list[PageElement] = []
    if run.damage:
        blocks.append(BulletList(run.damage, "Damaged files"))
    rows = _event_rows(run)
    if rows:
        events = [event for event in method_events(run) if event_rounds(run, event)]
        notes = [describe_event(run, event) for event in events]
        if distant_rounds(run):
            notes.append(_DISTANCE_NOTE)
        note = " ".join(note for note in dict.fromkeys(notes) if note)
        table = Table("Events, site by site", ["Site", "Event", "Rounds", "Times"], rows)
        blocks.append(fold_long_table(replace(table, words=(1, 2), note=note)))
    if run.setup.warnings:
        blocks.append(BulletList(run.setup.warnings, "Warnings and notes about the data"))
    return PageSection("events", "Events and warnings", "", blocks) if blocks else None


# a question, not a verdict
_DISTANCE_NOTE = (
    "Updates far from those of all others: under the rule mixing they had less than "
    f"{LOW:.0%} of the weight of their images in {ROUNDS} rounds in a row. Ask what "
    "differs: other images, classes or labels, other software, or false updates. Nothing was "
    "left out for it."
)


def _event_rows(run: LoadedRun) -> list[list[str]]:
    """Site, event, rounds and their number: of the method, updates left out, absent sites."""
    events: dict[tuple[str, str], list[int]] = {}
    for event, clause in method_events(run).items():
        for site, rounds in event_rounds(run, event).items():
            events[site, clause] = rounds
    for record in run.metrics:
        for site, reason in record.refusals.items():
            verb = "left out" if site in record.refused_sites else "absent"
            events.setdefault((site, f"{verb}: {reason}"), []).append(record.round + 1)
    for site, rounds in distant_rounds(run).items():
        events[site, "far from all others"] = rounds
    rows = []
    for (site, text), rounds in sorted(events.items()):
        rows.append([site, text, range_text(rounds), count_text(len(rounds))])
    return rows


def configuration_section(run: LoadedRun) -> PageSection | None:
    """From setup.json, result.json and config.toml."""
    blocks: list[PageElement] = []
    rows = [[name, value] for name, value in _facts(run).items() if value]
    if rows:
        head = ["Name", "Value"]
        blocks.append(Table("Fingerprints and versions", head, rows, words=(1,)))
    if run.settings.text:
        summary = "Full configuration (config.toml)"
        blocks.append(Collapsible(summary, text=run.settings.text))
    if not blocks:
        return None
    intro = (
        "On the same machine, the same configuration and data give the same model, byte for byte."
    )
    return PageSection("configuration", "How to repeat this run", intro, blocks)


def _facts(run: LoadedRun) -> dict[str, str]:
    setup = run.setup
    facts = {
        "Configuration": setup.fingerprint,
        "Data": setup.data.fingerprint,
        "Images": " × ".join(map(str, setup.data.shape)),
        "Test images": count_text(setup.test) if setup.data.name else "",
        "fedgsca": setup.version,
        "Machine": "",
    }
    if run.result is not None:
        facts["Configuration"] = setup.fingerprint or run.result.fingerprint
        facts["Data"] = setup.data.fingerprint or run.result.data_fingerprint
        facts["fedgsca"] = setup.version or run.result.version
        facts["Machine"] = run.result.machine
    return facts
