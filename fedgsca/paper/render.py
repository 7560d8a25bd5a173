"""Every form of a reproduced table: Markdown, CSV, LaTeX, HTML, and figures as PNG and SVG."""

from __future__ import annotations

from pathlib import Path

from fedgsca.paper.figures import draw_figures
from fedgsca.paper.html_table import to_html
from fedgsca.paper.latex_table import to_latex
from fedgsca.paper.table_result import TableResult
from fedgsca.paper.text_tables import print_result, to_csv, to_markdown
from fedgsca.support.files import write_atomic

__all__ = ["print_result", "render"]


def render(result: TableResult, out: Path) -> list[Path]:
    """Write all forms into `out` and return their paths; the same result gives the same bytes."""
    drawings = draw_figures(result)
    files = {
        "table.md": to_markdown(result).encode(),
        "table.csv": to_csv(result).encode(),
        "table.tex": to_latex(result).encode(),
    }
    for drawing in drawings:
        files[f"figures/{drawing.name}.png"] = drawing.png
    for drawing in drawings:
        files[f"figures/{drawing.name}.svg"] = drawing.svg
    # last: when it is there, the other files are there, too
    files["report.html"] = to_html(result, drawings).encode()
    for name, data in files.items():
        write_atomic(out / name, data)
    return [out / name for name in files]
