"""`--data`: from what a person types to a table.

A source is a built-in name (`synthetic`), a `.npz` file, a folder, or `name:PATH` for a layout that
cannot be recognised by looking. The readers of all sources are in a registry, see reader.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedgsca.data.build_table import read_file_list
from fedgsca.data.class_names import rename_classes
from fedgsca.data.reader import Reader, ReaderOptions, available_readers
from fedgsca.data.relabel import replace_labels
from fedgsca.data.subsample import draw_before_decoding, subsample
from fedgsca.data.table import ImageTable, check_table
from fedgsca.errors import DataError
from fedgsca.support.text import suggest

SMALLEST_SIZE, LARGEST_SIZE = 8, 2048  # pixels


def load(
    source: str,
    *,
    image_size: int | None = None,
    seed: int = 0,
    labels: Path | None = None,
    cache_dir: Path | None = None,
    train: int | None = None,
    test: int | None = None,
    long_tail: float | None = None,
    difficulty: float | None = None,
    test_fraction: float = 0.2,
    skip_unreadable: bool = False,
    split: str | None = None,
    label: str | None = None,
    splits: Path | str | None = None,
    need_test: bool = True,
    class_names: Mapping[str, str] | None = None,
) -> ImageTable:
    """The table behind a source.

    `train` and `test` are how many images to render (synthetic) or to draw, stratified and seeded,
    from a larger set; `long_tail` then draws training images whose class sizes fall geometrically.
    `difficulty` is for rendered images. `labels` is a csv of corrected training labels. `split`,
    `label` and `splits` are for the published data sets: which split, which rule for the label, and
    the folder of their lists. `need_test=False` accepts a source without test images: a hospital
    that only trains. `class_names` gives classes of the source other names.
    """
    if image_size is not None and not SMALLEST_SIZE <= image_size <= LARGEST_SIZE:
        raise DataError(
            "data.image-size",
            f"the image size must be between {SMALLEST_SIZE} and {LARGEST_SIZE} pixels, "
            f"got {image_size}",
            fix="choose another data.image_size, such as 64 or 224",
        )
    if not 0 <= test_fraction < 1:
        raise DataError(
            "data.test-fraction",
            f"the test fraction must be at least 0 and below 1, got {test_fraction}",
            fix="choose a number such as 0.2",
        )
    options = ReaderOptions(
        image_size=image_size,
        seed=seed,
        cache_dir=cache_dir,
        train=train,
        test=test,
        long_tail=long_tail,
        difficulty=difficulty,
        test_fraction=test_fraction,
        skip_unreadable=skip_unreadable,
        split=split,
        label=label,
        splits=Path(splits).expanduser() if splits else None,
    )
    reader, location = find_reader(source)
    reader.check_options(options)
    is_part = any(limit is not None for limit in (train, test, long_tail)) or skip_unreadable
    table = rename_classes(read_table(reader, location, options), class_names or {})
    return complete_table(table, labels, need_test, is_part=is_part)


def complete_table(
    table: ImageTable,
    labels: Path | None = None,
    need_test: bool = True,
    *,
    is_part: bool = False,
) -> ImageTable:
    """The last steps for every source: corrected labels, and the checks of the table.

    `is_part`: not all images of the source are in the table.
    """
    if labels is not None:
        table = replace_labels(table, labels.expanduser(), is_part=is_part)
    if need_test and not len(table.rows("test")):
        raise DataError(
            "data.no-test-images",
            f"{table.name}: there are no test images",
            fix="mark some rows with split = test, or remove the split column to set some aside",
        )
    return check_table(table)


def find_reader(source: str) -> tuple[Reader, str]:
    """The reader of a source, and the part of the source that it reads: a path, or its name."""
    readers = available_readers()
    if source in readers and readers[source].form == source:  # a name that needs no path
        return readers[source], source
    name, _, location = source.partition(":")
    if location and name in readers:
        return readers[name], location
    path = Path(source).expanduser()
    for reader in readers.values():
        if reader.recognises is not None and reader.recognises(path):
            return reader, source
    raise _unknown_source(source, path)


def read_table(reader: Reader, location: str, options: ReaderOptions) -> ImageTable:
    """The table from the reader's own function, or from its list of images."""
    if reader.list_images is not None:
        file_list = reader.list_images(Path(location).expanduser(), options)
        part = draw_before_decoding(file_list, options)
        if part is not None:
            return read_file_list(part, options)
        table = read_file_list(file_list, options)
    else:
        assert reader.read is not None
        table = reader.read(location, options)
    return subsample(table, options)


def _unknown_source(source: str, path: Path) -> DataError:
    readers = available_readers()
    forms = "; ".join(f"{reader.form} ({reader.summary})" for reader in readers.values())
    suggestion = _suggest_source(source, path)
    hint = "" if suggestion is None else f"did you mean {suggestion}?\nOr "
    if path.is_file():
        return DataError(
            "data.unknown-source-type",
            f"{source}: the type of this file is not supported",
            fix=f"{hint}use one of: {forms}",
        )
    return DataError(
        "data.unknown-source",
        f"{source}: there is no data source, file or folder of this name",
        fix=f"{hint}use one of: {forms}",
    )


def _suggest_source(source: str, path: Path) -> str | None:
    """The form of a reader with a similar name, or a similar path."""
    readers = available_readers()
    name = suggest(source.partition(":")[0], readers)
    if name is not None:
        return readers[name].form
    if not path.name or not path.parent.is_dir():
        return None
    neighbours = sorted(neighbour.name for neighbour in path.parent.iterdir())
    neighbour = suggest(path.name, neighbours)
    return None if neighbour is None else str(path.parent / neighbour)
