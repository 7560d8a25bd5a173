"""`fedgsca review`: the local page on which a person decides about suspect labels, and the summary of what was decided."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgsca.cli.options import Json
from fedgsca.errors import ConfigError
from fedgsca.support.console import (
    make_table,
    print_json,
    print_line,
    print_note,
    print_table,
    print_warning,
)
from fedgsca.support.text import number, percent

Folder = Annotated[
    Path, typer.Argument(metavar="AUDIT", help="folder of one site's audit, RUN/audit/SITE")
]
Reviewer = Annotated[
    str | None,
    typer.Option("--reviewer", help="whose decisions these are; default: your login name"),
]
Port = Annotated[
    int | None,
    typer.Option("--port", min=1024, max=65535, help="default: the first free one from 8765"),
]
Blind = Annotated[
    bool,
    typer.Option(
        "--blind", help="show neither the given nor the suggested label before a decision"
    ),
]
Summary = Annotated[
    bool,
    typer.Option(
        "--summary", help="print what was decided, with the reviewers' agreement, and exit"
    ),
]


def add(app: typer.Typer) -> None:
    app.command(
        "review",
        help="Look at suspect labels on a local page, and decide.",
        rich_help_panel="Review labels",
    )(review)


def review(
    audit: Folder,
    reviewer: Reviewer = None,
    blind: Blind = False,
    port: Port = None,
    summary: Summary = False,
    json: Json = False,
) -> None:
    from fedgsca.label_audit.audit_table import read_audit

    opened = read_audit(audit)
    if summary or json:
        from fedgsca.label_audit.consensus import summarise_decisions
        from fedgsca.label_audit.decisions import Decisions

        found = summarise_decisions(Decisions(opened.path))
        print_json(found) if json else _show(found, opened.path)
        return
    name = reviewer_name(reviewer)
    from fedgsca.review.serve import require_server_packages, serve

    require_server_packages()  # before the images are read
    from fedgsca.label_audit.audit_images import AuditImages
    from fedgsca.review.session import Session

    session = Session(opened, AuditImages.open(opened), name, blind=blind)

    def tell(address: str) -> None:
        print_line(f"review  {address}", "bold")
        print_note(
            f"as {name}; decisions go to {session.decisions.path}; Ctrl-C ends, the same command goes on"
        )

    serve(session, port, tell)
    done = session.progress()
    print_line(
        f"\n{done['priority_decided']} of {done['priority']} labels of the priority list are decided, {done['decided']} in all"
    )
    if done["decided"]:
        _next(opened.path)


def reviewer_name(given: str | None) -> str:
    """A name that fits one line of a table."""
    name = (given if given is not None else _login()).strip()
    if not name or len(name) > 60 or not name.isprintable():
        raise ConfigError(
            "todo.review-1",
            f"{name!r} cannot name a reviewer",
            fix="--reviewer NAME, at most 60 characters",
        )
    return name


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name, as in containers
        return ""


def _show(found: dict[str, Any], audit: Path) -> None:
    if found["damaged_lines"]:
        print_warning(f"{found['damaged_lines']} lines of the decisions file are damaged and were skipped")
    if not found["reviewers"]:
        print_line("nothing has been decided yet")
        return
    head = [
        "reviewer",
        "decided",
        "accepted",
        "kept",
        "other class",
        "cannot tell",
        "blind",
        "median s",
        "per minute",
    ]
    rows = [
        [
            name,
            *map(str, (p["decided"], *p["actions"].values(), p["blind"])),
            number(p["median_seconds"]),
            number(p["per_minute"]),
        ]
        for name, p in found["reviewers"].items()
    ]
    print_table(make_table(head, rows))
    moves = [
        [name, c["given"], c["label"], str(c["count"])]
        for name, p in found["reviewers"].items()
        for c in p["confusions"]
    ]
    if moves:
        print_table(make_table(["reviewer", "given", "new", "labels"], moves, text_columns=3))
    for pair in found["agreement"]:
        who, same = (
            " and ".join(pair["reviewers"]),
            percent(pair["agree"] / pair["n"] if pair["n"] else None),
        )
        print_line(
            f"{who}: {pair['n']} labels by both, {same} the same, Cohen's kappa {number(pair['kappa'], 2)}"
        )
        for case in pair["conflicts"][:20]:
            mine, theirs = (label or "cannot tell" for label in case["labels"])
            print_line(f"  {case['id']}  given {case['given']}: {mine} / {theirs}")
        if len(pair["conflicts"]) > 20:
            print_line(f"  ... and {len(pair['conflicts']) - 20} more (--json lists all)")
    _next(audit)


def _next(audit: Path) -> None:
    print_line(f"next    fedgsca apply {audit}")
