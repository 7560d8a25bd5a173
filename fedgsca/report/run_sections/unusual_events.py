"""Events that a method declares in `Method.logged`, refused updates, warnings about the data."""

from __future__ import annotations

from fedgsca.engine.filters.distance import LOW, LOW_ROUNDS, WINDOW
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
    distant_rounds,
    event_rounds,
    method_events,
)
from fedgsca.report.run_reader import LoadedRun


@run_section(position=120)
def event_section(run: LoadedRun) -> PageSection | None:
    """Absent if nothing unusual happened."""
    blocks: list[PageElement] = []
    if run.damage:
        blocks.append(BulletList(run.damage, "Damaged files"))
    blocks += [*_event_tables(run), *_rejection_tables(run), *_distance_tables(run)]
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


def _distance_tables(run: LoadedRun) -> list[PageTable | Collapsible]:
    """Sites that the others would hardly listen to: a question, not a verdict."""
    rounds = distant_rounds(run)
    if not rounds:
        return []
    rows = [[site, range_text(numbers)] for site, numbers in sorted(rounds.items())]
    note = (
        "Their updates are far from those of all others: under the rule mixing they had less than "
        f"{LOW:.0%} of the weight of their images in {LOW_ROUNDS} of {WINDOW} rounds. Ask what "
        "differs: other images, classes or labels, other software, or false updates. Nothing was "
        "left out for it."
    )
    table = PageTable("Sites far from all others", ["Site", "Rounds"], rows, words=(1,), note=note)
    return [fold_long_table(table)]
