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
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.cache import cached_rows
from fedgsca.data.table import Table, check, fingerprint
from fedgsca.errors import DataError
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


@dataclass(frozen=True)
class Reader:
    """One kind of source: how it is written after --data, what it is, and the function that reads it."""

    form: str
    what: str
    read: Callable[[str, Options], Table]


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
    need_test: bool = True,
) -> Table:
    """The table behind a source.

    `train` and `test` are how many images to render (synthetic) or to draw, stratified and seeded, from a larger set. `labels`
    is a csv of corrected training labels. `need_test=False` accepts a source without test images: a hospital that only trains.
    """
    options = Options(image_size, seed, cache_dir, train, test, test_fraction, skip_unreadable)
    if image_size is not None and not 8 <= image_size <= 2048:
        raise DataError(f"images of {image_size} pixels", fix="choose an image size from 8 to 2048")
    if not 0 < test_fraction < 1:
        raise DataError(f"a test fraction of {test_fraction}", fix="choose a number between 0 and 1, such as 0.2")
    reader, rest = find_reader(source)
    table = reader.read(rest, options)
    if labels is not None:
        from fedgsca.data.relabel import with_labels

        table = with_labels(table, labels)
    if need_test and not len(table.rows("test")):
        raise DataError(
            f"{table.name}: there are no test images", fix="mark some rows with split = test, or leave the column out"
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


def _unknown(source: str, path: Path) -> DataError:
    forms = "; ".join(f"{reader.form} ({reader.what})" for reader in READERS.values())
    near = difflib.get_close_matches(source.partition(":")[0].lower(), list(READERS), n=1, cutoff=0.6)
    near = [READERS[name].form for name in near]
    beside = sorted(p.name for p in path.parent.iterdir()) if path.name and path.parent.is_dir() else []
    near = near or [str(path.parent / name) for name in difflib.get_close_matches(path.name, beside, n=1, cutoff=0.7)]
    what = "is a file of an unknown kind" if path.is_file() else "is neither a built-in name nor an existing file or folder"
    hint = f"did you mean {near[0]}? " if near else ""
    return DataError(f"--data {source}: {what}", fix=f"{hint}possible are: {forms}")


def _read_synthetic(_: str, options: Options) -> Table:
    """Rendered once per seed and size; the key holds the renderer's own source, so that a changed brush means a new picture."""
    from fedgsca.data import synthetic

    asked: dict[str, Any] = {"seed": options.seed, "train": options.train, "test": options.test, "size": options.image_size}
    asked = {**(synthetic.render.__kwdefaults__ or {}), **{name: value for name, value in asked.items() if value is not None}}
    makers = {getattr(part, "__module__", "") for part in vars(synthetic).values()} | {synthetic.__name__}
    files = sorted(str(sys.modules[m].__file__) for m in makers if m and m.startswith("fedgsca.data."))
    version = hashlib.sha256(b"".join(Path(f).read_bytes() for f in files) + np.__version__.encode()).hexdigest()

    def rows(extra: dict[str, Any]) -> list[np.ndarray]:
        made = synthetic.render(**asked)
        extra.update(classes=list(made.classes), labels=made.labels.tolist(), fingerprint=made.fingerprint)
        extra.update(
            split=made.split.tolist(), ids=made.ids.tolist(), groups=None if made.groups is None else made.groups.tolist()
        )
        extra.update(notes=list(made.notes))
        return [made.images]

    shape = (asked["size"], asked["size"], 3)
    count = asked["train"] + asked["test"] + asked["val"]
    entry = cached_rows(f"synthetic {version} {sorted(asked.items())}", shape, np.uint8, rows, count, options.cache_dir)
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
    from fedgsca.data.npz import read_npz

    table = read_npz(Path(source).expanduser(), image_size=options.image_size, cache_dir=options.cache_dir)
    return subsample(table, options)


def _read_folder(source: str, options: Options) -> Table:
    from fedgsca.data.folder import read_folder

    table = read_folder(
        Path(source).expanduser(),
        image_size=options.image_size,
        seed=options.seed,
        test_fraction=options.test_fraction,
        cache_dir=options.cache_dir,
        skip_unreadable=options.skip_unreadable,
    )
    return subsample(table, options)


READERS: dict[str, Reader] = {
    "synthetic": Reader("synthetic", "built-in stained tissue, rendered from the seed", _read_synthetic),
    "npz": Reader("FILE.npz", "MedMNIST-style arrays", _read_npz),
    "folder": Reader("FOLDER", "images with a labels.csv, or one folder per class", _read_folder),
    "dicom": Reader("dicom:FOLDER", "the same with DICOM files; FOLDER alone finds them, too", _read_folder),
}


def subsample(table: Table, options: Options) -> Table:
    """At most `train` and `test` images, every class in proportion; the table itself when nothing is asked."""
    chosen, notes = [table.rows("val")], []
    for split, limit in (("train", options.train), ("test", options.test)):
        rows = table.rows(split)
        if limit is not None and limit > len(rows):
            raise DataError(
                f"{table.name}: {limit} {split} images asked, {len(rows)} present", fix=f"ask for at most {len(rows)}"
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
        fingerprint=fingerprint(images, labels, table.classes, split),
        notes=table.notes + notes,
    )
