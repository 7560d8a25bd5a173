"""Patients who have left: a list beside the data, and the images that no reader returns any more.

FOLDER/withdrawn.json (for one file: FILE.withdrawn.json) has keyed digests of names and contents,
and no name: of the patients, of their files, and of the bytes of these files. So a new export of
the same folder, or a copy of a file under another name, does not bring a patient back. Remove the
images and their lines in labels.csv as well: the list makes sure that nothing reads them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.errors import DataError
from fedgsca.support.files import sha256_file, write_atomic
from fedgsca.support.text import plural

if TYPE_CHECKING:
    from fedgsca.data.file_list import FileList, ImageRow
    from fedgsca.data.table import ImageTable

FILE = "withdrawn.json"
_VERSION = 1
_KINDS = ("group", "patient", "file", "content")


@dataclass(frozen=True)
class WithdrawnList:
    """The patients who have left one source of data."""

    salt: str
    # kind -> keyed digests: names of groups, ids in DICOM files, ids of images, bytes of files
    digests: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # of the listed files: only a file of one of these sizes has to be read to know it
    sizes: frozenset[int] = frozenset()

    def digest(self, kind: str, text: str) -> str:
        """Without the salt, nobody could try all numbers of patients in advance."""
        key = bytes.fromhex(self.salt)
        content = f"{kind}\0{text}".encode(errors="surrogateescape")
        return hashlib.blake2b(content, key=key, digest_size=16).hexdigest()

    def has(self, kind: str, text: str) -> bool:
        """Whether a name or content is listed."""
        digests = self.digests.get(kind)
        return bool(digests) and self.digest(kind, text) in (digests or ())

    def has_content(self, path: Path) -> bool:
        """Whether a file has the bytes of a listed one."""
        try:
            return path.stat().st_size in self.sizes and self.has("content", sha256_file(path))
        except OSError:
            return False

    def has_file(self, root: Path, name: str) -> bool:
        """Whether the file of an image is listed, or belongs to a listed patient by its header."""
        if self.has("file", name) or self.has_content(root / name):
            return True
        return bool(self.digests.get("patient")) and self.has("patient", patient_of(root / name))

    def add(self, kind: str, texts: Collection[str]) -> WithdrawnList:
        """The list with more names or contents of one kind."""
        digests = self.digests.get(kind, frozenset()) | {self.digest(kind, text) for text in texts}
        return replace(self, digests={**self.digests, kind: digests})

    def add_files(self, root: Path, names: Sequence[str]) -> WithdrawnList:
        """The list with image files: their names, bytes and sizes."""
        paths = [root / name for name in names if (root / name).is_file()]
        withdrawn = self.add("file", names).add("content", [sha256_file(path) for path in paths])
        sizes = self.sizes.union(path.stat().st_size for path in paths)
        return replace(withdrawn, sizes=sizes)


def list_path(source: str | Path) -> Path | None:
    """Where the list of a source is, whether it exists or not; None for built-in images."""
    for text in (str(source), str(source).partition(":")[2]):
        path = Path(text).expanduser()
        if text and path.is_dir():
            return path / FILE
        if text and path.is_file():
            return path.with_name(f"{path.name}.{FILE}")
    return None


def read_withdrawn(source: str | Path) -> WithdrawnList | None:
    """The list of a source; None if nobody has left."""
    path = list_path(source)
    if path is None or not path.is_file():
        return None
    try:
        tree = json.loads(path.read_bytes())
        if tree["version"] != _VERSION:
            raise ValueError(f"version {tree['version']}")
        digests = {kind: frozenset(map(str, tree[kind])) for kind in _KINDS}
        bytes.fromhex(tree["salt"])
        return WithdrawnList(str(tree["salt"]), digests, frozenset(map(int, tree["sizes"])))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            "data.damaged-withdrawals",
            f"{path}, the list of withdrawn patients, cannot be read: {error}",
            fix="restore it from a backup: without it, withdrawn patients would come back",
        ) from None


def write_withdrawn(source: str | Path, withdrawn: WithdrawnList) -> Path:
    """Write the list beside its data."""
    path = list_path(source)
    assert path is not None
    tree: dict[str, object] = {"version": _VERSION, "salt": withdrawn.salt}
    tree |= {kind: sorted(withdrawn.digests.get(kind, ())) for kind in _KINDS}
    tree["sizes"] = sorted(withdrawn.sizes)
    write_atomic(path, json.dumps(tree, indent=1).encode() + b"\n")
    return path


def new_list() -> WithdrawnList:
    """A list without patients, with a salt of its own."""
    return WithdrawnList(secrets.token_hex(16))


def patient_of(path: Path) -> str:
    """The patient that a DICOM file names; an empty text for all other files."""
    from fedgsca.data import dicom

    try:
        return dicom.read_patient(path) if dicom.is_dicom(path) else ""
    except dicom.NoImageError:
        return ""


# ---- what readers leave out ----


def drop_withdrawn(file_list: FileList) -> None:
    """Remove the rows of withdrawn patients from a list of files, in place, and say so."""
    withdrawn = read_withdrawn(file_list.root)
    if withdrawn is None:
        return
    rows = [row for row in file_list.rows if not is_withdrawn(withdrawn, file_list.root, row)]
    count = len(file_list.rows) - len(rows)
    if count:
        file_list.rows = rows
        file_list.notes.append(f"{plural(count, 'image')} of withdrawn patients left out")


def is_withdrawn(withdrawn: WithdrawnList, root: Path, row: ImageRow) -> bool:
    """Whether a row of a list is about a withdrawn patient."""
    if row.group and withdrawn.has("group", row.group):
        return True
    return withdrawn.has("file", row.name or row.file) or withdrawn.has_file(root, row.file)


def remaining_rows(table: ImageTable, source: str) -> np.ndarray | None:
    """(m,) the rows of a table whose patients have not left; None: all of them.

    For sources whose images are not files: arrays, and features of the user's own.
    """
    withdrawn = read_withdrawn(source)
    if withdrawn is None:
        return None
    is_left = np.array([withdrawn.has("file", str(image_id)) for image_id in table.ids])
    if table.groups is not None:
        is_left |= np.array([withdrawn.has("group", str(group)) for group in table.groups])
    return np.flatnonzero(~is_left) if is_left.any() else None
