"""`fedgsca review`: the page for reviewing suspect labels, local or on the hospital's network.

`fedgsca reviewers`: who may open it there.
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from fedgsca.labels.review.people import PersonalLink
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
    """Review suspect labels on a page: local, or with --serve on the hospital's network."""
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
    pages = {"language": language, "viewer": viewer}
    if serve_at is not None:
        _serve_network(opened_audit, pages, serve_at, listen, certificate, key)
        return
    _serve_here(opened_audit, pages, reviewer_name(reviewer), port, blind=blind)


def _serve_here(
    audit: Audit, pages: dict[str, str], name: str, port: int | None, *, blind: bool
) -> None:
    """The page of one reviewer on this computer."""
    from fedgsca.labels.review.serve import require_server_packages, serve_page

    require_server_packages()  # before the images are read
    from fedgsca.labels.audit_images import AuditImages
    from fedgsca.labels.review.session import Session

    images = AuditImages.open(audit)
    language, viewer = pages["language"], pages["viewer"]
    session = Session(audit, images, name, blind=blind, language=language, viewer=viewer)

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
        _print_next_step(audit.path)


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


# ---- reviewers: personal links to a page on the network, and its audit trail ----


_DEFAULT_DAYS = 14
_MAX_DAYS = 180
_FINGERPRINT_BYTE = 2  # hexadecimal digits between two colons

ReviewerName = Annotated[str, typer.Argument(metavar="NAME", help="whose decisions these will be")]
LinkServe = Annotated[
    str | None,
    typer.Option(
        "--serve",
        metavar="HOST:PORT",
        help="address of the page, as for `fedgsca review --serve`; needed for the first link",
    ),
]
ServeAt = Annotated[
    str,
    typer.Option("--serve", metavar="HOST:PORT", help="name or address of the page"),
]
Days = Annotated[
    int,
    typer.Option("--days", min=1, max=_MAX_DAYS, help="how long the link works"),
]
Adjudicator = Annotated[
    bool,
    typer.Option(
        "--adjudicator",
        help="this person settles the disagreements of the readers, after they have finished",
    ),
]
BlindReader = Annotated[
    bool,
    typer.Option("--blind", help="this reader sees neither label before the list is complete"),
]
Out = Annotated[Path, typer.Option("--out", help="folder for the files; only you can open it")]
Authority = Annotated[
    Path | None,
    typer.Option(
        "--authority",
        help="folder with ca.crt and ca.key, such as `authority` of the kits; default: the one in"
        " --out, else a new one that can sign for this host only",
    ),
]

reviewers = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Who may open a review page on the network: personal links, audit trail, certificate.",
)


@reviewers.command("add")
def add_reviewer(
    audit: Folder,
    name: ReviewerName,
    serve: LinkServe = None,
    days: Days = _DEFAULT_DAYS,
    adjudicator: Adjudicator = False,
    blind: BlindReader = False,
    as_json: Json = False,
) -> None:
    """Make a personal link. It is printed once and stored nowhere; an older one is revoked."""
    from fedgsca.labels.audit_table import read_audit
    from fedgsca.labels.review.people import ADJUDICATOR, READER, LinkBook, ReviewTrail
    from fedgsca.labels.review.serve import parse_address

    if adjudicator and blind:
        raise ConfigError(
            "cli.conflicting-options",
            "an adjudicator has to see the labels of the readers",
            fix="omit --blind",
        )
    opened_audit = read_audit(audit)
    url = None
    if serve is not None:
        page_address = parse_address(serve)
        url = page_address.url(has_tls=not page_address.is_local)
    book = LinkBook(opened_audit.path)
    role = ADJUDICATOR if adjudicator else READER
    link, token = book.add(name.strip(), role=role, blind=blind, days=days, address=url)
    trail = ReviewTrail(opened_audit.path)
    trail.write(
        "link-made", login_name(), link=link.id, reviewer=link.reviewer, expires=link.expires
    )
    address = f"{book.address}/?token={token}"
    if as_json:
        print_json({"link": address, **_describe(link)})
        return
    print_line(f"link  {address}", "bold")
    if address.startswith("http://"):
        print_note("if you serve the page with a certificate, write https:// instead of http://")
    print_note(
        f"for {link.reviewer} only, as {link.role}, until {link.expires[:10]}. Whoever has it can"
        f" decide in this name: hand it over in person or by encrypted mail. To end it:"
        f" fedgsca reviewers revoke {audit} {link.reviewer!r}"
    )


