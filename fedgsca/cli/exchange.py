"""`fedgsca exchange`: suspects to, and decisions from, cleanlab, Label Studio and FiftyOne.

Through files only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedgsca.support.console import print_line
from fedgsca.support.text import plural

Folder = Annotated[
    Path, typer.Argument(metavar="AUDIT", help="folder of one site's audit, RUN/audit/SITE")
]
FormatName = Annotated[str, typer.Option("--format", help="cleanlab, label-studio or fiftyone")]
Out = Annotated[Path, typer.Option("--out", "-o", help="file to write; fiftyone: a folder")]
AllLabels = Annotated[bool, typer.Option("--all", help="all labels, not only the priority list")]
ExportReviewer = Annotated[str | None, typer.Option("--reviewer", help="whose decisions to export")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="what the tool exported")]
ImportReviewer = Annotated[
    str | None, typer.Option("--reviewer", help="name of the reviewer; default: as in the file")
]


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        no_args_is_help=True, help="Exchange suspects and decisions with other labelling tools."
    )
    group.command("export", help="Write the suspects in another tool's format.")(export_command)
    group.command("import", help="Add the decisions from another tool.")(import_command)
    app.add_typer(group, name="exchange", rich_help_panel="Review labels")


def export_command(
    audit: Folder,
    format_name: FormatName,
    out: Out,
    all_labels: AllLabels = False,
    reviewer: ExportReviewer = None,
) -> None:
    """`fedgsca exchange export`."""
    from fedgsca.label_audit.audit_table import read_audit
    from fedgsca.label_audit.exchange import export_suspects

    paths = export_suspects(
        read_audit(audit), format_name, out, all_labels=all_labels, reviewer=reviewer
    )
    for path in paths:
        print_line(f"written  {path}")


def import_command(
    audit: Folder, file: File, format_name: FormatName, reviewer: ImportReviewer = None
) -> None:
    """`fedgsca exchange import`."""
    from fedgsca.cli.review import reviewer_name
    from fedgsca.label_audit.audit_table import read_audit
    from fedgsca.label_audit.exchange import import_verdicts

    name = None if reviewer is None else reviewer_name(reviewer)
    counts = import_verdicts(read_audit(audit), format_name, file, reviewer=name)
    for reviewer_of_file, count in sorted(counts.items()):
        if count:
            print_line(f"{plural(count, 'new decision')} of {reviewer_of_file}")
        else:
            print_line(f"no new decision of {reviewer_of_file}: all were imported before")
    if not counts:
        print_line(f"{file} contains no decisions")
