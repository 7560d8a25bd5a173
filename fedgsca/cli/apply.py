"""`fedgsca apply`: corrected labels from decisions; `exchange`: files for other tools."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import Json
from fedgsca.support.console import print_json, print_line, print_note
from fedgsca.support.text import count, plural

if TYPE_CHECKING:
    from fedgsca.labels.apply_decisions import CorrectedLabels, DecisionCounts

Folder = Annotated[
    Path, typer.Argument(metavar="AUDIT", help="RUN/audit/SITE, or RUN for all its reviewed sites")
]
Prefer = Annotated[
    str | None,
    typer.Option("--prefer", help="whose label counts where reviewers disagree; default: nobody's"),
]
Without = Annotated[
    list[str] | None,
    typer.Option("--without", help="a person whose decisions do not count; repeatable"),
]
Language = Annotated[str, typer.Option("--language", help="of the page to sign: en, de or fr")]
Out = Annotated[
    Path | None, typer.Option("--out", help="default: labels.corrected.csv beside the original")
]

MAX_PAIRS = 12  # printed; the log has all of them

SiteFolder = Annotated[
    Path, typer.Argument(metavar="AUDIT", help="folder of one site's audit, RUN/audit/SITE")
]
FormatName = Annotated[str, typer.Option("--format", help="cleanlab, label-studio or cvat")]
ExportOut = Annotated[Path, typer.Option("--out", "-o", help="file to write")]
AllLabels = Annotated[bool, typer.Option("--all", help="all labels, not only the priority list")]
ExportReviewer = Annotated[str | None, typer.Option("--reviewer", help="whose decisions to export")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="what the tool exported")]
ImportReviewer = Annotated[
    str | None, typer.Option("--reviewer", help="name of the reviewer; default: as in the file")
]


exchange = typer.Typer(
    no_args_is_help=True, help="Exchange suspects and decisions with other labelling tools."
)


def apply_command(
    audit: Folder,
    prefer: Prefer = None,
    without: Without = None,
    out: Out = None,
    language: Language = "",
    as_json: Json = False,
) -> None:
    """Write corrected labels beside the original, with a change log."""
    from fedgsca.labels.apply_decisions import apply_decisions

    result = apply_decisions(
        audit, prefer=prefer, without=without or (), out=out, language=language
    )
    if as_json:
        changes = [asdict(change) for change in result.changes]
        print_json({"file": result.file, "counts": result.counts.to_json(), "changes": changes})
    else:
        _print_result(result)


def _counts_text(counts: DecisionCounts) -> str:
    """What becomes of the labels that were reviewed, without the outcomes that do not occur."""
    parts = []
    for quantity, singular, plural_form in (
        (counts.num_changed, "changes", "change"),
        (counts.num_confirmed, "is confirmed", "are confirmed"),
        (
            counts.num_disputed,
            "is disputed and stays as it is",
            "are disputed and stay as they are",
        ),
        (counts.num_unsure, "stays because nobody could tell", "stay because nobody could tell"),
    ):
        if quantity:
            parts.append(f"{count(quantity)} {singular if quantity == 1 else plural_form}")
    verb = "was" if counts.num_reviewed == 1 else "were"
    return f"{plural(counts.num_reviewed, 'label')} {verb} reviewed: {', '.join(parts)}"


def _print_result(result: CorrectedLabels) -> None:
    from fedgsca.data.relabel import log_path

    print_line(_counts_text(result.counts))
    _print_pairs(result)
    if result.file is None:
        print_line("no label changes and none is confirmed: nothing was written")
        return
    if result.num_unused:
        verb, clause = ("is", "it is") if result.num_unused == 1 else ("are", "they are")
        print_note(
            f"{plural(result.num_unused, 'line')} of the original {verb} for images that the run"
            f" did not use; {clause} unchanged"
        )
    verb = "label is" if result.num_checked == 1 else "labels are"
    print_line(f"{count(result.num_checked)} {verb} marked as checked")
    print_line(f"labels  {result.file}", "bold")
    print_line(f"log     {log_path(result.file)}")
    print_line(f"record  {result.protocol} (print and sign it)")
    print_line(f"retrain {_retraining_hint(result)}")


def _print_pairs(result: CorrectedLabels) -> None:
    """How often which label became which."""
    pairs = Counter((change.old, change.new) for change in result.changes)
    by_frequency = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
    for (old, new), frequency in by_frequency[:MAX_PAIRS]:
        print_line(f"  {old} → {new}  {frequency}")
    hidden_pairs = by_frequency[MAX_PAIRS:]
    if hidden_pairs:
        total = sum(count for _, count in hidden_pairs)
        print_line(f"  and {total} labels of {len(hidden_pairs)} other pairs, all in the log")


def _retraining_hint(result: CorrectedLabels) -> str:
    config = result.run / "config.toml"
    source = _folder_source(result)
    if source is not None:
        return shlex.join(["fedgsca", "run", "--data", source, "--labels", str(result.file)])
    if not config.exists():  # the state of a hospital: the coordinator has the configuration
        return f'put labels = "{result.file}" into the site\'s settings before the next run'
    words = ["fedgsca", "run", "--config", str(config), "--labels", str(result.file)]
    if result.has_noise:  # the file contains the labels as given, with the injected noise
        words += ["--noise", "0", "--set", "noise.given=none"]
    words += ["--out", str(result.run.with_name(f"{result.run.name}-corrected"))]
    return shlex.join(words)


def _folder_source(result: CorrectedLabels) -> str | None:
    """The data of an audit by `fedgsca audit-folder`; None for the audit of a run."""
    from fedgsca.federation.label_evidence import read_header, sites_with_evidence
    from fedgsca.labels.audits import is_folder_audit

    if not is_folder_audit(result.run):
        return None
    header = read_header(result.run, sites_with_evidence(result.run)[0])
    return str(header.config["data"]["source"])


# ---- other tools ----


@exchange.command("export")
def export_command(
    audit: SiteFolder,
    format_name: FormatName,
    out: ExportOut,
    all_labels: AllLabels = False,
    reviewer: ExportReviewer = None,
) -> None:
    """Write the suspects in another tool's format."""
    from fedgsca.labels.audit_table import read_audit
    from fedgsca.labels.exchange import export_suspects

    paths = export_suspects(
        read_audit(audit), format_name, out, all_labels=all_labels, reviewer=reviewer
    )
    for path in paths:
        print_line(f"written  {path}")


@exchange.command("import")
def import_command(
    audit: SiteFolder, file: File, format_name: FormatName, reviewer: ImportReviewer = None
) -> None:
    """Add the decisions from another tool."""
    from fedgsca.cli.review import reviewer_name
    from fedgsca.labels.audit_table import read_audit
    from fedgsca.labels.exchange import import_verdicts

    name = None if reviewer is None else reviewer_name(reviewer)
    counts = import_verdicts(read_audit(audit), format_name, file, reviewer=name)
    for reviewer_of_file, num_new in sorted(counts.items()):
        if num_new:
            print_line(f"{plural(num_new, 'new decision')} of {reviewer_of_file}")
        else:
            print_line(f"no new decision of {reviewer_of_file}: all were imported before")
    if not counts:
        print_line(f"{file} contains no decisions")
