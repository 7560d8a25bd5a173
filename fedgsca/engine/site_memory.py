"""A hospital's own record of its memory, so that a lost folder is noticed on both sides.

memory.json in the state folder of a site says in which round its memory begins and which files of
it must exist. If some of them are gone, the site says so instead of training another model. If the
whole folder is gone, so is this record: the site then begins as a new one, and its reply says since
when it remembers. The coordinator knows that the site took part before, and its log says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedgsca.engine.run_companions import describe_memory
from fedgsca.errors import RunFolderError, UpdateError
from fedgsca.site_store import Store
from fedgsca.support.files import write_atomic

_FILE = "memory.json"


@dataclass(frozen=True)
class SiteMemoryRecord:
    """Since which round (from 0) the site remembers, and its newest files: folder -> version."""

    since: int
    files: Mapping[str, int] = field(default_factory=dict)


def check_memory(folder: Path, round_index: int) -> int:
    """The round in which the site's memory begins; an error if a file of it is missing."""
    record = _read(folder)
    if record is None:
        return round_index
    for name, version in record.files.items():
        if version >= round_index:  # the coordinator went back: this round is run again
            continue
        try:
            Store(folder / name).require(version)
        except RunFolderError as error:
            raise UpdateError(
                "site.lost-memory",
                f"its memory of round {version + 1} is missing, and without it the run would end"
                " in another model",
                fix="restore the state folder of the site from a backup; or delete the folder, to"
                " begin as a new site: the coordinator's log then says so",
            ) from error
    return min(record.since, round_index)


def record_memory(folder: Path, since: int, round_index: int) -> None:
    """Write down the memory after a round."""
    tree = {"since": since, "files": describe_memory(folder, round_index + 1)}
    write_atomic(folder / _FILE, json.dumps(tree, sort_keys=True).encode())


def _read(folder: Path) -> SiteMemoryRecord | None:
    try:
        content = (folder / _FILE).read_bytes()
    except FileNotFoundError:
        return None
    try:
        tree = json.loads(content)
        files = {str(name): int(version) for name, version in tree["files"].items()}
        return SiteMemoryRecord(int(tree["since"]), files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunFolderError(
            "site.damaged-memory",
            f"the record of the site's memory {folder / _FILE} is damaged: {error}",
            fix="restore the file from a backup, or start a new run",
        ) from None
