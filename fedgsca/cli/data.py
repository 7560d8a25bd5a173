"""`fedgsca data`: which sources there are, what is in one, and how it looks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.options import Json
from fedgsca.errors import DataError, RunFolderError
from fedgsca.support.console import make_table, print_json, print_line, print_table

if TYPE_CHECKING:
    from rich.table import Table

    from fedgsca.data.checks import Report

Source = Annotated[str, typer.Argument(help="as after --data")]
Root = Annotated[
    Path | None,
    typer.Argument(
        help="its folder, if SOURCE is only the name of a data set: kvasir, odir or chaoyang"
    ),
]
Split = Annotated[
    str | None,
    typer.Option("--split", help="as data.split: fedgp, frame, video, official-0, published, ..."),
]
Label = Annotated[
    str | None,
    typer.Option("--label", help="as data.label: patient, eye, drawn, released, majority, ..."),
]
Splits = Annotated[
    Path | None, typer.Option("--splits", help="as data.splits: folder of the data set's lists")
]
Fast = Annotated[bool, typer.Option("--fast", help="do not decode the images")]
Size = Annotated[
    int | None, typer.Option("--image-size", help="pixels; default: the source's own size")
]
Labels = Annotated[
    Path | None, typer.Option("--labels", help="csv (file,label) of corrected training labels")
]
ListBad = Annotated[
    bool, typer.Option("--list-bad", help="print only the files that cannot be read, one a line")
]
Output = Annotated[Path, typer.Option("-o", "--out", help="PNG file to write")]
Columns = Annotated[int, typer.Option("--columns", min=1, max=64, help="images per class")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="which images are drawn")]

group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


def add(app: typer.Typer) -> None:
    app.add_typer(
        group, name="data", help="List, check and look at data.", rich_help_panel="Data and noise"
    )


@group.command("list")
def list_sources(json: Json = False) -> None:
    """What may stand after --data."""
    from fedgsca.data.load import READERS

    if json:
        print_json(
            {
                "sources": [
                    {"name": name, "form": reader.form, "what": reader.what}
                    for name, reader in READERS.items()
                ]
            }
        )
    else:
        print_table(
            make_table(
                ["--data", "what it is"],
                [[reader.form, reader.what] for reader in READERS.values()],
                text_columns=2,
            )
        )


@group.command("check")
def check(
    source: Source,
    root: Root = None,
    split: Split = None,
    label: Label = None,
    splits: Splits = None,
    image_size: Size = None,
    labels: Labels = None,
    fast: Fast = False,
    list_bad: ListBad = False,
    json: Json = False,
) -> None:
    """Look through a source before a run: counts, problems, duplicates, leakage. Exit code 3 if a run would not start."""
    from fedgsca.data import checks

    source = source if root is None else f"{source}:{root}"
    report = checks.check_source(
        source,
        image_size=image_size,
        labels=labels,
        split=split,
        label=label,
        splits=splits,
        fast=fast and not list_bad,
    )
    if json:
        print_json(_bad(report) if list_bad else report.as_dict())
        if not report.ok:
            raise typer.Exit(DataError.exit_code)
        return
    if list_bad:
        for name, reason in report.bad:
            typer.echo(f"{name}\t{reason}")
    else:
        _show(report)
    if not report.ok:
        raise _refusal(report)


def _bad(report: Report) -> dict[str, Any]:
    """--list-bad for programs: the files, and all that stops a run."""
    found = report.as_dict()
    return {
        "bad": [{"file": name, "reason": reason} for name, reason in report.bad],
        "problems": found["problems"],
    }


def _refusal(report: Report) -> DataError:
    """All problems as one error that names the source once."""
    source, (first, *more) = report.source, report.problems
    named = first.text.startswith((f"--data {source}: ", f"{source}: ", f"{Path(source).name}: "))
    rest = "".join(f"\n  {finding.text} ({finding.fix})" for finding in more)
    return DataError(
        "todo.data-1",
        ("" if named else f"{source} cannot be used as it is: ") + first.text + rest,
        fix=first.fix,
    )


def _show(report: Report) -> None:
    if report.tree:
        rows = [[b.folder, str(b.images), _beside(b.images, b.published)] for b in report.tree]
        print_table(make_table(["folder", "images", "published"], rows))
    if report.counts:
        total = sum(sum(classes.values()) for classes in report.counts.values())
        pixels = f"{report.shape[1]}x{report.shape[0]} pixels" if report.shape else "not decoded"
        print_line(f"{report.name}: {total} images, {pixels}, {len(report.classes)} classes", "bold")
        print_table(_counts(report))
        if report.stored:
            kinds = ", ".join(f"{size} ({count})" for size, count in report.stored[:4])
            print_line(f"files   {kinds}{', ...' if len(report.stored) > 4 else ''}")
        if report.groups is not None:
            print_line(f"{report.group_word + 's':<7} {report.groups}")
        if report.sites:
            print_line("sites   " + ", ".join(_site(report, name) for name in report.sites))
        for name, digest in report.lists:
            print_line(f"sha256  {digest}  {name}", "dim")
        if report.list_sha256:
            print_line(f"sha256  {report.list_sha256}  all files with label, split and site", "dim")
        if report.fingerprint:
            print_line(
                f"sha256  {report.fingerprint}"
                + ("  images, labels and split" if report.tree else ""),
                "dim",
            )
    for text in report.notes:
        print_line(f"note: {text}")
    for text in report.warnings:
        print_line(f"warning: {text}", "yellow")
    if report.ok:
        print_line("ready to train on" if report.shape else "complete; no image was decoded", "green")


def _counts(report: Report) -> Table:
    """Images per class and split, beside the published numbers where they are known."""
    head, columns = ["class"], []
    for split, classes in report.counts.items():
        found = [*(classes[name] for name in report.classes), sum(classes.values())]
        head.append(split)
        columns.append([str(count) for count in found])
        known = report.published.get(split)
        if known:
            head.append("published")
            columns.append(
                [
                    _beside(n, known.get(name))
                    for n, name in zip(found, [*report.classes, "all"], strict=True)
                ]
            )
    return make_table(head, zip([*report.classes, "all"], *columns, strict=True))


def _beside(found: int, published: int | None) -> str:
    """The published number; marked if it is another one."""
    return "" if published is None else str(published) if published == found else f"! {published}"


def _site(report: Report, name: str) -> str:
    found, known = report.sites[name], report.published_sites.get(name)
    return (
        f"{name} ({found})" if known in (None, found) else f"{name} ({found}, published {known} !)"
    )


@group.command("sheet")
def sheet(
    source: Source,
    out: Output,
    split: Split = None,
    label: Label = None,
    splits: Splits = None,
    image_size: Size = None,
    columns: Columns = 12,
    seed: Seed = 0,
) -> None:
    """Write a contact sheet: a row of training images for every class."""
    from fedgsca.data.contact_sheet import save_sheet
    from fedgsca.data.load import load

    table = load(
        source, image_size=image_size, split=split, label=label, splits=splits, need_test=False
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_sheet(table, out, per_class=columns, seed=seed)
    except (
        OSError,
        ValueError,
    ) as error:  # no permission, no space, a file type that Pillow does not know
        raise RunFolderError(
            "todo.data-2",
            f"cannot write {out}: {error}",
            fix="choose another file ending in .png with -o",
        ) from None
    print_line(f"sheet   {out}", "bold")
