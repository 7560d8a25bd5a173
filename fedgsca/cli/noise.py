"""`fedgsca noise SPEC`: what a specification means, and what it does to a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.options import Json, Settings, experiment_options
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

Spec = Annotated[
    str, typer.Argument(metavar="SPEC", help="S40 for every site, or one part each: 0-S40-P20-C20")
]
_MAX_MATRIX_CLASSES = 16  # a larger matrix does not fit a screen


@experiment_options("data", "sites", "seed")
def preview(settings: Settings, spec: Spec, as_json: Json = False) -> None:
    """Show what a noise specification does to the labels of a data set."""
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
    if as_json:
        print_json(
            {
                "spec": spec,
                "data": experiment.table.name,
                "seed": config.seed,
                "classes": list(experiment.table.classes),
                "sites": previews,
                "matrices": matrices,
            }
        )
    else:
        print_line(f"{spec} on {experiment.table.name}, seed {config.seed}", "bold")
        _show(experiment, previews, matrices)


def _show(
    experiment: Experiment,
    previews: Sequence[Mapping[str, Any]],
    matrices: Mapping[str, Sequence[Sequence[float]]],
) -> None:
    header = ["site", "noise", "in words", "images", "nominal", "wrong", "realised"]
    keys = ("site", "noise", "words", "samples", "nominal", "wrong", "rate")
    rows = []
    for site in previews:
        cells = [site[key] for key in keys]
        rows.append([percent(cell) if isinstance(cell, float) else str(cell) for cell in cells])
    print_table(make_table(header, rows, text_columns=3))
    classes = experiment.table.classes
    for name, matrix in matrices.items():
        if name != "0":
            _show_matrix(f"{name}: transition matrix", matrix, classes)
    for site in previews:
        noise = experiment.noise[site["site"]]
        if not noise.definition.has_matrix and not noise.definition.is_recorded:
            # noise that depends on the image has no matrix: the labels that were drawn
            title = f"{noise} at {site['site']}: labels as they were drawn"
            shares = []
            for row in site["counts"]:
                shares.append([count / max(sum(row), 1) for count in row])
            _show_matrix(title, shares, classes)
    for warning in experiment.warnings:
        print_note(warning)


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


def _preview_site(experiment: Experiment, name: str) -> dict[str, Any]:
    """What noise does to the labels of one site, as `--json` prints it."""
    from fedgsca.noise import realised

    noise = experiment.noise[name]
    given = experiment.sites[name].labels
    counts = realised(_true_labels(experiment, name), given, experiment.table.num_classes)
    return {
        "site": name,
        "noise": str(noise),
        "words": noise.describe(),
        "nominal": noise.nominal_rate,
        "wrong": round(counts["rate"] * counts["samples"]),
        **counts,
    }


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
