"""`fedgsca noise SPEC`: what a specification means, and what it does to a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from xml.sax.saxutils import escape

import typer

from fedgsca.cli.options import Json, NoiseHelpCommand, Settings, experiment_options
from fedgsca.support.console import (
    make_table,
    print_json,
    print_line,
    print_note,
    print_start,
    print_table,
)
from fedgsca.support.text import percent

if TYPE_CHECKING:
    import numpy as np

    from fedgsca.federation.simulation import Experiment
    from fedgsca.noise import RealisedNoise, SiteNoise

Spec = Annotated[
    str, typer.Argument(metavar="SPEC", help="S40 for every site, or one part each: 0-S40-P20-C20")
]
Picture = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE.svg", help="draw the labels of every site"),
]
_MAX_MATRIX_CLASSES = 16  # a larger matrix does not fit a screen


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    text = "Show what a noise specification does to the labels of a data set."
    app.command("noise", cls=NoiseHelpCommand, help=text)(preview)


@dataclass(frozen=True)
class NoisePreview:
    """What noise does to the labels of one site."""

    site: str
    noise: SiteNoise
    counts: RealisedNoise

    @property
    def num_wrong(self) -> int:
        """The number of wrong labels."""
        return round(self.counts["rate"] * self.counts["samples"])

    def to_json(self) -> dict[str, object]:
        """The site as `--json` prints it."""
        return {
            "site": self.site,
            "noise": str(self.noise),
            "words": self.noise.describe(),
            "nominal": self.noise.nominal_rate,
            "wrong": self.num_wrong,
            **self.counts,
        }

    def cells(self) -> list[str]:
        """The row of the table."""
        return [
            self.site,
            str(self.noise),
            self.noise.describe(),
            str(self.counts["samples"]),
            percent(self.noise.nominal_rate),
            str(self.num_wrong),
            percent(self.counts["rate"]),
        ]


@experiment_options("data", "sites", "seed")
def preview(settings: Settings, spec: Spec, picture: Picture = None, as_json: Json = False) -> None:
    """`fedgsca noise`: every site's noise, its matrix, and the realised rate on the data."""
    from fedgsca.cli.chosen_settings import complete_config
    from fedgsca.federation.simulation import prepare
    from fedgsca.noise import fixed_sites

    sites = settings.get("sites")
    if sites is None and settings.file is None:
        sites = fixed_sites(spec)
    print_start(f"drawing wrong labels by {spec}", quiet=as_json)
    config = complete_config(settings.load(noise=spec, sites=sites), quiet=True)
    experiment = prepare(config)
    previews = [_preview_site(experiment, name) for name in experiment.sites]
    matrices: dict[str, list[list[float]]] = {}
    for name, noise in experiment.noise.items():
        if noise.definition.has_matrix:
            matrix = matrix_of(experiment, name).tolist()
            # the same kind differs from site to site if it depends on the labels of the site
            is_new = matrices.setdefault(str(noise), matrix) != matrix
            if is_new:
                matrices[f"{noise} at {name}"] = matrix
    classes = list(experiment.table.classes)
    if as_json:
        print_json(
            {
                "spec": spec,
                "data": experiment.table.name,
                "seed": config.seed,
                "classes": classes,
                "sites": [site.to_json() for site in previews],
                "matrices": matrices,
            }
        )
        return
    print_line(f"{spec} on {experiment.table.name}, seed {config.seed}", "bold")
    header = ["site", "noise", "in words", "images", "nominal", "wrong", "realised"]
    print_table(make_table(header, [site.cells() for site in previews], text_columns=3))
    for name, matrix in matrices.items():
        if name != "0":
            _show_matrix(f"{name}: transition matrix", matrix, classes)
    for site in previews:
        kind = site.noise.definition
        if not kind.has_matrix and not kind.is_recorded:
            _show_realised(site, classes)
    for warning in experiment.warnings:
        print_note(warning)
    if picture is not None:
        from fedgsca.support.files import write_atomic

        write_atomic(picture, draw_noise(spec, previews, classes).encode())
        print_note(f"picture: {picture}", "green")


