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
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedgsca.data.table import ImageTable, with_fingerprint
from fedgsca.errors import ClassListError, DataError
from fedgsca.support.text import fold_name, one_line, plural, suggest

FILE = "names.toml"
_MAX_CASES = 50  # names in one message: a person corrects them in one go


@dataclass(frozen=True)
class FolderNames:
    """The content of names.toml: the own name -> the name to use, and the order of grades."""

    classes: Mapping[str, str] = field(default_factory=dict)
    # by folded name, see fold_name
    columns: Mapping[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    # folded names of columns that stay in labels.csv and mean nothing here
    ignore: frozenset[str] = frozenset()


def read_folder_names(root: Path, columns: Sequence[str]) -> FolderNames:
    """names.toml of a folder; empty if it has none. `columns` are the columns of a labels.csv."""
    path = root / FILE
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return FolderNames()
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            "data.invalid-names",
            f"{path} cannot be read: {error}",
            fix='write lines such as Gesund = "healthy" below [classes], in UTF-8',
        ) from None
    order = _read_list(path, tree, "order", '["lowest grade", "next grade"]')
    ignore = _read_list(path, tree, "ignore", '["Age", "Station"]')
    unknown_tables = sorted(set(tree) - {"classes", "columns"})
    if unknown_tables:
        raise DataError(
            "data.invalid-names",
            f"{path} contains {', '.join(map(repr, unknown_tables))}, which means nothing there",
            fix="use the tables [classes] and [columns], and above them order and ignore",
        )
    class_names = _read_pairs(path, tree.get("classes", {}))
    column_names = {}
    for own_name, name in _read_pairs(path, tree.get("columns", {})).items():
        if name not in columns:
            suggestion = suggest(name, columns)
            hint = "" if suggestion is None else f"did you mean {suggestion}? "
            raise DataError(
                "data.unknown-column-name",
                f"{path} gives the column {own_name!r} the name {name!r}, which is not a column",
                fix=f"{hint}use one of: {', '.join(columns)}",
            )
        column_names[fold_name(own_name)] = name
    return FolderNames(class_names, column_names, order, frozenset(map(fold_name, ignore)))


def _read_list(path: Path, tree: dict[str, object], key: str, example: str) -> tuple[str, ...]:
    names = tree.pop(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(
            "data.invalid-names",
            f"{path}: {key} is not a list of names",
            fix=f"write {key} = {example} above the tables",
        )
    return tuple(names)


def _read_pairs(path: Path, tree: object) -> dict[str, str]:
    pairs = dict(tree) if isinstance(tree, dict) else {}
    for own_name, name in pairs.items():
        if not isinstance(name, str) or not name.strip():
            raise DataError(
                "data.invalid-names",
                f"{path}: the name for {own_name!r} is not a text",
                fix=f'write {own_name} = "name"',
            )
    if not isinstance(tree, dict):
        raise DataError(
            "data.invalid-names",
            f"{path}: [classes] and [columns] must be tables",
            fix='write lines such as Gesund = "healthy" below [classes]',
        )
    return {own_name.strip(): name.strip() for own_name, name in pairs.items()}


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
    suggestion = suggest(unmapped_labels[0], list(names))
    hint = "" if suggestion is None else f"did you mean {suggestion!r}? "
    raise DataError(
        "data.unmapped-class",
        f"{source}: {plural(len(unmapped_labels), 'class', 'classes')} without a name in [classes]:"
        f" {examples}{ellipsis}",
        fix=f"{hint}add a line for each of them to [classes], or correct the labels",
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
        suggestion = suggest(unknown_names[0], list(classes))
    else:
        problem = "must name at least two classes, each of them once"
        suggestion = None
    hint = "" if suggestion is None else f"did you mean {suggestion!r}? "
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
