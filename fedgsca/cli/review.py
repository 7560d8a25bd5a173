"""`fedgsca review`: the page for reviewing suspect labels, local or on the hospital's network."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from fedgsca.support.text import number, percent, plural

if TYPE_CHECKING:
    from fedgsca.labels.audit_table import Audit
    from fedgsca.labels.consensus import ReviewerAgreement, ReviewSummary
    from fedgsca.labels.review.serve import PageAddress, TlsFiles

MAX_CONFLICTS = 20  # printed
MIN_CERTIFICATE_DAYS = 14  # fewer are worth a warning
_NETWORK_PANEL = "Several reviewers over the network"

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
Language = Annotated[
    str, typer.Option("--language", help="of the page: en, de or fr; default: the browser's")
]
Viewer = Annotated[
    str,
    typer.Option(
        "--viewer",
        metavar="URL",
        help="link every DICOM image to a viewer; {study}, {series} and {instance} stand for its"
        " UIDs: https://pacs.example/ohif/viewer?StudyInstanceUIDs={study}",
    ),
]
Summary = Annotated[
    bool,
    typer.Option(
        "--summary", help="print what was decided, with the reviewers' agreement, and exit"
    ),
]

Serve = Annotated[
    str | None,
    typer.Option(
        "--serve",
        metavar="HOST:PORT",
        help="serve the page to other computers under this name or address, for everybody who has a"
        " personal link (`fedgsca reviewers add`)",
        rich_help_panel=_NETWORK_PANEL,
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="ADDRESS",
        help="IP address to listen on; default: that of HOST",
        rich_help_panel=_NETWORK_PANEL,
    ),
]
CertificateFile = Annotated[
    Path | None,
    typer.Option(
        "--certificate",
        help="certificate of HOST, PEM (`fedgsca reviewers certificate` makes one)",
        rich_help_panel=_NETWORK_PANEL,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key", help="secret key of the certificate, PEM", rich_help_panel=_NETWORK_PANEL
    ),
]


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "review",
        help="Review suspect labels on a page: local, or with --serve on the hospital's network.",
        rich_help_panel="Review labels",
    )(review)


def review(
    audit: Folder,
    reviewer: Reviewer = None,
    blind: Blind = False,
    language: Language = "",
    viewer: Viewer = "",
    port: Port = None,
    serve_at: Serve = None,
    listen: Listen = None,
    certificate: CertificateFile = None,
    key: KeyFile = None,
    summary: Summary = False,
    as_json: Json = False,
) -> None:
    """`fedgsca review`."""
    from fedgsca.labels.audit_table import read_audit

    _check_options(
        serve_at,
        local_options=[reviewer, blind or None, port],
        network_options=[listen, certificate, key],
    )
    from fedgsca.labels.protocol import load_texts

    load_texts(language)
    _check_viewer(viewer)
    opened_audit = read_audit(audit)
    if summary or as_json:
        from fedgsca.labels.consensus import summarise_decisions

        review_summary = summarise_decisions(opened_audit.open_decisions())
        if as_json:
            print_json(review_summary.to_json())
        else:
            _print_summary(review_summary, opened_audit.path)
        return
    if serve_at is not None:
        pages = {"language": language, "viewer": viewer}
        _serve_network(opened_audit, pages, serve_at, listen, certificate, key)
        return
    name = reviewer_name(reviewer)
    from fedgsca.labels.review.serve import require_server_packages, serve_page

    require_server_packages()  # before the images are read
    from fedgsca.labels.audit_images import AuditImages
    from fedgsca.labels.review.session import Session

    images = AuditImages.open(opened_audit)
    session = Session(opened_audit, images, name, blind=blind, language=language, viewer=viewer)

    def announce(address: str) -> None:
        print_line(f"review  {address}", "bold")
        print_note(
            f"as {name}; decisions are saved to {session.decisions.path}; Ctrl-C stops the server,"
            " the same command continues the review"
        )

    serve_page(session, port, announce)
    progress = session.progress()
    print_line(
        f"\n{progress.num_priority_decisions} of {progress.num_priority} labels of the priority"
        f" list are decided, {progress.num_decisions} in total"
    )
    if progress.num_decisions:
        _print_next_step(opened_audit.path)


def _check_viewer(viewer: str) -> None:
    """Refuse an address that no image would change, or that is not one of a web page."""
    has_place = any(name in viewer for name in ("{study}", "{series}", "{instance}"))
    if viewer and not (has_place and viewer.startswith(("https://", "http://"))):
        raise ConfigError(
            "review.invalid-viewer",
            f"--viewer {viewer} is not the address of an image in a viewer",
            fix="write https://... with {study}, {series} or {instance} where the UIDs belong",
        )


def _check_options(
    serve_at: str | None, local_options: Sequence[object], network_options: Sequence[object]
) -> None:
    """Refuse options that the chosen way of serving would ignore."""
    if serve_at is None and any(value is not None for value in network_options):
        raise ConfigError(
            "cli.conflicting-options",
            "--listen, --certificate and --key belong to a page on the network",
            fix="add --serve HOST:PORT",
        )
    if serve_at is not None and any(value is not None for value in local_options):
        raise ConfigError(
            "cli.conflicting-options",
            "--reviewer, --blind and --port belong to the local page",
            fix="name reviewers, and who reads blind, with `fedgsca reviewers add`; the port is"
            " part of --serve",
        )


def _serve_network(
    audit: Audit,
    pages: dict[str, str],
    serve_at: str,
    listen: str | None,
    certificate: Path | None,
    key: Path | None,
) -> None:
    from fedgsca.labels.audit_images import AuditImages
    from fedgsca.labels.review.serve import (
        TlsFiles,
        choose_listen_address,
        parse_address,
        require_server_packages,
        require_tls,
        serve_network,
    )

    require_server_packages()
    page_address = parse_address(serve_at)
    if (certificate is None) != (key is None):
        raise ConfigError(
            "cli.conflicting-options",
            "--certificate and --key are needed together",
            fix="add the other file",
        )
    tls = None
    if certificate is not None and key is not None:
        tls = TlsFiles(certificate, key)
    address = choose_listen_address(page_address, listen)
    require_tls(page_address, address, tls)  # before the images are read
    if tls is not None:
        _check_certificate(tls, page_address)
    from fedgsca.labels.review.web_app import SharedReview

    review = SharedReview(audit, AuditImages.open(audit), **pages)
    if not review.links.active_links():
        now = datetime.now(UTC)
        problems = {link.reviewer: link.find_problem(now) for link in review.links.links}
        states = ", ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise ConfigError(
            "review.no-links",
            f"nobody has a link to {audit.path} that works ({states or 'there is no link'})",
            fix=f"fedgsca reviewers add {audit.path} NAME --serve {serve_at}",
        )

    def announce(url: str) -> None:
        print_line(f"review  {url}", "bold")
        if review.links.address != url:
            print_warning(f"the newest links were made for {review.links.address}")
        for link in review.links.active_links():
            print_line(f"        {link.reviewer} ({link.role}) until {link.expires[:10]}")
        print_note(
            f"each person opens their own link; decisions and the audit trail are saved to"
            f" {audit.path}; Ctrl-C stops the server, the same command continues the review"
        )

    serve_network(
        review, page_address, listen=address, tls=tls, person=login_name(), announce=announce
    )


def _check_certificate(tls: TlsFiles, page_address: PageAddress) -> None:
    from fedgsca.labels.review.serve import check_certificate

    facts = check_certificate(tls, page_address)
    if facts.days_left < MIN_CERTIFICATE_DAYS:
        print_warning(f"the certificate ends in {plural(facts.days_left, 'day')}")


def reviewer_name(given: str | None) -> str:
    """A name that fits one line of a table."""
    from fedgsca.labels.decisions import check_reviewer_name

    name = (given if given is not None else login_name()).strip()
    check_reviewer_name(name)
    return name


def login_name() -> str:
    """The account of the person at the terminal; empty if it has no name."""
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
    addition = ""
    if pair.weighted_kappa is not None:
        addition = f", with linear weights {number(pair.weighted_kappa, 2)}"
    print_line(
        f"{' and '.join(pair.reviewers)}: {plural(pair.num_labelled, 'label')} by both,"
        f" {percent(share)} the same, Cohen's kappa {number(pair.kappa, 2)}{addition}"
    )
    for conflict in pair.conflicts[:MAX_CONFLICTS]:
        labels = " / ".join(label or "cannot tell" for label in conflict.labels)
        print_line(f"  {conflict.id}  given {conflict.given}: {labels}")
    if len(pair.conflicts) > MAX_CONFLICTS:
        print_line(f"  ... and {len(pair.conflicts) - MAX_CONFLICTS} more (--json lists all)")


def _print_next_step(audit: Path) -> None:
    print_line(f"next    fedgsca apply {audit}")
