"""`fedgsca data`: available sources, the contents of one, an example, and the cache."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import Json
from fedgsca.errors import ConfigError, DataError, RunFolderError
from fedgsca.support.console import make_table, print_json, print_line, print_table
from fedgsca.support.text import join_words, plural, printable, size_text

if TYPE_CHECKING:
    from rich.table import Table

    from fedgsca.data.checks import SourceReport
    from fedgsca.data.table import ImageTable
    from fedgsca.data.table_import import TableImport

Source = Annotated[str, typer.Argument(help="as after --data")]
Root = Annotated[
    Path | None,
    typer.Argument(
        help="its folder, if SOURCE is only the name of a data set: kvasir, odir or chaoyang"
    ),
]
NewFolder = Annotated[Path, typer.Argument(help="a folder that does not exist yet")]
HospitalNumber = Annotated[
    int, typer.Option("--seed", min=0, help="another number: images of another hospital")
]
Split = Annotated[
    str | None,
    typer.Option("--split", help="as data.split: fedgp, frame, video, published, ..."),
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
Save = Annotated[
    Path | None,
    typer.Option(
        "--save",
        metavar="FOLDER",
        help="write duplicates and leaking images to copies.csv, and to copies.png to look at",
    ),
]
ListBad = Annotated[
    bool, typer.Option("--list-bad", help="print only the files that cannot be read, one per line")
]
Sheet = Annotated[
    Path | None,
    typer.Option(
        "--sheet", metavar="FILE.png", help="write a row of training images for every class"
    ),
]
Clear = Annotated[bool, typer.Option("--clear", help="remove them")]
Yes = Annotated[bool, typer.Option("--yes", help="with --clear: do not ask")]
OlderThan = Annotated[
    float | None,
    typer.Option("--older-than", min=0, metavar="DAYS", help="only what was not read for so long"),
]

ImageFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="the folder with the images")]
Tables = Annotated[
    list[Path] | None,
    typer.Argument(metavar="TABLE...", help="csv and xlsx files; default: all in FOLDER"),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="HEADER=COLUMN",
        help="what a column is, where the guess is wrong: 'Befund=label'; repeatable",
    ),
]
ImportYes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]

_MAX_CASES = 20  # of each problem of an import that are printed
_MAX_SETS = 5  # of each kind that are printed
_MAX_COPIES = 4  # of a set

group = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List, check and preview data; empty the cache.",
)


@group.command("list")
def list_sources(as_json: Json = False) -> None:
    """List the kinds of sources that --data accepts."""
    from fedgsca.data.reader import available_readers

    readers = available_readers()
    if as_json:
        sources = []
        for name, reader in readers.items():
            sources.append({"name": name, "form": reader.form, "what": reader.summary})
        print_json({"sources": sources})
        return
    rows = [[reader.form, reader.summary] for reader in readers.values()]
    print_table(make_table(["--data", "what it is"], rows, text_columns=2))


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
    save: Save = None,
    sheet: Sheet = None,
    list_bad: ListBad = False,
    as_json: Json = False,
) -> None:
    """Check a source before a run: counts, problems, duplicates, leakage.

    The exit code is 3 if a run would not start.
    """
    from fedgsca.data.checks import check_source
    from fedgsca.data.load import load

    name = source if root is None else f"{source}:{root}"
    report = check_source(
        name,
        image_size=image_size,
        labels=labels,
        split=split,
        label=label,
        splits=splits,
        fast=fast and not list_bad,
        save=save,
    )
    if as_json:
        print_json(_bad_files_json(report) if list_bad else report.to_json())
        if not report.ok:
            raise typer.Exit(DataError.exit_code)
        return
    if list_bad:
        for file in report.bad:
            typer.echo(f"{printable(file.name)}\t{printable(file.reason)}")
    else:
        _show_report(report)
    if not report.ok:
        raise _combine_problems(report)
    if sheet is not None:
        table = load(
            name, image_size=image_size, split=split, label=label, splits=splits, need_test=False
        )
        _write_sheet(table, sheet)


@group.command("import")
def import_tables(
    folder: ImageFolder,
    tables: Tables = None,
    columns: Columns = None,
    yes: ImportYes = False,
    as_json: Json = False,
) -> None:
    """Write labels.csv and names.toml from the tables that a hospital exports, after one question.

    Columns are guessed from German, French and English headers; images are found whatever drive,
    slashes, capitals or umlauts the table writes, or by the UIDs of DICOM files.
    """
    from fedgsca.data.table_import import check_target, read_import, write_import

    check_target(folder)  # before anybody is asked
    result = read_import(folder, tables or (), _read_columns(columns or []))
    if as_json:
        print_json(_import_json(result))
    else:
        _show_import(result)
    if not result.rows:
        raise DataError(
            "data.nothing-imported",
            f"{folder}: no row of the tables has an image and a label",
            fix="check the columns above; say which one it is with --column 'HEADER=file'",
        )
    if not (yes or as_json):
        typer.confirm(f"Write labels.csv and names.toml in {folder}?", abort=True)
    paths = write_import(result)
    if not as_json:
        print_line("")
        print_line(f"written {join_words([path.name for path in paths])} in {folder}")
        print_line(f"next    fedgsca data check {folder}", "bold")


def _read_columns(items: list[str]) -> dict[str, str]:
    from fedgsca.data.readers.folder import COLUMNS

    columns = {}
    for item in items:
        own_name, _, name = item.rpartition("=")
        if not own_name or name not in COLUMNS:
            raise ConfigError(
                "cli.invalid-column",
                f"--column {item} is not HEADER=COLUMN",
                fix=f"write for example --column 'Befund=label'; columns: {', '.join(COLUMNS)}",
            )
        columns[own_name] = name
    return columns


def _import_json(result: TableImport) -> dict[str, object]:
    return {
        "tables": result.tables,
        "columns": result.columns,
        "ignored": result.ignored_columns,
        "classes": {name: dict(counts) for name, counts in result.spellings.items()},
        "order": result.order,
        "rows": len(result.rows),
        "found": dict(result.ways),
        "missing": result.missing_files,
        "ambiguous": result.ambiguous_files,
        "repeated": result.repeated_files,
        "unlabelled": dict(result.labels_left_out),
        "unlisted": result.num_unlisted,
    }


def _show_import(result: TableImport) -> None:
    """Everything that a data manager has to say yes to, on one screen."""
    print_line(f"tables  {join_words(result.tables)}")
    for own_name, column in result.columns.items():
        print_line(f"column  {printable(own_name)} is the {column}")
    if result.ignored_columns:
        print_line(f"kept    {', '.join(map(printable, result.ignored_columns))}: not used")
    ways = [f"{count} {way}" for way, count in result.ways.most_common()]
    print_line(f"images  {len(result.rows)} found: {join_words(ways)}" if ways else "images  none")
    print_line("")
    rows = []
    for name, counts in result.spellings.items():
        spellings = [f"{printable(own_name)} ({count})" for own_name, count in counts.most_common()]
        rows.append([name, str(counts.total()), ", ".join(spellings) if len(counts) > 1 else ""])
    print_table(make_table(["class", "images", "one class because they are alike"], rows))
    if result.order:
        print_line(f"order   {' < '.join(map(printable, result.order))}")
    no_decisions = []
    for own_name, count in result.labels_left_out.items():
        no_decisions.append(f"{printable(own_name)} ({count})")
    problems = (
        ("without an image", result.missing_files),
        ("for which several images have the same name", result.ambiguous_files),
        ("for an image that an earlier row has", result.repeated_files),
        ("without a decision about the label", no_decisions),
    )
    for text, cases in problems:
        if cases:
            count = result.labels_left_out.total() if cases is no_decisions else len(cases)
            print_line(f"! {plural(count, 'row')} {text}, left out:")
            for case in cases[:_MAX_CASES]:
                print_line(f"    {printable(case)}")
            if len(cases) > _MAX_CASES:
                print_line(f"    ... and {len(cases) - _MAX_CASES} more (--json lists all)")
    if result.num_unlisted:
        print_line(f"! {plural(result.num_unlisted, 'image')} of the folder in no table: not used")


def _write_sheet(table: ImageTable, file: Path) -> None:
    """A contact sheet, so that a person can look at the images."""
    from fedgsca.data.sheets import save_sheet

    try:
        save_sheet(table, file)
    except (OSError, ValueError) as error:
        # no permission, no space, or a file type that Pillow does not support
        raise RunFolderError(
            "file.cannot-write",
            f"{file} cannot be written: {error}",
            fix="choose another file ending in .png",
        ) from None
    print_line(f"sheet   {file}", "bold")


def _bad_files_json(report: SourceReport) -> dict[str, object]:
    """--list-bad for programs: the files, and everything that stops a run."""
    files = [{"file": file.name, "reason": file.reason} for file in report.bad]
    return {"bad": files, "problems": report.to_json()["problems"]}


def _combine_problems(report: SourceReport) -> DataError:
    """All problems as one error that names the source once; its code is that of the first."""
    first = report.problems[0]
    message = first.text
    if report.source not in message and Path(report.source).name not in message:
        message = f"{report.source} cannot be used: {message}"
    for problem in report.problems[1:]:
        message += f"\n  {problem.text} ({problem.fix})"
    return DataError(first.code, message, fix=first.fix)


def _show_report(report: SourceReport) -> None:
    if report.tree:
        rows = []
        for folder in report.tree:
            text = _published_text(folder.images, folder.published_images)
            rows.append([folder.folder, str(folder.images), text])
        print_table(make_table(["folder", "images", "published"], rows))
    if report.counts:
        _show_contents(report)
    for text in report.warnings:
        print_line(f"warning: {text}", "yellow")
    _show_copies(report)
    for text in report.notes:
        print_line(f"note: {text}")
    if report.ok:
        _show_verdict(report)


def _show_verdict(report: SourceReport) -> None:
    status = "ready to train on" if report.shape else "complete; no image was decoded"
    if not report.warnings:
        print_line(status, "green")
        return
    status = "a run would start" if report.shape else status
    object_text = "the warning" if len(report.warnings) == 1 else "the warnings"
    print_line(f"{status}, but read {object_text} above first", "yellow")


def _show_copies(report: SourceReport) -> None:
    """The first sets of copies by name; --save writes all of them."""
    num_sets: Counter[str] = Counter()
    for finding in report.copies:
        num_sets[finding.kind] += 1
        if num_sets[finding.kind] > _MAX_SETS:
            continue
        images = [f"{image.file} ({image.split}, {image.label})" for image in finding.images]
        if len(images) > _MAX_COPIES:
            images[_MAX_COPIES:] = [f"and {len(images) - _MAX_COPIES} more"]
        print_line(f"  {finding.kind}: {', '.join(images)}")
    is_longer = any(count > _MAX_SETS for count in num_sets.values())
    if is_longer and not report.saved_files:
        print_line(f"  all {len(report.copies)} sets: add --save FOLDER")
    for path in report.saved_files:
        print_line(f"saved   {path}", "bold")


def _show_contents(report: SourceReport) -> None:
    total = sum(sum(classes.values()) for classes in report.counts.values())
    pixels = f"{report.shape[1]}x{report.shape[0]} pixels" if report.shape else "not decoded"
    if report.shape and not report.shape[0]:
        pixels = "features only"
    print_line(f"{report.name}: {total} images, {pixels}, {len(report.classes)} classes", "bold")
    print_table(_count_table(report))
    if report.file_sizes:
        sizes = [f"{size} ({count})" for size, count in report.file_sizes[:4]]
        if len(report.file_sizes) > 4:
            sizes.append("...")
        print_line(f"files   {', '.join(sizes)}")
    if report.groups is not None:
        print_line(f"{report.group_word + 's':<7} {report.groups}")
    if report.checked:
        text = plural(report.checked, "label was", "labels were")
        print_line(f"{text} checked by a person")
    if report.sites:
        print_line("sites   " + ", ".join(_site_text(report, name) for name in report.sites))
    for name, digest in report.lists:
        print_line(f"sha256  {digest}  {name}", "dim")
    if report.fingerprint:
        content = "  images, labels and split" if report.tree else ""
        print_line(f"sha256  {report.fingerprint}{content}", "dim")


def _count_table(report: SourceReport) -> Table:
    """Images per class and split, beside the published numbers where there are any."""
    names = [*report.classes, "all"]
    header = ["class"]
    columns = [names]
    for split, classes in report.counts.items():
        counts = [classes[name] for name in report.classes]
        counts.append(sum(classes.values()))
        header.append(split)
        columns.append([str(count) for count in counts])
        published_counts = report.published_counts.get(split)
        if published_counts:
            texts = []
            for name, count in zip(names, counts, strict=True):
                texts.append(_published_text(count, published_counts.get(name)))
            header.append("published")
            columns.append(texts)
    return make_table(header, zip(*columns, strict=True))


def _published_text(count: int, published_count: int | None) -> str:
    """The published number, marked if it differs."""
    if published_count is None:
        return ""
    return str(count) if published_count == count else f"! {published_count}"


def _site_text(report: SourceReport, name: str) -> str:
    count = report.sites[name]
    published_count = report.published_sites.get(name)
    if published_count in (None, count):
        return f"{name} ({count})"
    return f"{name} ({count}, published {published_count} !)"


@group.command("example")
def example(folder: NewFolder, seed: HospitalNumber = 0) -> None:
    """Write a folder of artificial images with some wrong labels, to try the commands on."""
    from fedgsca.data.readers.synthetic_source import NUM_TEST, NUM_TRAIN, write_example_folder

    num_wrong = write_example_folder(folder, seed)
    print_line(
        f"{NUM_TRAIN + NUM_TEST} artificial images and labels.csv in {folder};"
        f" {num_wrong} of {NUM_TRAIN} training labels are wrong"
    )
    print_line(f"next    fedgsca data check {folder}")


@group.command("cache")
def cache(
    clear: Clear = False, older_than: OlderThan = None, yes: Yes = False, as_json: Json = False
) -> None:
    """Show where decoded images and features are kept and how large they are, or remove them.

    Treat them like the images themselves. They are made again when they are needed; do not remove
    them during a run.
    """
    from fedgsca.data.cache import cache_folder, list_cache, remove_cached

    files = list_cache(older_than)
    total = sum(file.size for file in files)
    text = f"{size_text(total)} in {plural(len(files), 'file')}"
    if clear:
        if files and not (yes or as_json):
            typer.confirm(f"Remove {text} in {cache_folder()}?", abort=True)
        remove_cached(files)
    if as_json:
        print_json({"folder": str(cache_folder()), "files": len(files), "bytes": total})
    elif clear:
        print_line(f"removed {text}")
    else:
        print_line(f"{cache_folder()}: {text}")
        if files:
            print_line("It contains decoded images. Empty it with `fedgsca data cache --clear`.")
