"""Events that a method declares in `Method.logged`, refused updates, warnings about the data."""

from __future__ import annotations

from fedgsca.report.elements import (
    BulletList,
    Collapsible,
    PageElement,
    PageSection,
    PageTable,
    fold_long_table,
)
from fedgsca.report.number_text import count_text, range_text
from fedgsca.report.page_sections import run_section
from fedgsca.report.run_facts import (
    describe_event,
    event_rounds,
    method_events,
    opposition_alarms,
)
from fedgsca.report.run_reader import LoadedRun


@run_section(position=120)
def event_section(run: LoadedRun) -> PageSection | None:
    """Absent if nothing unusual happened."""
    blocks: list[PageElement] = []
    if run.damage:
        blocks.append(BulletList(run.damage, "Damaged files"))
    blocks += [*_event_tables(run), *_rejection_tables(run), *_scaling_tables(run)]
    alarms = opposition_alarms(run)
    if alarms:
        blocks.insert(0, BulletList(alarms, "One site against all others"))
    if run.setup.warnings:
        blocks.append(BulletList(run.setup.warnings, "Warnings and notes about the data"))
    if not blocks:
        return None
    return PageSection("events", "Events and warnings", "", blocks)


def _event_tables(run: LoadedRun) -> list[PageTable | Collapsible]:
    """One table per event of the method."""
    tables: list[PageTable | Collapsible] = []
    for event, clause in method_events(run).items():
        rounds = event_rounds(run, event)
        if rounds:
            rows = [
                [site, range_text(numbers), count_text(len(numbers))]
                for site, numbers in sorted(rounds.items())
            ]
            caption = f"Rounds in which {clause}"
            head = ["Site", "Rounds", "Times"]
            note = describe_event(run, event)
            table = PageTable(caption, head, rows, words=(1,), note=note)
            tables.append(fold_long_table(table))
    return tables


def _rejection_tables(run: LoadedRun) -> list[PageTable | Collapsible]:
    rounds: dict[tuple[str, str], list[int]] = {}
    for record in run.metrics:
        for site, reason in record.refusals.items():
            rounds.setdefault((site, reason), []).append(record.round + 1)
    if not rounds:
        return []
    rows = [
        [site, reason, range_text(numbers)] for (site, reason), numbers in sorted(rounds.items())
    ]
    note = "A refused update is left out of the average; the round continues with the other sites."
    head = ["Site", "Reason", "Rounds"]
    table = PageTable("Refused updates", head, rows, words=(1, 2), note=note)
    return [fold_long_table(table)]


def _scaling_tables(run: LoadedRun) -> list[PageTable | Collapsible]:
    """Changes that the guard used with a smaller norm."""
    rounds = event_rounds(run, "scaled_down")
    if not rounds:
        return []
    rows = [
        [site, range_text(numbers), count_text(len(numbers))] for site, numbers in rounds.items()
    ]
    note = "The guard uses a change that is unusually large with the norm of the other sites."
    table = PageTable(
        "Changes scaled down", ["Site", "Rounds", "Times"], rows, words=(1,), note=note
    )
    return [fold_long_table(table)]
