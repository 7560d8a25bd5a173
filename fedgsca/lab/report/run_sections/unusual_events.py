"""Events that a method declares in `Method.logged`, updates left out, warnings about the data."""

from __future__ import annotations

from fedgsca.federation.filters.distance import LOW, ROUNDS
from fedgsca.lab.report.elements import BulletList, PageElement, PageSection, fold_long_table
from fedgsca.lab.report.number_text import count_text, range_text
from fedgsca.lab.report.page_sections import run_section
from fedgsca.lab.report.run_facts import describe_event, distant_rounds, event_rounds, method_events
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.table import Table


@run_section(position=120)
def event_section(run: LoadedRun) -> PageSection | None:
    """Absent if nothing unusual happened."""
    blocks: list[PageElement] = []
    if run.damage:
        blocks.append(BulletList(run.damage, "Damaged files"))
    tables = [*_event_tables(run), *_refusal_tables(run), *_distance_tables(run)]
    blocks += [fold_long_table(table) for table in tables]
    if run.setup.warnings:
        blocks.append(BulletList(run.setup.warnings, "Warnings and notes about the data"))
    if not blocks:
        return None
    return PageSection("events", "Events and warnings", "", blocks)


def _event_tables(run: LoadedRun) -> list[Table]:
    """One table per event of the method."""
    tables = []
    for event, clause in method_events(run).items():
        rows = []
        for site, numbers in sorted(event_rounds(run, event).items()):
            rows.append([site, range_text(numbers), count_text(len(numbers))])
        if rows:
            title = f"Rounds in which {clause}"
            head = ["Site", "Rounds", "Times"]
            note = describe_event(run, event)
            tables.append(Table(title, head, rows, words=(1,), note=note))
    return tables


def _refusal_tables(run: LoadedRun) -> list[Table]:
    left_out: dict[tuple[str, str], list[int]] = {}
    absent: dict[tuple[str, str], list[int]] = {}
    for record in run.metrics:
        for site, reason in record.refusals.items():
            rounds = left_out if site in record.refused_sites else absent
            rounds.setdefault((site, reason), []).append(record.round + 1)
    note = "The round continues with the other sites."
    tables = []
    for title, places in (("Updates left out", left_out), ("Absent sites", absent)):
        rows = []
        for (site, reason), numbers in sorted(places.items()):
            rows.append([site, reason, range_text(numbers)])
        if rows:
            head = ["Site", "Reason", "Rounds"]
            tables.append(Table(title, head, rows, words=(1, 2), note=note))
    return tables


def _distance_tables(run: LoadedRun) -> list[Table]:
    """Sites that the others would hardly listen to: a question, not a verdict."""
    rounds = distant_rounds(run)
    if not rounds:
        return []
    rows = [[site, range_text(numbers)] for site, numbers in sorted(rounds.items())]
    note = (
        "Their updates are far from those of all others: under the rule mixing they had less than "
        f"{LOW:.0%} of the weight of their images in {ROUNDS} rounds in a row. Ask what "
        "differs: other images, classes or labels, other software, or false updates. Nothing was "
        "left out for it."
    )
    return [Table("Sites far from all others", ["Site", "Rounds"], rows, words=(1,), note=note)]
