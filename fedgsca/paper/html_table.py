"""report.html of a reproduced table: paper beside ours, figures, notes, in one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

from fedgsca.paper.captions import (
    agreement,
    heading,
    lead,
    legend,
    mean_text,
    rho_text,
    seeds_text,
    source,
    std_text,
    third_text,
    unfinished,
)
from fedgsca.paper.figure_output import Drawing
from fedgsca.paper.ranking import Entry, Group, groups, panels, winners
from fedgsca.paper.table_result import TableResult
from fedgsca.paper.text_tables import heads
from fedgsca.report.elements import (
    Block,
    Bullets,
    Cell,
    Fold,
    Gallery,
    Page,
    Picture,
    Section,
    Table,
    Tables,
    Tile,
)
from fedgsca.report.sentences import plural, signed


def to_html(result: TableResult, figures: Sequence[Drawing]) -> str:
    from fedgsca.report.html_page import render

    return render(page(result, figures))


def page(result: TableResult, figures: Sequence[Drawing]) -> Page:
    told = [*_tables(result), *_figures(figures), *_notes(result)]
    return Page(
        title=heading(result),
        subtitle=f"The paper: {result.paper_caption} · this run: {result.data}, {plural(len(result.seeds), 'seed')}",
        lead=lead(result),
        tiles=_tiles(result),
        sections=told,
        banner=_banner(result),
        footer=f"fedgsca · {result.name} · {source(result)}",
    )


def _banner(result: TableResult) -> str:
    mini = (
        f"Mini scale on {result.data}: the paper's grid, not the paper's data or protocol. Compare orders, not sizes, with the paper."
        if result.scale == "mini"
        else ""
    )
    return " ".join(text for text in (mini, unfinished(result)) if text)


def _tiles(result: TableResult) -> list[Tile]:
    every = groups(result)
    about = every[0].about.label
    tiles = [
        Tile(
            "Runs",
            f"{result.done}/{result.total}",
            "",
            "done" if result.done == result.total else "unfinished",
        )
    ]
    both = [
        here for here in every if winners(here.entries, "paper") and winners(here.entries, "ours")
    ]
    if both:
        same = sum(
            set(winners(here.entries, "paper")) == set(winners(here.entries, "ours"))
            for here in both
        )
        tiles.append(
            Tile(
                "Same winner",
                f"{same}/{len(both)}",
                "",
                f"settings with the paper's best in {about}",
            )
        )
    known = [here.rho for here in every if here.rho is not None]
    if known:
        mean = "mean Spearman's ρ" if len(known) > 1 else "Spearman's ρ"
        tiles.append(
            Tile(
                "Agreement of order",
                rho_text(fmean(known)),
                "",
                f"{mean}, {about}",
                strong=result.scale == "mini",
            )
        )
    gaps = [entry.gap for here in every for entry in here.entries if entry.gap is not None]
    if gaps and result.scale == "paper":
        digits = every[0].about.decimals(max(map(abs, gaps)))
        tiles.append(
            Tile(
                "Mean gap",
                signed(fmean(gaps), digits),
                "",
                f"{about}, ours minus the paper's",
                strong=True,
            )
        )
        tiles.append(
            Tile(
                "Largest gap",
                signed(max(gaps, key=abs), digits),
                "",
                f"{about}, over all rows and settings",
            )
        )
    return tiles


def _tables(result: TableResult) -> list[Section]:
    """One section per panel; its groups are narrow tables that stack on a phone."""
    made = []
    for i, panel in enumerate(panels(result)):
        by_column = panel.title not in result.columns
        names = [here.column if by_column else here.about.label for here in panel.groups]
        tables = [
            _table(result, here, name) for here, name in zip(panel.groups, names, strict=True)
        ]
        longest = max(len(row.label) for row in panel.rows)
        width = 325 + 6 * (min(max(longest, 10), 28) - 10)  # long names get room rather than lines
        intro = " ".join(legend(result)) if not i else ""
        made.append(
            Section(
                f"table-{i + 1}",
                panel.title,
                intro,
                [Tables(tables, agreement(list(panel.groups)), width)],
            )
        )
    return made


def _table(result: TableResult, here: Group, name: str) -> Table:
    rows = [[entry.row.label, *_cells(result, here, entry)] for entry in here.entries]
    return Table(name, ["", *heads(result, here)], rows)


def _cells(result: TableResult, here: Group, entry: Entry) -> list[str | Cell]:
    spread = " ".join(
        text for text in (std_text(entry.ours, here.about), seeds_text(entry)) if text
    )
    ours = Cell(
        mean_text(entry.ours, here.about), mark=entry.our_mark, small=spread, hang=entry.stars
    )
    if not here.has_paper:
        return [ours]
    paper = Cell(
        mean_text(entry.paper, here.about),
        mark=entry.paper_mark,
        small=std_text(entry.paper, here.about),
    )
    return [paper, ours, third_text(result, entry, here.about)]


def _figures(figures: Sequence[Drawing]) -> list[Section]:
    """Figures of one title share a section; those for reference only are closed."""
    made = []
    for title, alike in groupby(figures, key=lambda each: each.title):
        drawn = list(alike)
        blocks: list[Block] = []
        for each in drawn:
            gallery = Gallery([Picture(each.inline, each.alt, each.caption, each.narrow)], "wide")
            blocks.append(Fold(each.fold, [gallery]) if each.fold else gallery)
        made.append(Section(f"figure-{drawn[0].name}", title, "", blocks))
    return made


def _notes(result: TableResult) -> list[Section]:
    return [Section("notes", "Notes", "", [Bullets(result.notes)])] if result.notes else []
