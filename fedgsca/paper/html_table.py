"""report.html of a reproduced table: paper beside ours, figures and notes in one file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

from fedgsca.paper.captions import (
    DIFFERENCE_HEAD,
    SITE_LEGEND,
    agreement,
    all_gaps,
    difference_rows,
    heading,
    lead,
    legend,
    mean_text,
    reference_label,
    rho_text,
    seeds_text,
    site_rows,
    source,
    std_text,
    third_text,
    unfinished,
)
from fedgsca.paper.figure_output import Drawing
from fedgsca.paper.ranking import (
    Panel,
    ScoreGroup,
    TableEntry,
    headline_groups,
    panels,
    winners,
)
from fedgsca.paper.table_result import TableResult
from fedgsca.paper.text_tables import group_heads
from fedgsca.report.elements import (
    BulletList,
    Collapsible,
    Page,
    PageElement,
    PageSection,
    PageTable,
    PlotGallery,
    PlotImage,
    TableCell,
    TableGroup,
    Tile,
)
from fedgsca.support.text import plural, signed


def to_html(result: TableResult, drawings: Sequence[Drawing]) -> str:
    """The page as HTML that needs no other file."""
    from fedgsca.report.html_page import render_page

    return render_page(make_page(result, drawings))


def make_page(result: TableResult, drawings: Sequence[Drawing]) -> Page:
    """The page of a table."""
    sections = [
        *_table_sections(result),
        *_difference_sections(result),
        *_site_sections(result),
        *_figure_sections(drawings),
        *_note_sections(result),
    ]
    seeds = plural(len(result.seeds), "seed")
    return Page(
        title=heading(result),
        subtitle=f"The paper: {result.paper_caption} · this run: {result.data}, {seeds}",
        lead=lead(result),
        tiles=_tiles(result),
        sections=sections,
        banner=_banner(result),
        footer=f"fedgsca · {result.name} · {source(result)}",
    )


def _banner(result: TableResult) -> str:
    if result.scale == "paper":
        return unfinished(result)
    mini = (
        f"Mini scale on {result.data}: the paper's grid, not the paper's data or protocol. "
        "Compare orders, not sizes, with the paper."
    )
    return f"{mini} {unfinished(result)}".rstrip()


def _tiles(result: TableResult) -> list[Tile]:
    groups = headline_groups(result)
    state = "unfinished" if unfinished(result) else "done"
    tiles = [Tile("Runs", f"{result.finished_runs}/{result.total_runs}", "", state)]
    tiles += _winner_tiles(groups)
    tiles += _order_tiles(groups, strong=result.scale == "mini")
    if result.scale == "paper":
        tiles += _gap_tiles(groups)
    return tiles


def _winner_tiles(groups: Sequence[ScoreGroup]) -> list[Tile]:
    total = 0
    agreeing = 0
    for group in groups:
        paper = winners(group, "paper")
        ours = winners(group, "ours")
        if paper and ours:
            total += 1
            agreeing += set(paper) == set(ours)
    if not total:
        return []
    note = f"settings with the paper's best in {groups[0].metric.label}"
    return [Tile("Same winner", f"{agreeing}/{total}", "", note)]


def _order_tiles(groups: Sequence[ScoreGroup], *, strong: bool) -> list[Tile]:
    rhos = [group.rho for group in groups if group.rho is not None]
    if not rhos:
        return []
    name = "mean Spearman's ρ" if len(rhos) > 1 else "Spearman's ρ"
    note = f"{name}, {groups[0].metric.label}"
    return [Tile("Agreement of order", rho_text(fmean(rhos)), "", note, strong=strong)]


def _gap_tiles(groups: Sequence[ScoreGroup]) -> list[Tile]:
    gaps = all_gaps(groups)
    if not gaps:
        return []
    metric = groups[0].metric
    digits = metric.decimals(max(map(abs, gaps)))
    mean_note = f"{metric.label}, ours minus the paper's"
    largest = signed(max(gaps, key=abs), digits)
    return [
        Tile("Mean gap", signed(fmean(gaps), digits), "", mean_note, strong=True),
        Tile("Largest gap", largest, "", f"{metric.label}, over all rows and settings"),
    ]


def _difference_sections(result: TableResult) -> list[PageSection]:
    """Differences from the reference row in the first metric, with intervals."""
    tables = []
    for group in headline_groups(result):
        rows = difference_rows(result, group)
        if rows:
            caption = f"{group.column}: {group.metric.short} minus {reference_label(result)}'s"
            tables.append(PageTable(caption, list(DIFFERENCE_HEAD), rows, words=(2,)))
    if not tables:
        return []
    intro = "Mean over common seeds, its 95 % interval by Student's t, and p before and after Holm."
    return [PageSection("differences", "Differences", intro, tables)]


def _site_sections(result: TableResult) -> list[PageSection]:
    tables = []
    for column in result.columns:
        head, rows = site_rows(result, column)
        if rows:
            tables.append(PageTable(f"{column}: macro F1", head, rows))
    return [PageSection("sites", "Sites", SITE_LEGEND, tables)] if tables else []


def _table_sections(result: TableResult) -> list[PageSection]:
    """One section per panel; its groups are narrow tables that stack on a phone."""
    sections = []
    for i, panel in enumerate(panels(result), start=1):
        intro = " ".join(legend(result)) if i == 1 else ""
        section = PageSection(f"table-{i}", panel.title, intro, [_panel_tables(result, panel)])
        sections.append(section)
    return sections


def _panel_tables(result: TableResult, panel: Panel) -> TableGroup:
    by_column = panel.title not in result.columns
    tables = []
    for group in panel.groups:
        name = group.column if by_column else group.metric.label
        rows = [[entry.row.label, *_cells(result, group, entry)] for entry in group.entries]
        tables.append(PageTable(name, ["", *group_heads(result, group)], rows))
    # long names get room rather than lines
    longest = max(len(row.label) for row in panel.rows)
    width = 325 + 6 * (min(max(longest, 10), 28) - 10)
    return TableGroup(tables, agreement(panel.groups), width)


def _cells(result: TableResult, group: ScoreGroup, entry: TableEntry) -> list[str | TableCell]:
    metric = group.metric
    small = f"{std_text(entry.ours, metric)} {seeds_text(entry)}".strip()
    ours = TableCell(
        mean_text(entry.ours, metric), mark=entry.our_mark, small=small, hang=entry.stars
    )
    if not group.has_paper:
        return [ours]
    paper_std = std_text(entry.paper, metric)
    paper = TableCell(mean_text(entry.paper, metric), mark=entry.paper_mark, small=paper_std)
    return [paper, ours, third_text(result, entry, metric)]


def _figure_sections(drawings: Sequence[Drawing]) -> list[PageSection]:
    """Figures with the same title share a section; those for reference only are folded."""
    sections = []
    for title, same_title in groupby(drawings, key=lambda drawing: drawing.title):
        blocks: list[PageElement] = []
        section_id = ""
        for drawing in same_title:
            section_id = section_id or f"figure-{drawing.name}"
            image = PlotImage(drawing.inline, drawing.alt, drawing.caption, drawing.narrow)
            gallery = PlotGallery([image], "wide")
            if drawing.fold:
                blocks.append(Collapsible(drawing.fold, [gallery]))
            else:
                blocks.append(gallery)
        sections.append(PageSection(section_id, title, "", blocks))
    return sections


def _note_sections(result: TableResult) -> list[PageSection]:
    if not result.notes:
        return []
    return [PageSection("notes", "Notes", "", [BulletList(result.notes)])]
