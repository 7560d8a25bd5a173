"""A table as LaTeX: one float to \\input, needs only booktabs. Columns of the experiment are blocks of rows, so it fits a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fedgsca.paper.captions import caption, mean_text, rho_text, std_text, third_text
from fedgsca.paper.ranking import Entry, Group, Mark, Panel, panels, split
from fedgsca.paper.table_result import Score, TableResult
from fedgsca.paper.text_tables import heads

_SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$", "*": "$^{*}$",
    "±": r"$\pm$", "−": "$-$", "–": "--", "—": "---", "→": r"$\rightarrow$", "×": r"$\times$", "·": r"$\cdot$", "≥": r"$\ge$",
    "≤": r"$\le$", "α": r"$\alpha$", "β": r"$\beta$", "ζ": r"$\zeta$", "θ": r"$\theta$", "ρ": r"$\rho$", "τ": r"$\tau$",
    "₀": "$_0$", "₁": "$_1$", "…": r"\dots{}", "\N{NO-BREAK SPACE}": "~", "‖": r"$\|$", "²": "$^2$",
}  # fmt: skip

GROUPS = 3  # that stand side by side on a page
LONG = 22  # signs of a name that still stand in one line


def escape(text: str) -> str:
    """Text as LaTeX prints it; what a default font lacks becomes a question mark rather than an error."""
    known = "".join(
        _SIGNS.get(sign, sign if ord(sign) < 0x180 else "?")
        for sign in re.sub(r"[ \t\r\n]+", " ", text)
    )
    return known.replace("$^{*}$$^{*}$", "$^{**}$")


def to_latex(result: TableResult) -> str:
    """Every group has the same columns in all blocks: paper, ours, gap or rank; only ours if the paper has no numbers at all."""
    parts = [part for panel in panels(result) for part in split(panel, GROUPS)]
    names = max((heads(result, here) for panel in parts for here in panel.groups), key=len)
    shared = all(
        list(panel.names) == list(parts[0].names) for panel in parts
    )  # one head for all blocks
    titled = len({panel.title for panel in parts}) > 1
    body: list[str] = []
    for i, panel in enumerate(parts):
        body += [r"\midrule"] if i else []
        body += [*_head(panel, names)] if not (shared and i) else []
        body += _block(result, panel, names, title=titled)
    long = max(len(row.label) for row in result.rows) > LONG
    first = "p{30mm}" if long else "l"
    lines = [
        r"% needs \usepackage{booktabs} and a text width of 170 mm"
        + ("; MINI SCALE" if result.scale == "mini" else ""),
        *(f"% {' '.join(note.split())}" for note in result.notes),
        r"\begin{table*}[tbp]",
        r"\centering",
        rf"\caption{{{escape(caption(result))}}}",
        rf"\label{{tab:fedgsca-{re.sub(r'[^a-z0-9-]+', '-', result.name.lower())}}}",
        r"\footnotesize",
        r"\setlength{\belowcaptionskip}{4pt}\setlength{\tabcolsep}{3pt}",
        rf"\begin{{tabular}}{{@{{}}{first}{_columns(names) * max(len(panel.groups) for panel in parts)}@{{}}}}",
        r"\toprule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _columns(names: Sequence[str]) -> str:
    """Right-aligned; after our numbers there is room for the stars that hang over."""
    return r"rr@{\hspace{11pt}}r" if len(names) > 1 else r"r@{\hspace{11pt}}"


def _head(panel: Panel, names: Sequence[str]) -> Iterator[str]:
    count = len(names)
    starts = range(2, 2 + count * len(panel.groups), count)
    yield (
        " & ".join(
            ["", *(rf"\multicolumn{{{count}}}{{c}}{{{escape(name)}}}" for name in panel.names)]
        )
        + r" \\"
    )
    yield " ".join(rf"\cmidrule(lr){{{at}-{at + count - 1}}}" for at in starts)
    yield (
        " & ".join(
            [
                "",
                *(
                    rf"\multicolumn{{1}}{{c}}{{{name.lower()}}}"
                    for _ in panel.groups
                    for name in names
                ),
            ]
        )
        + r" \\"
    )
    yield r"\midrule"


def _block(
    result: TableResult, panel: Panel, names: Sequence[str], *, title: bool
) -> Iterator[str]:
    wide = len(names) * len(panel.groups) + 1
    if title:
        yield rf"\multicolumn{{{wide}}}{{@{{}}l}}{{\textit{{{escape(panel.title)}}}}} \\"
    for i, row in enumerate(panel.rows):
        label = (
            escape(row.label) if len(row.label) <= LONG else rf"\raggedright {escape(row.label)}"
        )
        yield (
            " & ".join(
                [
                    label,
                    *(
                        c
                        for here in panel.groups
                        for c in _cells(result, here, here.entries[i], names)
                    ),
                ]
            )
            + r" \\"
        )
    if any(here.rho is not None for here in panel.groups):
        rhos = (
            ["", "", escape(rho_text(here.rho))] for here in panel.groups
        )  # below the last column of each group
        yield r"\addlinespace[2pt]"
        yield " & ".join([r"order, $\rho$", *(cell for cells in rhos for cell in cells)]) + r" \\"


def _cells(result: TableResult, here: Group, entry: Entry, names: Sequence[str]) -> list[str]:
    def marked(score: Score | None, mark: Mark) -> str:
        mean = escape(mean_text(score, here.about))
        shown = (
            rf"\textbf{{{mean}}}"
            if mark == "best"
            else rf"\underline{{{mean}}}"
            if mark == "second"
            else mean
        )
        spread = std_text(score, here.about).replace("± ", "")
        return shown + (rf"{{\scriptsize$\pm${spread}}}" if spread else "")

    ours = marked(entry.ours, entry.our_mark)
    ours += (
        rf"\rlap{{$^{{{entry.stars}}}$}}" if entry.stars else ""
    )  # hangs into the gap: the digits stay aligned
    ours += rf"\,{{\tiny[{entry.partial}]}}" if entry.partial else ""
    if len(names) == 1:
        return [ours]
    third = escape(third_text(result, entry, here.about))
    return (
        [marked(entry.paper, entry.paper_mark), ours, third] if here.has_paper else ["", ours, ""]
    )
