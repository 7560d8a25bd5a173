"""A hospital's own words for classes and columns: names.toml beside labels.csv.

    order = ["healthy", "carcinoma"]

    [classes]
    Gesund = "healthy"
    "Karzinom G1" = "carcinoma"

    [columns]
    Datei = "file"
    Befund = "label"

Everything that reads the folder then uses the names on the right. `order` names grades from the
lowest to the highest; classes that are no grade are left out. `ignore`, beside it, names columns
that mean nothing here. `fedgsca data import` writes the file. site.toml of a deployment may
have the same table [classes], for data that must not be touched.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, field_validator

from fedgsca.data.table import ImageTable, with_fingerprint
from fedgsca.errors import ClassListError, DataError
from fedgsca.support.text import did_you_mean, fold_name, one_line, plural

FILE = "names.toml"
_MAX_CASES = 50  # names in one message: a person corrects them in one go


Word = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class FolderNames(BaseModel):
    """The content of names.toml: the own name -> the name to use, and the order of grades."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    classes: dict[Word, Word] = {}
    # by folded name, see fold_name
    columns: dict[Word, Word] = {}
    order: tuple[Word, ...] = ()
    # folded names of columns that stay in labels.csv and mean nothing here
    ignore: frozenset[Word] = frozenset()

    @field_validator("columns")
    @classmethod
    def _fold_columns(cls, columns: dict[str, str]) -> dict[str, str]:
        return {fold_name(own_name): name for own_name, name in columns.items()}

    @field_validator("ignore")
    @classmethod
    def _fold_ignore(cls, ignore: frozenset[str]) -> frozenset[str]:
        return frozenset(map(fold_name, ignore))


def read_folder_names(root: Path, columns: Sequence[str]) -> FolderNames:
    """names.toml of a folder; empty if it has none. `columns` are the columns of a labels.csv."""
    path = root / FILE
    try:
        names = FolderNames.model_validate(tomllib.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return FolderNames()
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise DataError(
            "data.invalid-names",
            f"{path}: {place}: {problem['msg']}",
            fix='write lines such as Gesund = "healthy" below [classes] and Datei = "file" below'
            " [columns], and above them the lists order and ignore",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            "data.invalid-names",
            f"{path} cannot be read: {error}",
            fix='write lines such as Gesund = "healthy" below [classes], in UTF-8',
        ) from None
    for own_name, name in names.columns.items():
        if name not in columns:
            raise DataError(
                "data.unknown-column-name",
                f"{path} gives the column {own_name!r} the name {name!r}, which is not a column",
                fix=f"{did_you_mean(name, columns)}use one of: {', '.join(columns)}",
            )
    return names


def check_class_names(source: object, labels: Sequence[str], names: Mapping[str, str]) -> None:
    """Refuse labels that have no name in the table, unless they are such a name themselves."""
    if not names:
        return
    targets = set(names.values())
    unmapped_labels = sorted(set(labels) - {*names, *targets})
    if not unmapped_labels:
        return
    examples = ", ".join(one_line(repr(label), 80) for label in unmapped_labels[:_MAX_CASES])
    ellipsis = ", ..." if len(unmapped_labels) > _MAX_CASES else ""
    raise DataError(
        "data.unmapped-class",
        f"{source}: {plural(len(unmapped_labels), 'class', 'classes')} without a name in [classes]:"
        f" {examples}{ellipsis}",
        fix=f"{did_you_mean(unmapped_labels[0], names)}add a line for each of them to [classes],"
        " or correct the labels",
    )


def rename_classes(table: ImageTable, names: Mapping[str, str]) -> ImageTable:
    """The same images with other class names; several own names may become one class."""
    if not names:
        return table
    check_class_names(table.name, table.classes, names)
    new_names = [names.get(name, name) for name in table.classes]
    table = replace(
        table,
        order=tuple(dict.fromkeys(names.get(name, name) for name in table.order)),
        class_names={**table.class_names, **names},
    )
    return _renumber(table, new_names, tuple(dict.fromkeys(new_names)))


def order_classes(table: ImageTable, order: Sequence[str]) -> ImageTable:
    """The same images with grades, numbered from the lowest; the other classes come after them.

    `order` names the grades. Where it is empty the table's own order counts, which may name grades
    without images: a hospital need not have all of them.
    """
    notes = table.notes
    if not order:
        order = [name for name in table.order if name in table.classes]
        absent_names = sorted(set(table.order) - set(order))
        if absent_names:
            notes += (f"no image of {', '.join(absent_names)}, which {FILE} orders",)
        if len(order) < 2:
            return replace(table, order=(), notes=notes)
    check_order(table.name, order, table.classes)
    other_names = [name for name in table.classes if name not in order]
    ordered_table = align_classes(table, (*order, *other_names))
    return replace(ordered_table, order=tuple(order), notes=notes)


def check_order(source: str, order: Sequence[str], classes: Sequence[str]) -> None:
    """Refuse an order that is not a list of several different classes of the source."""
    unknown_names = [name for name in order if name not in classes]
    if not unknown_names and len(set(order)) == len(order) > 1:
        return
    if unknown_names:
        problem = f"names {one_line(repr(unknown_names[0]), 80)}, which is not a class"
        hint = did_you_mean(unknown_names[0], classes)
    else:
        problem = "must name at least two classes, each of them once"
        hint = ""
    raise DataError(
        "data.class-order",
        f"{source}: the order of the classes {problem}",
        fix=f"{hint}list the grades from the lowest to the highest; the classes are:"
        f" {', '.join(classes)}",
    )


# ---- a site's classes in the numbering of the consortium ----


def align_classes(table: ImageTable, classes: Sequence[str]) -> ImageTable:
    """The same images with labels renumbered by class name.

    A site need not have images of every class. A class that is not in `classes` is an error: the
    shared model has no output for it.
    """
    unknown_classes = [name for name in table.classes if name not in classes]
    if unknown_classes:
        raise ClassListError(
            "data.class-not-in-consortium",
            f"{table.name}: {len(unknown_classes)} of {len(table.classes)} classes are not in the "
            f"consortium's list, the first is {unknown_classes[0]!r}",
            fix="name each of them in site.toml below [classes], for example"
            f' {json.dumps(unknown_classes[0], ensure_ascii=False)} = "{classes[0]}"; use only:'
            f" {', '.join(classes)}",
        )
    if tuple(table.classes) == tuple(classes):
        return table
    return _renumber(table, table.classes, classes)


def _renumber(table: ImageTable, names: Sequence[str], classes: Sequence[str]) -> ImageTable:
    """The table with labels in the numbering of `classes`; `names` (C,) are those of its own."""
    index = np.array([list(classes).index(name) for name in names], np.int64)
    given, replaced_labels = table.given, table.replaced_labels
    return with_fingerprint(
        table,
        labels=index[table.labels],
        given=None if given is None else index[given],
        replaced_labels=None if replaced_labels is None else index[replaced_labels],
        classes=tuple(classes),
        checked=None if table.checked is None else table.checked.renumber(index),
    )