@reviewers.command("list")
def list_reviewers(audit: Folder, as_json: Json = False) -> None:
    """List the links, and how far every person is."""
    from fedgsca.labels.audit_table import read_audit
    from fedgsca.labels.review.people import LinkBook

    opened_audit = read_audit(audit)
    links = LinkBook(opened_audit.path).links
    entries = [_describe(link) | _describe_progress(opened_audit, link) for link in links]
    if as_json:
        print_json({"links": entries})
        return
    if not entries:
        print_line("there is no link yet; `fedgsca reviewers add` makes one")
        return
    head = ["reviewer", "role", "blind", "state", "expires", "decided"]
    rows = []
    for entry in entries:
        blind = "yes" if entry["blind"] else "no"
        day = str(entry["expires"])[:10]
        count = f"{entry['decided']} of {entry['required']}" if entry["required"] else "–"
        rows.append([entry["reviewer"], entry["role"], blind, entry["state"], day, count])
    print_table(make_table(head, rows, text_columns=6))


@reviewers.command("revoke")
def revoke_link(audit: Folder, name: ReviewerName, as_json: Json = False) -> None:
    """End a person's link at once, also in pages that are open. Decisions stay."""
    from fedgsca.labels.audit_table import read_audit
    from fedgsca.labels.review.people import LinkBook, ReviewTrail

    opened_audit = read_audit(audit)
    links = LinkBook(opened_audit.path).revoke(name.strip())
    trail = ReviewTrail(opened_audit.path)
    for link in links:
        trail.write("link-revoked", login_name(), link=link.id, reviewer=link.reviewer)
    if as_json:
        print_json({"revoked": [_describe(link) for link in links]})
    else:
        print_line(f"{plural(len(links), 'link')} of {name.strip()} revoked")


@reviewers.command("trail")
def show_trail(audit: Folder, as_json: Json = False) -> None:
    """Check the audit trail and show its newest lines. The exit code is 1 if it was changed."""
    from fedgsca.labels.audit_table import read_audit
    from fedgsca.labels.review.people import check_trail

    check = check_trail(read_audit(audit).path)
    if as_json:
        print_json(
            {
                "lines": check.num_lines,
                "events": dict(check.events),
                "latest": list(check.latest),
                "problems": list(check.problems),
            }
        )
    else:
        for entry in check.latest:
            print_line(_entry_text(entry))
        counts = ", ".join(f"{event} {count}" for event, count in sorted(check.events.items()))
        print_line(f"{plural(check.num_lines, 'line')}: {counts or 'nothing happened yet'}", "bold")
        for problem in check.problems:
            print_line(f"FAIL    {problem}", "bold red")
    if check.problems:
        raise typer.Exit(1)


@reviewers.command("certificate")
def make_certificate_command(
    serve: ServeAt, out: Out = Path("review-certificate"), authority: Authority = None
) -> None:
    """Make a TLS certificate for the page: server.pem, server.key, and ca.crt for the browsers."""
    from fedgsca.labels.review.serve import make_certificate, parse_address

    made_certificate = make_certificate(parse_address(serve), out, authority)
    digits = made_certificate.fingerprint
    pairs = [digits[i : i + _FINGERPRINT_BYTE] for i in range(0, len(digits), _FINGERPRINT_BYTE)]
    print_line(f"certificate  {made_certificate.files.certificate}", "bold")
    print_line(f"key          {made_certificate.files.key}  (secret)")
    print_line(f"authority    {made_certificate.authority}  (import it into the browsers)")
    print_line(f"SHA-256      {':'.join(pairs)}  (compare it when importing)")


def _describe(link: PersonalLink) -> dict[str, Any]:
    """A link without its hash."""
    return {
        "id": link.id,
        "reviewer": link.reviewer,
        "role": link.role,
        "blind": link.blind,
        "state": link.find_problem(datetime.now(UTC)) or "active",
        "created": link.creation,
        "expires": link.expires,
    }


def _describe_progress(audit: Audit, link: PersonalLink) -> dict[str, Any]:
    """How many labels the person has to decide about, and has; of readers only."""
    from fedgsca.labels.consensus import count_decided, required_labels
    from fedgsca.labels.review.people import READER

    decisions = audit.open_decisions()
    if link.role != READER:
        return {"decided": len(decisions.by_reviewer(link.reviewer)), "required": None}
    selection = required_labels(audit)
    num_decided = count_decided(audit, decisions.readings(link.reviewer), selection)
    return {"decided": num_decided, "required": int(selection.sum())}


def _entry_text(entry: dict[str, Any]) -> str:
    fixed_keys = ("time", "event", "who", "previous")
    facts = [f"{key} {value}" for key, value in entry.items() if key not in fixed_keys]
    person = entry["who"] or "unknown"
    return f"{str(entry['time'])[:19]}  {entry['event']:14} {person}  {', '.join(facts)}"
