"""report.html: one file that needs nothing else. No network, no script; light, dark and print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedgsca.errors import RunFolderError
from fedgsca.lab.records import Comparison
from fedgsca.lab.report.elements import Page, PlotGallery, PlotImage
from fedgsca.lab.report.plots import standalone_svg
from fedgsca.lab.report.run_reader import read_json, read_run
from fedgsca.support.files import write_atomic

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")


def write_report(path: Path, *, refresh: int = 0, with_figures: bool = False) -> Path:
    """Write report.html into the folder of a run or a comparison, finished or not.

    `refresh`: the browser reads it again after so many seconds; 0: never. `with_figures`: its
    drawings are also written to figures/, for a publication. Returns the path of the page.
    """
    if not path.is_dir():
        raise RunFolderError(
            "run.folder-not-found",
            f"the folder {path} does not exist",
            fix="give a folder that `fedgsca run` or `fedgsca compare` has written",
        )
    target = path / "report.html"
    page = build_page(path)
    if with_figures:
        write_figures(path, page)
    write_atomic(target, render_page(replace(page, refresh=refresh)).encode())
    return target


def write_figures(path: Path, page: Page) -> None:
    """Figures for a publication, and the drawings of the page as files of their own."""
    from fedgsca.lab.report.figures import comparison_figures, run_figures, write_print_figures

    folder = path / "figures"
    if (path / "compare.json").is_file():
        from fedgsca.lab.report.comparison_page import load_comparison

        record = Comparison.from_json(read_json(path / "compare.json"))
        figures = comparison_figures(load_comparison(path, record))
    else:
        figures = run_figures(read_run(path))
    write_print_figures(figures, folder)
    for section in page.sections:
        pictures: list[PlotImage] = []
        for block in section.blocks:
            pictures += block.pictures if isinstance(block, PlotGallery) else ()
        for number, picture in enumerate(pictures, 1):
            name = f"report-{section.id}-{number}.svg"
            write_atomic(folder / name, standalone_svg(picture.svg).encode())


def build_page(path: Path) -> Page:
    """The page of a comparison or, without a compare.json, of a run."""
    if (path / "compare.json").is_file():
        from fedgsca.lab.report.comparison_page import build_comparison_page

        tree = read_json(path / "compare.json")
        if tree is None:
            raise RunFolderError(
                "grid.damaged-comparison",
                f"{path / 'compare.json'} is damaged",
                fix="run the command of the comparison again; finished runs are kept",
            )
        return build_comparison_page(path, Comparison.from_json(tree))
    from fedgsca.lab.report.run_page import build_run_page

    return build_run_page(read_run(path))


def render_page(page: Page) -> str:
    """The page as a single HTML document."""
    from markupsafe import Markup

    css = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    return _environment().get_template("page.html.j2").render(page=page, css=Markup(css))


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["longest_word"] = _longest_word
    return environment


def _longest_word(text: str) -> int:
    """The length of the longest word, which decides how narrow a column can be."""
    return max(map(len, text.split()), default=0)
