"""`fedgsca audit-folder`: which labels of a folder look wrong, without a federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.audit import Opinions, Quota, print_audits
from fedgsca.cli.options import (
    Features,
    Json,
    Quiet,
    Sets,
    SkipUnreadable,
    source_slug,
    strip_slash,
)
from fedgsca.support.console import print_json, print_line, print_note, print_start
from fedgsca.support.text import plural

if TYPE_CHECKING:
    from fedgsca.experiment.simulation import Division

Source = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help="a folder of images, FILE.npz or kind:PATH (see `fedgsca data list`)"
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="folder for the audit; default audits/<name of DATA>")
]
Labels = Annotated[
    str | None, typer.Option("--labels", help="csv (file,label) of corrected labels")
]


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "audit-folder",
        help="Rank the labels of one folder by how wrong they look; no federation needed.",
        rich_help_panel="Review labels",
    )(audit_folder)


def audit_folder(
    data: Source,
    out: Out = None,
    labels: Labels = None,
    quota: Quota = 0.1,
    second_opinion: Opinions = None,
    skip_unreadable: SkipUnreadable = False,
    features: Features = None,
    sets: Sets = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """`fedgsca audit-folder`."""
    source = strip_slash(data)
    print_start(f"auditing the labels of {source}", quiet=quiet or as_json)
    from fedgsca.engine.progress import display
    from fedgsca.label_audit.audit_folder import audit_folder as audit

    settings = [*(sets or ())]
    if features is not None:
        settings.append(f"data.features={features}")
    with display(quiet=quiet):
        result = audit(
            source,
            out or Path("audits") / source_slug(source),
            labels=labels,
            quota=quota,
            second_opinions=second_opinion or (),
            skip_unreadable=skip_unreadable,
            settings=settings,
            on_division=None if quiet or as_json else _announce,
        )
    if as_json:
        print_json({"audits": [{"path": str(result.path), **result.header.to_json()}]})
    elif not quiet:
        print_audits([result])
        print_line(
            "This hospital judged its labels alone. In a federation the judges learn from the"
            " images of all hospitals (`fedgsca deploy --help`)."
        )


def _announce(division: Division) -> None:
    """Say what is audited, and what is not."""
    table = division.table
    num_labels = sum(len(rows) for rows in division.rows.values())
    text = f"{plural(num_labels, 'label')} of {plural(table.num_classes, 'class', 'classes')}"
    if table.groups is not None:
        text += f"; no image is judged by others of the same {table.group_word}"
    print_note(text, None)
    num_test = len(table) - num_labels
    if num_test:
        print_note(
            f"{plural(num_test, 'image')} of the validation and test split not audited", None
        )
    for warning in division.warnings:
        print_note(warning)
