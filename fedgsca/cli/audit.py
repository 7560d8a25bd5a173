"""`fedgsca audit` and `audit-folder`: which of a site's own labels look wrong."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import (
    Features,
    Json,
    Quiet,
    Sets,
    SkipUnreadable,
    source_slug,
    strip_slash,
)
from fedgsca.support.console import (
    make_table,
    print_json,
    print_line,
    print_note,
    print_start,
    print_table,
    print_warning,
)
from fedgsca.support.text import DASH, join_words, number, percent, plural

if TYPE_CHECKING:
    from fedgsca.federation.simulation import Division
    from fedgsca.labels.audit_table import Audit


class OpinionName(StrEnum):
    """Second opinions by name; labels/second_opinion.py has them, but imports numpy."""

    neighbours = "neighbours"
    regression = "regression"


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
    list[OpinionName] | None,
    typer.Option(
        "--second-opinion",
        help="also ask the site's own features; repeatable",
    ),
]
Review = Annotated[
    int | None,
    typer.Option("--review", min=1, help="review exactly so many labels, in place of --quota"),
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help="a folder of images, FILE.npz or kind:PATH (see `fedgsca data list`)"
    ),
]
FolderOut = Annotated[
    Path | None, typer.Option("--out", help="folder for the audit; default audits/<name of DATA>")
]
FolderLabels = Annotated[
    str | None, typer.Option("--labels", help="csv (file,label) of corrected labels")
]


def audit(
    run: Run,
    site: Sites = None,
    out: Out = None,
    data: Data = None,
    labels: Labels = None,
    quota: Quota = 0.1,
    review: Review = None,
    second_opinion: Opinions = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Rank a site's labels by how wrong they look."""
    from fedgsca.labels.audits import audit_run

    def announce_site(name: str, num_labels: int) -> None:
        if not quiet and not as_json:
            print_note(f"{name}: {num_labels} labels ...")

    audits = audit_run(
        run,
        sites=site or (),
        out=out,
        data=data,
        labels=labels,
        quota=quota,
        review=review,
        second_opinions=second_opinion or (),
        on_site=announce_site,
        on_warning=None if quiet else print_warning,
    )
    if as_json:
        records = [{"path": str(audit.path), **audit.header.to_json()} for audit in audits]
        print_json({"audits": records})
    elif not quiet:
        print_audits(audits)


def print_audits(audits: list[Audit]) -> None:
    """Print a table with one row per site, the files, and the next command."""
    has_truth = any(audit.summary.truth is not None for audit in audits)
    head = ["site", "most frequent confusion", "labels", "probably wrong", "plausible", "to review"]
    if has_truth:
        head += ["truly wrong", "wrong in first 10 %", "AUROC"]
    rows = [_audit_row(audit, has_truth) for audit in audits]
    print_table(make_table(head, rows, text_columns=2))
    explanation = explain_unknown_counts(audits)
    if explanation:
        print_line(explanation)
    _print_findings(audits)
    num_checked = sum(audit.header.num_checked or 0 for audit in audits)
    if num_checked:
        text = plural(num_checked, "label was", "labels were")
        print_line(f"{text} checked by a person before and left out of the list")
    for warning in dict.fromkeys(audit.header.warning for audit in audits):
        if warning:
            print_warning(warning)
    folder = f"{audits[0].path}"
    if len(audits) > 1:
        folder = f"{audits[0].path.parent}/<site>"
    print_line(f"list     {folder}/audit.csv (and suspects.jsonl)")
    print_line(f"gallery  {folder}/gallery.html", "bold")
    print_line("These files contain file names and images of the site: keep them there.")
    print_line(f"next     fedgsca review {audits[0].path}")


def _print_findings(audits: list[Audit]) -> None:
    """What is not a number of wrong labels, and whose evidence judged the labels."""
    from fedgsca.labels.gallery import describe_findings

    for audit in audits:
        place = f"{audit.site}: " if len(audits) > 1 else ""
        for sentence in describe_findings(audit.summary):
            print_line(f"{place}{sentence}")
        if audit.header.evidence is not None:
            print_line(f"{place}{audit.header.evidence.reason}.")


def explain_unknown_counts(audits: list[Audit]) -> str:
    """Why a site has labels to review but no number of wrong ones; or nothing."""
    from fedgsca.labels.score import MIN_PER_CLASS

    sites = []
    for audit in audits:
        if audit.summary.suspects and not audit.summary.estimated_wrong.can_tell:
            sites.append(f"{audit.site} ({plural(audit.summary.labels, 'label')})")
    if not sites:
        return ""
    return (
        f"no number: the images of {join_words(sites)} are few, hard, or say little about the"
        " labels, so that only an interval can be given. The labels to review are a ranking and"
        f" not a count: of every class, at least {MIN_PER_CLASS} are listed if the evidence doubts"
        " so many."
    )


def _audit_row(audit: Audit, has_truth: bool) -> list[str]:
    summary = audit.summary
    wrong = summary.estimated_wrong
    count = wrong.text
    if wrong.can_tell:
        count += f" ({percent(wrong.count / max(summary.labels, 1))})"
    confusion = DASH
    if summary.confusions:
        top = summary.confusions[0]
        total = sum(pair.count for pair in summary.confusions)  # of the labels probably wrong
        confusion = f"{top.given} → {top.suggestion} ({top.count} of {total})"
    cells = [
        audit.site,
        confusion,
        str(summary.labels),
        count,
        f"{wrong.low}–{wrong.high}",
        str(summary.suspects),
    ]
    if not has_truth:
        return cells
    if summary.truth is None:
        return [*cells, DASH, DASH, DASH]
    precision = percent(summary.truth.precision_at["10%"])
    return [*cells, str(summary.truth.num_wrong), precision, number(summary.truth.auroc, 3)]


# ---- a folder ----


def audit_folder(
    data: Source,
    out: FolderOut = None,
    labels: FolderLabels = None,
    quota: Quota = 0.1,
    review: Review = None,
    second_opinion: Opinions = None,
    skip_unreadable: SkipUnreadable = False,
    features: Features = None,
    sets: Sets = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Rank the labels of one folder by how wrong they look; no federation needed."""
    source = strip_slash(data)
    print_start(f"auditing the labels of {source}", quiet=quiet or as_json)
    from fedgsca.federation.progress import display
    from fedgsca.labels.audits import audit_folder as audit

    settings = [*(sets or ())]
    if features is not None:
        settings.append(f"data.features={features}")
    with display(quiet=quiet):
        result = audit(
            source,
            out or Path("audits") / source_slug(source),
            labels=labels,
            quota=quota,
            review=review,
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
