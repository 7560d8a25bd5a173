"""`fedgsca exchange`: the list of suspects out to, and decisions in from, cleanlab, Label Studio and FiftyOne. Files only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedgsca.support.console import print_line

Folder = Annotated[
    Path, typer.Argument(metavar="AUDIT", help="folder of one site's audit, RUN/audit/SITE")
]
Kind = Annotated[str, typer.Option("--format", help="cleanlab, label-studio or fiftyone")]
Out = Annotated[Path, typer.Option("--out", "-o", help="file to write; fiftyone: a folder")]
All = Annotated[bool, typer.Option("--all", help="all labels, not only the priority list")]
Whose = Annotated[str | None, typer.Option("--reviewer", help="whose decisions go out")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="what the tool exported")]
Who = Annotated[
    str | None, typer.Option("--reviewer", help="under which name; default: as the file says")
]


def add(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Give suspects to other label tools, and take decisions back."
    )
    group.command("export", help="Write the list in another tool's format.")(export_command)
    group.command("import", help="Add what was decided in another tool.")(import_command)
    app.add_typer(group, name="exchange", rich_help_panel="Review labels")


def export_command(
    audit: Folder, kind: Kind, out: Out, all_labels: All = False, reviewer: Whose = None
) -> None:
    from fedgsca.label_audit.audit_table import read_audit
    from fedgsca.label_audit.exchange import export_suspects

    for path in export_suspects(
        read_audit(audit), kind, out, all_labels=all_labels, reviewer=reviewer
    ):
        print_line(f"written  {path}")


def import_command(audit: Folder, file: File, kind: Kind, reviewer: Who = None) -> None:
    from fedgsca.cli.review import reviewer_name
    from fedgsca.label_audit.audit_table import read_audit
    from fedgsca.label_audit.exchange import import_verdicts

    counts = import_verdicts(
        read_audit(audit),
        kind,
        file,
        reviewer=None if reviewer is None else reviewer_name(reviewer),
    )
    for name, count in sorted(counts.items()):
        print_line(f"{count} decisions of {name}")
    if not counts:
        print_line(f"{file} holds no decisions")
