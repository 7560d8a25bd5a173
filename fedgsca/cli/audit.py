"""`fedgsca audit`: which of a site's own labels look wrong."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.options import Json, Quiet
from fedgsca.errors import ConfigError
from fedgsca.support.console import (
    make_table,
    print_json,
    print_line,
    print_note,
    print_table,
    print_warning,
)
from fedgsca.support.text import percent

if TYPE_CHECKING:
    from fedgsca.label_audit.audit_table import Audit
    from fedgsca.label_audit.site_data import SiteData


class Who(StrEnum):
    """Second opinions by name; audit/second.py has the rest, but imports numpy."""

    neighbours = "neighbours"
    cleanlab = "cleanlab"


class Split(StrEnum):
    train = "train"
    test = "test"


Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="folder of a run, finished or not; at a hospital: its kit or its site.toml",
    ),
]
Sites = Annotated[list[str] | None, typer.Option("--site", help="only this site; repeatable")]
Out = Annotated[Path | None, typer.Option("--out", help="folder for the audits; default RUN/audit")]
Data = Annotated[
    str | None, typer.Option("--data", help="where the images are now, if they were moved")
]
Labels = Annotated[
    str | None,
    typer.Option("--labels", help="csv of the labels that the run was trained with, likewise"),
]
Quota = Annotated[
    float, typer.Option("--quota", min=0.0, max=1.0, help="share of the labels to review")
]
Opinions = Annotated[
    list[Who] | None,
    typer.Option(
        "--second-opinion",
        help="also ask the site's own features; repeatable; cleanlab needs the extra",
    ),
]
SplitOption = Annotated[
    Split, typer.Option("--split", help="test: the labels by which models are judged; locked")
]
Unlock = Annotated[
    bool,
    typer.Option("--unlock-test", help="audit the test labels though it spoils them as a measure"),
]


def add(app: typer.Typer) -> None:
    app.command(
        "audit",
        help="Rank a site's labels by how wrong they look.",
        rich_help_panel="Review labels",
    )(audit)


def audit(
    run: Run,
    site: Sites = None,
    out: Out = None,
    data: Data = None,
    labels: Labels = None,
    quota: Quota = 0.1,
    second_opinion: Opinions = None,
    split: SplitOption = Split.train,
    unlock_test: Unlock = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    if split is Split.test and not unlock_test:
        raise ConfigError(
            "todo.audit-1",
            "the test labels are locked: they decide how good every model looks. Correcting those that a model doubts makes its"
            " score better without making it better, and later scores cannot be compared with earlier ones",
            fix="audit the training labels; if you must look at the test labels: --split test --unlock-test",
        )
    from fedgsca.engine.label_evidence import sites_with_evidence
    from fedgsca.label_audit.audit_images import AuditImages
    from fedgsca.label_audit.build_audit import audit_site
    from fedgsca.label_audit.gallery import write_gallery
    from fedgsca.label_audit.locate import locate_evidence
    from fedgsca.label_audit.site_data import open_sites, select_site, select_test_split

    place = locate_evidence(run)
    run = place.folder
    unknown = sorted(set(site or ()) - set(sites_with_evidence(run)))
    held = open_sites(run, source=data or place.data, labels=labels or place.labels)
    chosen: list[SiteData] = [select_site(run, held, name) for name in (unknown or site or sorted(held))]
    chosen = [select_test_split(chosen[0])] if split is Split.test else chosen
    unfinished = _unfinished(run)
    if unfinished and not quiet:
        print_warning(unfinished)
    made = []
    for one in chosen:
        if not quiet and not json:
            print_note(f"{one.site}: {len(one)} labels ...")
        found = audit_site(
            run,
            one,
            (out or run / "audit") / one.site,
            quota=quota,
            opinions=second_opinion or (),
            split=split.value,
        )
        write_gallery(AuditImages(one, found), unfinished=unfinished)
        made.append(found)
    if json:
        print_json({"audits": [{"path": str(found.path), **found.header} for found in made]})
    elif not quiet:
        _show(made)


def _unfinished(run: Path) -> str:
    """A run that goes on may still change its opinion; a hospital's state folder does not know."""
    if (run / "result.json").exists() or not (run / "config.toml").exists():
        return ""
    return "the run is not finished: this audit rests on the rounds so far"


def _show(audits: list[Audit]) -> None:
    truth = any("truth" in found.header["summary"] for found in audits)
    head = ["site", "most frequent confusion", "labels", "probably wrong", "plausible", "to review"]
    head += ["truly wrong", "wrong in first 10 %", "AUROC"] if truth else []
    print_table(make_table(head, [_row(found.header, truth) for found in audits], text_columns=2))
    for found in audits:
        if found.header.get("warning"):
            print_warning(str(found.header["warning"]))
    folder = audits[0].path if len(audits) == 1 else audits[0].path.parent
    each = "" if len(audits) == 1 else "<site>/"
    print_line(f"list     {folder}/{each}audit.csv (and suspects.jsonl)")
    print_line(f"gallery  {folder}/{each}gallery.html", "bold")
    print_line("These files hold file names and images of the site: keep them there.")
    print_line(f"next     fedgsca review {audits[0].path}")


def _row(header: Any, truth: bool) -> list[str]:
    found = header["summary"]
    wrong, top = found["estimated_wrong"], found["confusions"][:1]
    share = percent(wrong["count"] / max(found["labels"], 1))
    pair = f"{top[0]['given']} → {top[0]['suggested']} ({top[0]['count']})" if top else "–"
    cells = [
        header["site"],
        pair,
        str(found["labels"]),
        f"{wrong['count']} ({share})",
        f"{wrong['low']}–{wrong['high']}",
    ]
    cells.append(str(found["suspects"]))
    if truth:
        known = found.get("truth")
        area = known and known["auroc"]
        first = percent(known["precision_at"]["10%"]) if known else "–"
        cells += [
            str(known["wrong"]) if known else "–",
            first,
            f"{area:.3f}" if area is not None else "–",
        ]
    return cells
