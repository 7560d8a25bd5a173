"""`fedgsca noise preview`: what a specification means, and what it does to a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.options import ConfigFile, Data, Json, Seed, Sets, Sites, make_config
from fedgsca.support.console import make_table, print_json, print_line, print_note, print_table
from fedgsca.support.text import percent

if TYPE_CHECKING:
    import numpy as np

    from fedgsca.experiment.simulation import Experiment
    from fedgsca.noise import SiteNoise

Spec = Annotated[
    str, typer.Argument(metavar="SPEC", help="S40 for every site, or one part each: 0-S40-P20-C20")
]
_WORDS = {
    "S": "as any other class",
    "P": "as the next class",
    "C": "as a class it is easily mistaken for",
}
_WIDE = 16  # classes up to which a matrix fits a screen

group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


def add(app: typer.Typer) -> None:
    app.add_typer(
        group,
        name="noise",
        help="Look at label noise before using it.",
        rich_help_panel="Data and noise",
    )


@group.callback()
def about() -> None:
    """Look at label noise before using it."""


@group.command("preview")
def preview(
    spec: Spec,
    data: Data = None,
    sites: Sites = None,
    seed: Seed = None,
    config: ConfigFile = None,
    sets: Sets = None,
    json: Json = False,
) -> None:
    """Nominal noise of every site, the transition matrices, and the realised rates on the data with this seed."""
    from fedgsca.experiment.simulation import prepare

    parts = spec.count("-") + 1
    made = make_config(
        config,
        sets,
        data=data,
        noise=spec,
        seed=seed,
        sites=sites or (parts if parts > 1 and config is None else None),
    )
    experiment = prepare(made)
    rows = [_site(experiment, name) for name in experiment.sites]
    matrices = {
        str(noise): matrix_of(experiment, noise).tolist()
        for noise in experiment.noise.values()
        if noise.kind != "F"
    }
    classes = list(experiment.table.classes)
    if json:
        print_json(
            {
                "spec": spec,
                "data": experiment.table.name,
                "seed": made.seed,
                "classes": classes,
                "sites": rows,
                "matrices": matrices,
            }
        )
        return
    print_line(f"{spec} on {experiment.table.name}, seed {made.seed}", "bold")
    table = [
        [
            r["site"],
            r["noise"],
            r["words"],
            str(r["samples"]),
            percent(r["nominal"]),
            str(r["wrong"]),
            percent(r["rate"]),
        ]
        for r in rows
    ]
    print_table(
        make_table(["site", "noise", "in words", "images", "nominal", "wrong", "realised"], table, text_columns=3)
    )
    for name, matrix in matrices.items():
        if name != "0":
            _show_matrix(name, matrix, classes)
    for warning in experiment.warnings:
        print_note(warning)


def in_words(noise: SiteNoise) -> str:
    """ "labels 40 % of its images as any other class"."""
    if noise.kind == "none":
        return "labels every image correctly"
    if noise.kind == "M":
        return "draws labels from the given matrix"
    if noise.kind == "F":
        return "takes its labels from a file"
    return f"labels {100 * noise.rate:g} % of its images wrongly, {_WORDS[noise.kind]}"


def matrix_of(experiment: Experiment, noise: SiteNoise) -> np.ndarray:
    """(C, C): chance of every given label for every true class. Labels from a file (F) have none."""

    from fedgsca.experiment.label_noise import find_candidates
    from fedgsca.noise import transition_matrix
    from fedgsca.noise.label_files import read_matrix

    config, classes = experiment.config, experiment.table.num_classes
    if noise.kind == "M":
        return read_matrix(str(config.noise.matrix), classes)
    candidates = find_candidates(config, experiment.table)[0] if noise.kind == "C" else None
    return transition_matrix(noise, classes, candidates)


def _site(experiment: Experiment, name: str) -> dict[str, Any]:
    from fedgsca.noise import realised

    noise, given = experiment.noise[name], experiment.sites[name].labels
    found = realised(experiment.truth.get(name, given), given, experiment.table.num_classes)
    wrong = round(found["rate"] * found["samples"])
    nominal = None if noise.kind in ("M", "F") else noise.rate
    return {
        "site": name,
        "noise": str(noise),
        "words": in_words(noise),
        "nominal": nominal,
        "wrong": wrong,
        **found,
    }


def _show_matrix(name: str, matrix: list[list[float]], classes: list[str]) -> None:
    if len(classes) > _WIDE:
        print_line(f"{name}: {len(classes)} classes are too many to show; use --json")
        return
    rows = [
        [label, *(f"{100 * p:.3g}" if p else "·" for p in row)]
        for label, row in zip(classes, matrix, strict=True)
    ]
    print_table(make_table(["true \\ given, %", *classes], rows, title=f"{name}: transition matrix"))
