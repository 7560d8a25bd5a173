"""`--data`: from what a person types to a table.

A source is a built-in name (`synthetic`), a `.npz` file, a folder, or `kind:PATH` for a layout that cannot be recognised by
looking. A new reader is one line in READERS.
"""

from __future__ import annotations

import difflib
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.cache import cached_rows
from fedgsca.data.file_list import Listing, list_folder
from fedgsca.data.table import Table, check, fingerprint
from fedgsca.errors import ConfigError, DataError
from fedgsca.rng import stream


@dataclass(frozen=True)
class Options:
    """What a reader may be asked for; each uses what applies to it."""

    image_size: int | None = None
    seed: int = 0
    cache_dir: Path | None = None
    train: int | None = None
    test: int | None = None
    test_fraction: float = 0.2
    skip_unreadable: bool = False
    split: str | None = None  # which of the reader's `splits`
    label: str | None = None  # which of its `labels`
    splits: Path | None = None  # the folder of its lists, if they lie elsewhere


@dataclass(frozen=True)
class Reader:
    """One kind of source: how it is written after --data, what it is, and the function that reads it.

    A reader of image files says which images there are and what they are (`listing`); decoding, cache and checks are common.
    """

    form: str
    what: str
    read: Callable[[str, Options], Table] | None = None
    listing: Callable[[Path, Options], Listing] | None = None
    splits: tuple[str, ...] = ()  # values of data.split
    labels: tuple[str, ...] = ()  # values of data.label

    def refuse(self, options: Options) -> None:
        """An option that this reader does not have, or a value it does not know."""
        for key, value, known in (
            ("split", options.split, self.splits),
            ("label", options.label, self.labels),
        ):
            if value is not None and not any(fnmatchcase(value, pattern) for pattern in known):
                near = difflib.get_close_matches(value, known, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                choice = (
                    f"{hint}choose one of: {', '.join(known)}" if known else f"leave data.{key} out"
                )
                raise ConfigError(
                    "todo.load-1",
                    f"data.{key} = {value!r} is not known to the source {self.form}",
                    fix=choice,
                )
        if options.splits is not None and not (self.splits or self.labels):
            raise ConfigError(
                "todo.load-2",
                f"the source {self.form} takes no data.splits",
                fix="leave data.splits out",
            )


def load(
    source: str,
    *,
    image_size: int | None = None,
    seed: int = 0,
    labels: Path | None = None,
    cache_dir: Path | None = None,
    train: int | None = None,
    test: int | None = None,
    test_fraction: float = 0.2,
    skip_unreadable: bool = False,
    split: str | None = None,
    label: str | None = None,
    splits: Path | str | None = None,
    need_test: bool = True,
) -> Table:
    """The table behind a source.

    `train` and `test` are how many images to render (synthetic) or to draw, stratified and seeded, from a larger set. `labels`
    is a csv of corrected training labels. `split`, `label` and `splits` are for the published data sets: which split, which rule
    for the label, and the folder of their lists. `need_test=False` accepts a source without test images: a hospital that only trains.
    """
    lists = Path(splits).expanduser() if splits else None
    options = Options(
        image_size,
        seed,
        cache_dir,
        train,
        test,
        test_fraction,
        skip_unreadable,
        split,
        label,
        lists,
    )
    if image_size is not None and not 8 <= image_size <= 2048:
        raise DataError(
            "todo.load-3",
            f"images of {image_size} pixels",
            fix="choose an image size from 8 to 2048",
        )
    if not 0 < test_fraction < 1:
        raise DataError(
            "todo.load-4",
            f"a test fraction of {test_fraction}",
            fix="choose a number between 0 and 1, such as 0.2",
        )
    reader, rest = find_reader(source)
    reader.refuse(options)
    return complete(read_table(reader, rest, options), labels, need_test)


def complete(table: Table, labels: Path | None = None, need_test: bool = True) -> Table:
    """What every source goes through at the end: corrected labels, a test set, the table's own checks."""
    if labels is not None:
        from fedgsca.data.relabel import with_labels

        table = with_labels(table, labels.expanduser())
    if need_test and not len(table.rows("test")):
        raise DataError(
            "todo.load-5",
            f"{table.name}: there are no test images",
            fix="mark some rows with split = test, or leave the column out",
        )
    return check(table)


def find_reader(source: str) -> tuple[Reader, str]:
    """The reader of a source and what is left of the source for it to read."""
    kind, colon, rest = source.partition(":")
    if source in READERS and READERS[source].form == source:  # a name that needs no path
        return READERS[source], source
    if colon and kind in READERS and rest:
        return READERS[kind], rest
    path = Path(source).expanduser()
    if path.is_dir():
        return READERS["folder"], source
    if path.suffix.lower() == ".npz":
        return READERS["npz"], source
    raise _unknown(source, path)


def read_table(reader: Reader, rest: str, options: Options) -> Table:
    """Through the reader's own function, or from its list of images."""
    if reader.listing is None:
        assert reader.read is not None
        return reader.read(rest, options)
    from fedgsca.data.readers.folder import read_listing

    listing = reader.listing(Path(rest).expanduser(), options)
    return subsample(read_listing(listing, options), options)


def _unknown(source: str, path: Path) -> DataError:
    forms = "; ".join(f"{reader.form} ({reader.what})" for reader in READERS.values())
    near = difflib.get_close_matches(
        source.partition(":")[0].lower(), list(READERS), n=1, cutoff=0.6
    )
    near = [READERS[name].form for name in near]
    beside = (
        sorted(p.name for p in path.parent.iterdir()) if path.name and path.parent.is_dir() else []
    )
    near = near or [
        str(path.parent / name)
        for name in difflib.get_close_matches(path.name, beside, n=1, cutoff=0.7)
    ]
    what = (
        "is a file of an unknown kind"
        if path.is_file()
        else "is neither a built-in name nor an existing file or folder"
    )
    hint = f"did you mean {near[0]}? " if near else ""
    return DataError("todo.load-6", f"--data {source}: {what}", fix=f"{hint}possible are: {forms}")


def _read_synthetic(_: str, options: Options) -> Table:
    """Rendered once per seed and size; the key holds the renderer's own source, so that a changed brush means a new picture."""
    from fedgsca.data.readers.synthetic import images as synthetic

    asked: dict[str, Any] = {
        "seed": options.seed,
        "train": options.train,
        "test": options.test,
        "size": options.image_size,
    }
    asked = {
        **(synthetic.render.__kwdefaults__ or {}),
        **{name: value for name, value in asked.items() if value is not None},
    }
    makers = {getattr(part, "__module__", "") for part in vars(synthetic).values()} | {
        synthetic.__name__
    }
    files = sorted(
        str(sys.modules[m].__file__) for m in makers if m and m.startswith("fedgsca.data.")
    )
    version = hashlib.sha256(
        b"".join(Path(f).read_bytes() for f in files) + np.__version__.encode()
    ).hexdigest()

    def rows(extra: dict[str, Any]) -> list[np.ndarray]:
        made = synthetic.render(**asked)
        extra.update(
            classes=list(made.classes), labels=made.labels.tolist(), fingerprint=made.fingerprint
        )
        extra.update(
            split=made.split.tolist(),
            ids=made.ids.tolist(),
            groups=None if made.groups is None else made.groups.tolist(),
        )
        extra.update(notes=list(made.notes))
        return [made.images]

    shape = (asked["size"], asked["size"], 3)
    count = asked["train"] + asked["test"] + asked["val"]
    entry = cached_rows(
        f"synthetic {version} {sorted(asked.items())}",
        shape,
        np.uint8,
        rows,
        count,
        options.cache_dir,
    )
    kept = entry.extra
    return Table(
        name="synthetic",
        images=entry.array,
        labels=np.array(kept["labels"], np.int64),
        classes=tuple(kept["classes"]),
        split=np.array(kept["split"]),
        ids=np.array(kept["ids"]),
        fingerprint=kept["fingerprint"],
        groups=None if kept["groups"] is None else np.array(kept["groups"]),
        notes=(*kept["notes"], *entry.notes),
    )


def _read_npz(source: str, options: Options) -> Table:
    from fedgsca.data.readers.npz import read_npz

    table = read_npz(
        Path(source).expanduser(), image_size=options.image_size, cache_dir=options.cache_dir
    )
    return subsample(table, options)


def _list_folder(root: Path, _: Options) -> Listing:
    return list_folder(root)


def _list_kvasir(root: Path, options: Options) -> Listing:
    from fedgsca.data.readers.kvasir import list_kvasir

    return list_kvasir(root, options)


def _list_odir(root: Path, options: Options) -> Listing:
    from fedgsca.data.readers.odir import list_odir

    return list_odir(root, options)


def _list_chaoyang(root: Path, options: Options) -> Listing:
    from fedgsca.data.readers.chaoyang import list_chaoyang

    return list_chaoyang(root, options)


READERS: dict[str, Reader] = {
    "synthetic": Reader(
        "synthetic", "built-in stained tissue, rendered from the seed", _read_synthetic
    ),
    "npz": Reader("FILE.npz", "MedMNIST-style arrays", _read_npz),
    "folder": Reader(
        "FOLDER", "images with a labels.csv, or one folder per class", listing=_list_folder
    ),
    "dicom": Reader(
        "dicom:FOLDER",
        "the same with DICOM files; FOLDER alone finds them, too",
        listing=_list_folder,
    ),
    "kvasir": Reader(
        "kvasir:ROOT",
        "Kvasir-Capsule: one folder per class",
        listing=_list_kvasir,
        splits=("fedgp", "frame", "video", "official-0", "official-1"),
        labels=("clean", "symm-*", "pair-*"),
    ),
    "odir": Reader(
        "odir:ROOT",
        "OIA-ODIR, or ODIR-5K from Kaggle",
        listing=_list_odir,
        splits=("published", "patient"),
        labels=("patient", "eye"),
    ),
    "chaoyang": Reader(
        "chaoyang:ROOT",
        "Chaoyang: train.json, test.json and their images",
        listing=_list_chaoyang,
        labels=("drawn", "released", "majority"),
    ),
}


def subsample(table: Table, options: Options) -> Table:
    """At most `train` and `test` images, every class in proportion; the table itself when nothing is asked."""
    chosen, notes = [table.rows("val")], []
    for split, limit in (("train", options.train), ("test", options.test)):
        rows = table.rows(split)
        if limit is not None and limit > len(rows):
            raise DataError(
                "todo.load-7",
                f"{table.name}: {limit} {split} images asked, {len(rows)} present",
                fix=f"ask for at most {len(rows)}",
            )
        if limit is not None and limit < len(rows):
            notes.append(f"{limit} of {len(rows)} {split} images drawn with seed {options.seed}")
            rows = _draw(table.labels, rows, limit, stream(options.seed, "subsample", split))
        chosen.append(rows)
    return take(table, np.sort(np.concatenate(chosen)), tuple(notes)) if notes else table


def _draw(labels: np.ndarray, rows: np.ndarray, limit: int, rng: np.random.Generator) -> np.ndarray:
    """`limit` of the rows: shuffle within each class, then take evenly from the classes laid end to end."""
    shuffled = rng.permutation(rows)
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return ordered[(np.arange(limit) * len(rows)) // limit]


def take(table: Table, rows: np.ndarray, notes: tuple[str, ...] = ()) -> Table:
    """The table with only these rows, in their order. The images are copied into memory."""
    images, labels, split = np.asarray(table.images[rows]), table.labels[rows], table.split[rows]
    return replace(
        table,
        images=images,
        labels=labels,
        split=split,
        ids=table.ids[rows],
        groups=None if table.groups is None else table.groups[rows],
        site=None if table.site is None else table.site[rows],
        given=None if table.given is None else table.given[rows],
        fingerprint=fingerprint(images, labels, table.classes, split),
        notes=table.notes + notes,
    )
