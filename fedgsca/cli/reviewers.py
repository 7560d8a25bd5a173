"""`fedgsca reviewers`: personal links to a review page on the network, and its audit trail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.options import Json
from fedgsca.cli.review import Folder, login_name
from fedgsca.errors import ConfigError
from fedgsca.support.console import make_table, print_json, print_line, print_note, print_table
from fedgsca.support.text import plural

if TYPE_CHECKING:
    from fedgsca.labels.audit_table import Audit
    from fedgsca.labels.review.people import PersonalLink

_DEFAULT_DAYS = 14
_MAX_DAYS = 180
_FINGERPRINT_BYTE = 2  # hexadecimal digits between two colons

Name = Annotated[str, typer.Argument(metavar="NAME", help="whose decisions these will be")]
Serve = Annotated[
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
Blind = Annotated[
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

group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(
        group,
        name="reviewers",
        help="Who may open a review page on the network: personal links, audit trail, certificate.",
        rich_help_panel="Review labels",
    )


@group.command("add")
def add_reviewer(
    audit: Folder,
    name: Name,
    serve: Serve = None,
    days: Days = _DEFAULT_DAYS,
    adjudicator: Adjudicator = False,
    blind: Blind = False,
    as_json: Json = False,
) -> None:
    """Make a personal link. It is printed once and stored nowhere; an older one is revoked."""
    from fedgsca.labels.review.people import ADJUDICATOR, READER, LinkBook, ReviewTrail
    from fedgsca.labels.review.serve import parse_address

    if adjudicator and blind:
        raise ConfigError(
            "cli.conflicting-options",
            "an adjudicator has to see the labels of the readers",
            fix="omit --blind",
        )
    opened_audit = _read(audit)
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


@group.command("list")
def list_reviewers(audit: Folder, as_json: Json = False) -> None:
    """List the links, and how far every person is."""
    from fedgsca.labels.review.people import LinkBook

    opened_audit = _read(audit)
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


@group.command("revoke")
def revoke_link(audit: Folder, name: Name, as_json: Json = False) -> None:
    """End a person's link at once, also in pages that are open. Decisions stay."""
    from fedgsca.labels.review.people import LinkBook, ReviewTrail

    opened_audit = _read(audit)
    links = LinkBook(opened_audit.path).revoke(name.strip())
    trail = ReviewTrail(opened_audit.path)
    for link in links:
        trail.write("link-revoked", login_name(), link=link.id, reviewer=link.reviewer)
    if as_json:
        print_json({"revoked": [_describe(link) for link in links]})
    else:
        print_line(f"{plural(len(links), 'link')} of {name.strip()} revoked")


@group.command("trail")
def show_trail(audit: Folder, as_json: Json = False) -> None:
    """Check the audit trail and show its newest lines. The exit code is 1 if it was changed."""
    from fedgsca.labels.review.people import check_trail

    check = check_trail(_read(audit).path)
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


@group.command("certificate")
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


def _read(path: Path) -> Audit:
    from fedgsca.labels.audit_table import read_audit

    return read_audit(path)


def _describe(link: PersonalLink) -> dict[str, Any]:
    """A link without its hash."""
    from datetime import UTC, datetime

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
