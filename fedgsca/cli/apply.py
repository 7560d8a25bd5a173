"""`fedgsca apply`: corrected labels from what reviewers decided."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import Json
from fedgsca.support.console import print_json, print_line, print_note

if TYPE_CHECKING:
    from fedgsca.label_audit.apply_decisions import CorrectedLabels

Folder = Annotated[
    Path, typer.Argument(metavar="AUDIT", help="RUN/audit/SITE, or RUN for all its reviewed sites")
]
Prefer = Annotated[
    str | None,
    typer.Option("--prefer", help="whose label counts where reviewers disagree; default: nobody's"),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="default: labels.corrected.csv beside the original")
]

PAIRS = 12  # shown; the log has all of them


def add(app: typer.Typer) -> None:
    app.command(
        "apply",
        help="Write corrected labels beside the original, with a change log.",
        rich_help_panel="Review labels",
    )(apply_command)


def apply_command(
    audit: Folder, prefer: Prefer = None, out: Out = None, json: Json = False
) -> None:
    from fedgsca.label_audit.apply_decisions import apply_decisions

    done = apply_decisions(audit, prefer=prefer, out=out)
    if json:
        print_json(
            {
                "file": done.file,
                "counts": done.counts,
                "changes": [asdict(change) for change in done.changes],
            }
        )
    else:
        _show(done)


def _show(done: CorrectedLabels) -> None:
    from fedgsca.data.label_changes import count_pairs, log_path

    counts = done.counts
    print_line(
        f"{counts['looked_at']} labels were looked at: {counts['changed']} change, {counts['confirmed']} are confirmed"
    )
    if counts["disputed"] or counts["unsure"]:
        print_line(
            f"{counts['disputed']} are disputed and {counts['unsure']} could not be told: these stay as they are"
        )
    pairs = count_pairs((change.old, change.new) for change in done.changes)
    for pair in pairs[:PAIRS]:
        print_line(f"  {pair['from']} → {pair['to']}  {pair['count']}")
    if len(pairs) > PAIRS:
        rest = sum(pair["count"] for pair in pairs[PAIRS:])
        print_line(f"  and {rest} labels of {len(pairs) - PAIRS} other pairs, all in the log")
    if done.file is None:
        print_line("no label changes: nothing was written")
        return
    if done.left_out:
        print_note(
            f"{done.left_out} lines of the original name images that the run did not use; they are left out"
        )
    print_line(f"labels  {done.file}", "bold")
    print_line(f"log     {log_path(done.file)}")
    if not (
        done.run / "config.toml"
    ).exists():  # the state of a hospital: the coordinator has the configuration
        print_line(f'retrain put labels = "{done.file}" into the site\'s settings before the next run')
        return
    again = [
        "fedgsca",
        "run",
        "--config",
        str(done.run / "config.toml"),
        "--labels",
        str(done.file),
    ]
    if done.noisy:  # the file holds the labels as given, injected noise and all
        again += ["--noise", "0", "--set", "noise.given=none"]
    again += ["--out", str(done.run.with_name(f"{done.run.name}-corrected"))]
    print_line(f"retrain {shlex.join(again)}")
