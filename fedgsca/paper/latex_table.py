"""A table as LaTeX: one float to \\input, which needs only booktabs.

The columns of the experiment are blocks of rows, so that the table fits a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fedgsca.paper.captions import caption, mean_text, rho_text, std_text, third_text
from fedgsca.paper.ranking import Mark, Panel, ScoreGroup, TableEntry, panels, split
from fedgsca.paper.table_result import Score, TableResult
from fedgsca.paper.text_tables import group_heads
from fedgsca.support.latex import escape

# groups side by side on a page
MAX_GROUPS = 3
# characters of a name that still fit one line
MAX_NAME = 22


def to_latex(result: TableResult) -> str:
    """The table as a LaTeX float.

    Every group has the same columns in all blocks: paper, ours, and gap or rank; only ours if the
    paper has no numbers at all.
    """
    parts: list[Panel] = []
    for panel in panels(result):
        parts += split(panel, MAX_GROUPS)
    names = _widest_heads(result, parts)
    has_long_names = max(len(row.label) for row in result.rows) > MAX_NAME
    first_column = "p{30mm}" if has_long_names else "l"
    columns = _column_spec(names) * max(len(panel.groups) for panel in parts)
    label = re.sub(r"[^a-z0-9-]+", "-", result.name.lower())
    mini = "; MINI SCALE" if result.scale == "mini" else ""
    lines = [
        rf"% needs \usepackage{{booktabs}} and a text width of 170 mm{mini}",
        *(f"% {' '.join(note.split())}" for note in result.notes),
        r"\begin{table*}[tbp]",
        r"\centering",
        rf"\caption{{{escape(caption(result))}}}",
        rf"\label{{tab:fedgsca-{label}}}",
        r"\footnotesize",
        r"\setlength{\belowcaptionskip}{4pt}\setlength{\tabcolsep}{3pt}",
        rf"\begin{{tabular}}{{@{{}}{first_column}{columns}@{{}}}}",
        r"\toprule",
        *_body(result, parts, names),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _widest_heads(result: TableResult, parts: Sequence[Panel]) -> list[str]:
    names: list[str] = []
    for panel in parts:
        for group in panel.groups:
            names = max(names, group_heads(result, group), key=len)
    return names


def _body(result: TableResult, parts: Sequence[Panel], names: Sequence[str]) -> Iterator[str]:
    """The lines between the rules. Blocks with the same names share the first head."""
    share_head = all(list(panel.names) == list(parts[0].names) for panel in parts)
    has_titles = len({panel.title for panel in parts}) > 1
    for i, panel in enumerate(parts):
        if i:
            yield r"\midrule"
        if i == 0 or not share_head:
            yield from _head(panel, names)
        yield from _block(result, panel, names, title=has_titles)


def _column_spec(names: Sequence[str]) -> str:
    """Right-aligned; after our numbers there is room for the stars that hang over."""
    return r"rr@{\hspace{11pt}}r" if len(names) > 1 else r"r@{\hspace{11pt}}"


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _head(panel: Panel, names: Sequence[str]) -> Iterator[str]:
    count = len(names)
    titles = [rf"\multicolumn{{{count}}}{{c}}{{{escape(name)}}}" for name in panel.names]
    yield _line(["", *titles])
    starts = range(2, 2 + count * len(panel.groups), count)
    yield " ".join(rf"\cmidrule(lr){{{start}-{start + count - 1}}}" for start in starts)
    heads = [rf"\multicolumn{{1}}{{c}}{{{name.lower()}}}" for name in names]
    yield _line(["", *heads * len(panel.groups)])
    yield r"\midrule"


def _block(
    result: TableResult, panel: Panel, names: Sequence[str], *, title: bool
) -> Iterator[str]:
    if title:
        width = len(names) * len(panel.groups) + 1
        yield rf"\multicolumn{{{width}}}{{@{{}}l}}{{\textit{{{escape(panel.title)}}}}} \\"
    for i, row in enumerate(panel.rows):
        label = escape(row.label)
        if len(row.label) > MAX_NAME:
            label = rf"\raggedright {label}"
        cells = [label]
        for group in panel.groups:
            cells += _cells(result, group, group.entries[i], names)
        yield _line(cells)
    if any(group.rho is not None for group in panel.groups):
        cells = [r"order, $\rho$"]
        for group in panel.groups:  # below the last column of each group
            cells += ["", "", escape(rho_text(group.rho))]
        yield r"\addlinespace[2pt]"
        yield _line(cells)


def _cells(
    result: TableResult, group: ScoreGroup, entry: TableEntry, names: Sequence[str]
) -> list[str]:
    ours = _marked(entry.ours, entry.our_mark, group)
    if entry.stars:  # they hang into the gap, so that the digits stay aligned
        ours += rf"\rlap{{$^{{{entry.stars}}}$}}"
    if entry.seed_progress:
        ours += rf"\,{{\tiny[{entry.seed_progress}]}}"
    if len(names) == 1:
        return [ours]
    if not group.has_paper:
        return ["", ours, ""]
    paper = _marked(entry.paper, entry.paper_mark, group)
    return [paper, ours, escape(third_text(result, entry, group.metric))]


def _marked(score: Score | None, mark: Mark, group: ScoreGroup) -> str:
    """The mean, bold or underlined by its mark, with a small deviation."""
    text = escape(mean_text(score, group.metric))
    if mark == "best":
        text = rf"\textbf{{{text}}}"
    elif mark == "second":
        text = rf"\underline{{{text}}}"
    deviation = std_text(score, group.metric).replace("± ", "")
    if deviation:
        text += rf"{{\scriptsize$\pm${deviation}}}"
    return text
