"""Who was asked, who answered, and whose updates came late."""

from __future__ import annotations

from collections import Counter

from fedgsca.lab.report.elements import PageSection, fold_long_table
from fedgsca.lab.report.number_text import count_text
from fedgsca.lab.report.page_sections import run_section
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.table import Cell, Table
from fedgsca.support.text import plural


@run_section(position=45)
def participation_section(run: LoadedRun) -> PageSection | None:
    """For runs whose rounds do not ask all sites, or in which updates were late."""
    num_asked = Counter[str]()
    num_used = Counter[str]()
    num_late = Counter[str]()
    for record in run.metrics:
        num_asked.update(run.sites if record.asked_sites is None else record.asked_sites)
        for name, site in record.sites.items():
            is_late = site.number("rounds_late") is not None
            num_used[name] += not is_late
            num_late[name] += is_late
    is_partial = any(record.asked_sites is not None for record in run.metrics)
    if not is_partial and not num_late.total():
        return None
    return _section(run, num_asked, num_used, num_late)


def _section(
    run: LoadedRun, num_asked: Counter[str], num_used: Counter[str], num_late: Counter[str]
) -> PageSection:
    head = ["Site", "Rounds asked", "Updates in time"]
    if num_late.total():
        head.append("Late updates")
    rows: list[list[str | Cell]] = []
    for name in run.sites:
        row: list[str | Cell] = [name, count_text(num_asked[name]), count_text(num_used[name])]
        if num_late.total():
            row.append(count_text(num_late[name]))
        rows.append(row)
    per_round = num_asked.total() / max(len(run.metrics), 1)
    intro = (
        f"A round asked {per_round:.3g} of {plural(len(run.sites), 'site')} on average, drawn anew "
        "in every round."
    )
    num_never = sum(num_asked[name] == 0 for name in run.sites)
    if num_never:
        intro += f" {plural(num_never, 'site')} {_be(num_never)} never asked."
    if num_late.total():
        intro += (
            f" {plural(num_late.total(), 'update')} came late and counted with a smaller weight."
        )
    table = Table("Participation of the sites", head, rows)
    return PageSection("participation", "Who took part", intro, [fold_long_table(table)])


def _be(number: int) -> str:
    return "was" if number == 1 else "were"
