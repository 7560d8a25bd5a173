"""Every form of a reproduced table: table.md, table.csv, table.tex, report.html and figures/ as PNG and SVG."""

from __future__ import annotations

from pathlib import Path

from fedgsca.paper.figures import figures
from fedgsca.paper.html_table import to_html
from fedgsca.paper.latex_table import to_latex
from fedgsca.paper.table_result import TableResult
from fedgsca.paper.text_tables import print_table, to_csv, to_markdown
from fedgsca.support.files import write_atomic

__all__ = ["print_table", "render"]


def render(result: TableResult, out: Path) -> list[Path]:
    """Write all forms into `out` and return their paths; the same result gives the same bytes."""
    drawn = figures(result)
    files = {
        "table.md": to_markdown(result).encode(),
        "table.csv": to_csv(result).encode(),
        "table.tex": to_latex(result).encode(),
        **{f"figures/{each.name}.png": each.png for each in drawn},
        **{f"figures/{each.name}.svg": each.svg for each in drawn},
        "report.html": to_html(result, drawn).encode(),  # last: who sees it finds the rest
    }
    for name, data in files.items():
        write_atomic(out / name, data)
    return [out / name for name in files]
