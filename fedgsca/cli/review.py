"""`fedgsca review`: the local page for reviewing suspect labels, and the summary of decisions."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import Json
from fedgsca.support.console import (
    make_table,
    print_json,
    print_line,
    print_note,
    print_table,
    print_warning,
)
from fedgsca.support.text import number, percent, plural

if TYPE_CHECKING:
    from fedgsca.label_audit.consensus import ReviewerAgreement, ReviewSummary

MAX_CONFLICTS = 20  # printed

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
    """Add the command of this module."""
    app.command(
        "review",
        help="Review suspect labels on a local page.",
        rich_help_panel="Review labels",
    )(review)


def review(
    audit: Folder,
    reviewer: Reviewer = None,
    blind: Blind = False,
    port: Port = None,
    summary: Summary = False,
    as_json: Json = False,
) -> None:
    """`fedgsca review`."""
    from fedgsca.label_audit.audit_table import read_audit

    opened_audit = read_audit(audit)
    if summary or as_json:
        from fedgsca.label_audit.consensus import summarise_decisions

        review_summary = summarise_decisions(opened_audit.open_decisions())
        if as_json:
            print_json(review_summary.to_json())
        else:
            _print_summary(review_summary, opened_audit.path)
        return
    name = reviewer_name(reviewer)
    from fedgsca.review.serve import require_server_packages, serve

    require_server_packages()  # before the images are read
    from fedgsca.label_audit.audit_images import AuditImages
    from fedgsca.review.session import Session

    session = Session(opened_audit, AuditImages.open(opened_audit), name, blind=blind)

    def announce(address: str) -> None:
        print_line(f"review  {address}", "bold")
        print_note(
            f"as {name}; decisions are saved to {session.decisions.path}; Ctrl-C stops the server,"
            " the same command continues the review"
        )

    serve(session, port, announce)
    progress = session.progress()
    print_line(
        f"\n{progress.num_priority_decisions} of {progress.num_priority} labels of the priority"
        f" list are decided, {progress.num_decisions} in total"
    )
    if progress.num_decisions:
        _print_next_step(opened_audit.path)


def reviewer_name(given: str | None) -> str:
    """A name that fits one line of a table."""
    from fedgsca.label_audit.decisions import check_reviewer_name

    name = (given if given is not None else _login()).strip()
    check_reviewer_name(name)
    return name


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name, as in containers
        return ""


def _print_summary(summary: ReviewSummary, audit: Path) -> None:
    if summary.damaged_lines:
        print_warning(
            f"{plural(summary.damaged_lines, 'line')} of the decisions file could not be read"
        )
    if not summary.reviewers:
        print_line("nothing has been decided yet")
        return
    _print_reviewers(summary)
    for pair in summary.agreement:
        _print_agreement(pair)
    _print_next_step(audit)


def _print_reviewers(summary: ReviewSummary) -> None:
    head = ["reviewer", "decided", "accepted", "kept", "other class", "cannot tell"]
    head += ["blind", "median s", "per minute"]
    rows = []
    corrections = []
    for name, reviewer in summary.reviewers.items():
        counts = [reviewer.num_decisions, *reviewer.actions.values(), reviewer.blind]
        speed = [number(reviewer.median_seconds), number(reviewer.per_minute)]
        rows.append([name, *map(str, counts), *speed])
        for correction in reviewer.confusions:
            corrections.append([name, correction.given, correction.label, str(correction.count)])
    print_table(make_table(head, rows))
    if corrections:
        correction_head = ["reviewer", "given", "new", "labels"]
        print_table(make_table(correction_head, corrections, text_columns=3))


def _print_agreement(pair: ReviewerAgreement) -> None:
    share = pair.num_equal / pair.num_labelled if pair.num_labelled else None
    print_line(
        f"{' and '.join(pair.reviewers)}: {pair.num_labelled} labels by both, {percent(share)}"
        f" the same, Cohen's kappa {number(pair.kappa, 2)}"
    )
    for conflict in pair.conflicts[:MAX_CONFLICTS]:
        labels = " / ".join(label or "cannot tell" for label in conflict.labels)
        print_line(f"  {conflict.id}  given {conflict.given}: {labels}")
    if len(pair.conflicts) > MAX_CONFLICTS:
        print_line(f"  ... and {len(pair.conflicts) - MAX_CONFLICTS} more (--json lists all)")


def _print_next_step(audit: Path) -> None:
    print_line(f"next    fedgsca apply {audit}")
