"""`fedgsca withdraw`: a patient leaves, and the study goes on with the images that remain."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import Json
from fedgsca.support.console import print_json, print_line, print_note
from fedgsca.support.text import plural

if TYPE_CHECKING:
    from fedgsca.federation.changed_samples import SampleChange
    from fedgsca.labels.withdrawal import Withdrawal

Patients = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATIENT...",
        help="values of the column group, patient ids of DICOM files, or file names; none: follow"
        " data from which images were removed",
    ),
]
Place = Annotated[
    Path,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="a run, a comparison, a hospital's kit or site.toml, or a folder of images",
    ),
]
TakesNew = Annotated[
    bool, typer.Option("--added", help="at a hospital: take in images that were added, too")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]


def withdraw_command(
    place: Place,
    patients: Patients = None,
    takes_new: TakesNew = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """A patient leaves: out of training, cache, memory, audits and lists."""
    from fedgsca.labels.withdrawal import withdraw

    names = patients or []
    if names and not (yes or as_json):
        typer.confirm(
            f"Withdraw {plural(len(names), 'patient')} from {place}? Nothing brings them back.",
            abort=True,
        )
    result = withdraw(names, place, takes_new=takes_new)
    if as_json:
        print_json(_to_json(result))
    else:
        _print_result(result, place)


def _to_json(result: Withdrawal) -> dict[str, object]:
    changes = {}
    for folder, change in result.changes.items():
        changes[str(folder)] = None if change is None else asdict(change)
    return {
        "source": result.source,
        "images": result.num_images,
        "list": result.list_file,
        "cache_files": result.num_cached,
        "changes": changes,
        "audits": list(result.audits),
        "label_files": list(result.label_files),
    }


def _print_result(result: Withdrawal, place: Path) -> None:
    if result.list_file is not None:
        print_line(
            f"data    {plural(result.num_images, 'image')} in {result.source} will not be read"
            f" again: {result.list_file.name} lists them without names"
        )
    print_line(f"cache   emptied ({plural(result.num_cached, 'file')}); it is filled again")
    for file in result.label_files:
        print_line(f"labels  {file} and its log: without their lines")
    for folder, change in result.changes.items():
        print_line(f"study   {folder}: {_change_text(change)}")
    if result.audits:
        print_line(
            f"audit   {plural(len(result.audits), 'audit')} removed; decisions about other images"
            " are kept"
        )
    used_changes = [change for change in result.changes.values() if change and change.rounds]
    if result.num_images:
        print_note(
            f"the files themselves are still in {result.source}: delete them and their lines there,"
            " and in backups and exports of your own"
        )
    if any(change.num_removed for change in used_changes):
        rounds = max(change.rounds for change in used_changes)
        print_note(
            f"the model of rounds 1 to {rounds} was trained with them, and nothing subtracts them"
            " again; the model card says so, and only a new training is without them"
        )
    if result.audits:
        print_line(f"next    fedgsca audit {place}", "bold")


def _change_text(change: SampleChange | None) -> str:
    if change is None:
        return "nothing differs"
    parts = []
    for verb, counts in (("without", change.removals), ("with", change.additions)):
        for name, number in counts.items():
            noun = "new image" if verb == "with" else "image"
            parts.append(f"{verb} {plural(number, noun)} of {name}")
    text = ", ".join(parts) or "no image of the patient was in it"
    return f"after {plural(change.rounds, 'round')}, it goes on {text}"
