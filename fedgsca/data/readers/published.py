"""What the readers of published data sets share.

Names in other spellings, a root that is one level off, lists in other folders, missing images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from fedgsca.data.file_list import FileList, ImageRow, show_cases
from fedgsca.data.image_files import SUFFIXES
from fedgsca.errors import DataError

_SEARCH_DEPTH = 3  # levels below a wrong root that are searched for the right one
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".7z")


def list_published(
    name: str,
    root: Path,
    classes: tuple[str, ...],
    group_word: str,
    fill: Callable[[FileList], None],
) -> FileList:
    """A list of a published data set, filled by `fill`; an error that it raises is a problem."""
    file_list = FileList(
        root,
        columns=("file", "label", "group", "split"),
        source=f"{name}:{root}",
        name=name,
        classes=classes,
        group_word=group_word,
    )
    try:
        fill(file_list)
    except DataError as error:
        file_list.add_problem(error)
    return file_list


def list_folders(root: Path) -> list[Path]:
    """Sub-folders by name, without hidden ones."""
    folders = [path for path in root.iterdir() if path.is_dir()]
    return sorted(path for path in folders if not path.name.startswith((".", "__MACOSX")))


def list_image_names(folder: Path) -> list[str]:
    """Names of the image files directly in a folder; none if there is no such folder."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if path.suffix.lower() in SUFFIXES]
    return sorted(name for name in names if not name.startswith("."))


def check_root(root: Path, source: str, fits: Callable[[Path], object], content: str) -> None:
    """Raise DataError unless `fits(root)`.

    The message names the folder below or above that fits, or what the root contains instead of
    `content`, which describes the expected files and folders.
    """
    kind = source.partition(":")[0]
    if not root.is_dir():
        state = "is a file, not a folder" if root.exists() else "does not exist"
        raise DataError(
            "data.folder-not-found",
            f"the root {root} of the data set {state}",
            fix=f"use --data {kind}:ROOT, where ROOT is the folder with {content}",
        )
    if fits(root):
        return
    for folder in [*_folders_below(root), root.resolve().parent]:
        if fits(folder):
            raise DataError(
                "data.wrong-root",
                f"{root} is not the root of the data set; {folder} is",
                fix=f"use --data {kind}:{folder}",
            )
    names = sorted(path.name for path in root.iterdir())
    if any(name.endswith(_ARCHIVES) for name in names):
        raise DataError(
            "data.archive-not-unpacked",
            f"{root} does not contain {content}, but archives: {show_cases(names)}",
            fix="unpack the archives first",
        )
    raise DataError(
        "data.unknown-layout",
        f"{root} does not contain {content}; it contains: {show_cases(names) or 'nothing'}",
        fix=f"use --data {kind}:ROOT, where ROOT is the folder with {content}",
    )


def _folders_below(root: Path) -> Iterator[Path]:
    """Level by level, so that the nearest folder comes first."""
    level = [root]
    for _ in range(_SEARCH_DEPTH):
        children: list[Path] = []
        for folder in level:
            children += list_folders(folder)
        yield from children
        level = children


def find_lists_folder(folders: Iterable[Path], has_lists: Callable[[Path], bool]) -> Path | None:
    """The first of these folders that has the lists."""
    for folder in folders:
        if folder.is_dir() and has_lists(folder):
            return folder
    return None


def drop_missing(file_list: FileList, names: Mapping[str, set[str]], skip: bool) -> None:
    """Handle images that are listed but do not exist: a problem, or left out with a note.

    `names` maps a folder to the names of the files in it.
    """
    missing: list[ImageRow] = []
    present: list[ImageRow] = []
    for row in file_list.rows:
        folder, _, name = row.file.rpartition("/")
        if name in names.get(folder, ()):
            present.append(row)
        else:
            missing.append(row)
    if not missing:
        return
    total = len(file_list.rows)
    if skip and present:
        file_list.rows = present
        file_list.notes.append(f"{len(missing)} of {total} listed images not found and left out")
        return
    file_list.add_problem(
        DataError(
            "data.file-not-found",
            f"{file_list.root}: {len(missing)} of {total} listed images not found: "
            f"{show_cases([row.file for row in missing])}",
            fix="complete the download, or leave them out with `fedgsca run ... --skip-unreadable`",
        )
    )


def published_warnings(file_list: FileList) -> list[str]:
    """One warning if counts differ from the published ones, otherwise none."""
    counts: dict[tuple[str, str], int] = {}
    for row in file_list.rows:
        for name in (row.label, "all"):
            counts[row.split, name] = counts.get((row.split, name), 0) + 1
    differences = []
    for split, classes in file_list.published_counts.items():
        for name, number in classes.items():
            count = counts.get((split, name), 0)
            if count != number:
                differences.append(f"{name} in {split}: {count} instead of {number}")
    for folder in file_list.folders:
        total = folder.published_images
        if total not in (None, folder.images):
            differences.append(f"{folder.folder}: {folder.images} instead of {total}")
    if not differences:
        return []
    examples = "; ".join(differences[:4])
    if len(differences) > 4:
        examples += "; ..."
    return [
        f"counts that differ from the published ones: {len(differences)} ({examples}); "
        "is the download complete and unchanged?"
    ]
