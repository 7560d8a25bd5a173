"""What the readers of published data sets share: names in other spellings, a root one level off, lists, missing images."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fedgsca.data.decode.image_files import SUFFIXES
from fedgsca.data.file_list import Listing, Row
from fedgsca.errors import DataError

_DEEP = 3  # levels below a wrong root where the right one is looked for


def fold(name: str) -> str:
    """A name without what people vary: capitals, spaces, signs."""
    return "".join(c for c in name.casefold() if c.isalnum())


def nearest(name: str, known: Iterable[str]) -> str:
    """ " (did you mean 'Ulcer'?)", or nothing."""
    folded = {fold(other): other for other in known}
    close = difflib.get_close_matches(fold(name), folded, n=1, cutoff=0.7)
    return f" (did you mean {folded[close[0]]!r}?)" if close else ""


def folders(root: Path) -> list[Path]:
    """Sub-folders by name, hidden ones left out."""
    return sorted(
        p for p in root.iterdir() if p.is_dir() and not p.name.startswith((".", "__MACOSX"))
    )


def images_in(folder: Path) -> list[str]:
    """Names of the image files directly in a folder."""
    if not folder.is_dir():
        return []
    return sorted(
        p.name
        for p in folder.iterdir()
        if p.suffix.lower() in SUFFIXES and not p.name.startswith(".")
    )


def open_root(root: Path, source: str, fits: Callable[[Path], bool], wanted: str) -> None:
    """Raise unless `fits(root)`; the message names the folder below or above that does, or what was found instead."""
    kind = source.partition(":")[0]
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise DataError(
            "todo.published-1",
            f"{root} {what}",
            fix=f"--data {kind}:ROOT, where ROOT is the folder that holds {wanted}",
        )
    if fits(root):
        return
    better = next((p for p in [*_below(root), root.resolve().parent] if fits(p)), None)
    if better is not None:
        raise DataError(
            "todo.published-2",
            f"{root} is not the root of the data set, {better} is",
            fix=f"--data {kind}:{better}",
        )
    found = sorted(p.name for p in root.iterdir())
    shown = (
        f"found {', '.join(found[:5])}{', ...' if len(found) > 5 else ''}"
        if found
        else "it is empty"
    )
    packed = any(name.endswith((".zip", ".tar", ".gz", ".tgz", ".7z")) for name in found)
    raise DataError(
        "todo.published-3",
        f"{root} does not look like the data set: it should hold {wanted}; {shown}",
        fix="unpack the archives first"
        if packed
        else f"--data {kind}:ROOT with the folder that holds {wanted}",
    )


def _below(root: Path) -> Iterable[Path]:
    level = [root]
    for _ in range(_DEEP):
        level = [child for parent in level for child in folders(parent)]
        yield from level


def lists_folder(places: Iterable[Path], has: Callable[[Path], bool]) -> Path | None:
    """The first of these folders that has the lists."""
    return next((place for place in places if place.is_dir() and has(place)), None)


def drop_missing(listing: Listing, have: Mapping[str, set[str]], skip: bool) -> None:
    """Images that are listed but not there: a problem, or left out and told. `have` maps a folder to the names in it."""

    def there(row: Row) -> bool:
        folder, _, name = row.file.rpartition("/")
        return name in have.get(folder, ())

    missing = [row for row in listing.rows if not there(row)]
    if missing and skip and len(missing) < len(listing.rows):
        listing.rows = [row for row in listing.rows if there(row)]
        listing.notes.append(
            f"{len(missing)} of {len(missing) + len(listing.rows)} listed images are missing and left out"
        )
        return
    listing.problem(
        f"of {len(listing.rows)} listed images are missing",
        (row.file for row in missing),
        "complete the download, or leave them out with `fedgsca run ... --skip-unreadable`",
    )


def count_published(listing: Listing) -> list[str]:
    """Where the counts differ from the published ones, as one warning with what to do."""
    found: dict[tuple[str, str], int] = {}
    for row in listing.rows:
        for name in (row.label, "all"):
            found[row.split, name] = found.get((row.split, name), 0) + 1
    cases = [
        f"{name} in {split}: {found.get((split, name), 0)} instead of {number}"
        for split, classes in listing.published.items()
        for name, number in classes.items()
        if found.get((split, name), 0) != number
    ]
    cases += [
        f"{branch.folder}: {branch.images} instead of {branch.published}"
        for branch in listing.tree
        if branch.published not in (None, branch.images)
    ]
    if not cases:
        return []
    shown = "; ".join(cases[:4]) + ("; ..." if len(cases) > 4 else "")
    return [
        f"{len(cases)} counts differ from the published ones ({shown}): is the download complete and unchanged?"
    ]
