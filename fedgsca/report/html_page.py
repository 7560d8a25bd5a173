"""report.html: one file that needs nothing else. No network, no script; light, dark and print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedgsca.errors import RunFolderError
from fedgsca.report.elements import Page
from fedgsca.report.run_reader import read_json, read_run
from fedgsca.support.files import write_atomic

if TYPE_CHECKING:
    from jinja2 import Environment


def write_report(path: Path) -> Path:
    """Write report.html into a run's or a comparison's folder, finished or not, and return its path."""
    if not path.is_dir():
        raise RunFolderError(
            "todo.html-page-1",
            f"there is no folder {path}",
            fix="give a folder that `fedgsca run` or `fedgsca compare` made",
        )
    target = path / "report.html"
    write_atomic(target, render(page_of(path)).encode())
    return target


def page_of(path: Path) -> Page:
    if (path / "compare.json").is_file():
        from fedgsca.report.comparison_page import compare_page

        compare = read_json(path / "compare.json")
        if compare is None:
            raise RunFolderError(
                "todo.html-page-2",
                f"{path / 'compare.json'} is damaged",
                fix="run the comparison's command again; finished cells are kept",
            )
        return compare_page(path, compare)
    from fedgsca.report.run_page import run_page

    return run_page(read_run(path))


def render(page: Page) -> str:
    from markupsafe import Markup

    environment = _environment()
    css = Path(__file__).with_name("templates").joinpath("style.css").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(page=page, css=Markup(css))


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["longest_word"] = lambda text: max(map(len, text.split()), default=0)
    return environment