def matrix_of(experiment: Experiment, site: str) -> np.ndarray:
    """(C, C): probability of each given label (column) for each true class (row) of the site."""
    import numpy as np

    from fedgsca.federation.label_noise import make_context
    from fedgsca.noise.transition import matrix_in

    noise = experiment.noise[site]
    context, _ = make_context(experiment.config, experiment.table, [noise])
    labels = _true_labels(experiment, site)
    class_counts = np.bincount(labels, minlength=context.num_classes)
    return matrix_in(noise, replace(context, class_counts=class_counts))


def _true_labels(experiment: Experiment, site: str) -> np.ndarray:
    """(n,): the given labels where they are not known to differ."""
    return experiment.truth.get(site, experiment.sites[site].labels)


def _preview_site(experiment: Experiment, name: str) -> NoisePreview:
    from fedgsca.noise import realised

    given = experiment.sites[name].labels
    truth = _true_labels(experiment, name)
    counts = realised(truth, given, experiment.table.num_classes)
    return NoisePreview(name, experiment.noise[name], counts)


def _show_realised(site: NoisePreview, classes: Sequence[str]) -> None:
    """The labels that were drawn, for noise that depends on the image and has no matrix."""
    shares = []
    for row in site.counts["counts"]:
        shares.append([count / max(sum(row), 1) for count in row])
    title = f"{site.noise} at {site.site}: labels as they were drawn"
    _show_matrix(title, shares, classes)


def draw_noise(spec: str, previews: Sequence[NoisePreview], classes: Sequence[str]) -> str:
    """An SVG: for every site the shares of given labels (columns) per true class (rows)."""
    cell = 14
    gap = 30
    width = cell * len(classes)
    height = cell * max(len(site.counts["counts"]) for site in previews)
    column = max(width, 170) + gap  # room for the title
    per_row = min(len(previews), 4)
    lines = []
    for number, site in enumerate(previews):
        x = gap + (number % per_row) * column
        y = 60 + (number // per_row) * (height + 50)
        title = f"{site.site}: {site.noise}, {percent(site.counts['rate'])} wrong"
        lines.append(f'<text x="{x}" y="{y - 8}">{escape(title)}</text>')
        for i, row in enumerate(site.counts["counts"]):
            for j, count in enumerate(row):
                share = count / max(sum(row), 1)
                colour = "#2b6cb0" if i == j else "#c53030"
                opacity = f"{share:.3f}" if share else "0.04"
                lines.append(
                    f'<rect x="{x + j * cell}" y="{y + i * cell}" width="{cell - 1}" '
                    f'height="{cell - 1}" fill="{colour}" fill-opacity="{opacity}"/>'
                )
    num_rows = -(-len(previews) // per_row)
    size = (gap + per_row * column, 60 + num_rows * (height + 50))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" '
        f'width="{size[0]}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="{gap}" y="24" font-size="14">{escape(spec)}: true class (row), given label '
        "(column)</text>"
    )
    return "\n".join([head, *lines, "</svg>", ""])


def _show_matrix(title: str, matrix: Sequence[Sequence[float]], classes: Sequence[str]) -> None:
    """matrix (C, C), or (C + 1, C) with a last row for images of none of the classes."""
    from fedgsca.noise import NO_CLASS_NAME

    if len(classes) > _MAX_MATRIX_CLASSES:
        print_line(f"{title}: {len(classes)} classes are too many to show; use --json")
        return
    rows = []
    names = (*classes, NO_CLASS_NAME)[: len(matrix)]
    for label, probabilities in zip(names, matrix, strict=True):
        cells = [f"{100 * probability:.3g}" for probability in probabilities]
        rows.append([label, *("·" if cell == "0" else cell for cell in cells)])
    header = ["true \\ given, %", *classes]
    print_table(make_table(header, rows, title=title))
