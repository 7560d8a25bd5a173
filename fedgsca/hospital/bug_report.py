"""A bundle for a bug report that can leave the hospital: versions, settings and numbers.

Everything in it is chosen by name. Texts that people write (paths, names of files, classes, sites
and reviewers, notes) are never copied: only the texts of a few settings, and only if they are words
that this program knows.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from fedgsca.config import METHODS, read_toml
from fedgsca.errors import ConfigError, FedgscaError, RunFolderError
from fedgsca.federation.base import load_engines
from fedgsca.models.build import MODELS
from fedgsca.support.files import write_atomic
from fedgsca.support.installation import describe_machine, inspect_installation

# what a bundle contains, for the person who sends it
CONTENTS: Mapping[str, str] = {
    "machine.json": "version of fedgsca and Python, system, number of cores",
    "packages.json": "every command's packages with their versions",
    "installed.txt": "names and versions of all installed Python packages",
    "run.json": "of a run: settings that are numbers or known words, scores per round, counts of"
    " files by type",
}
HIDDEN = "(text)"
# keys of a round in metrics.jsonl that are numbers about the whole federation
_ROUND_KEYS = ("round", "f1", "recall", "precision", "loss", "stability", "expected_f1")
# file types that are counted by name; all others are "other"
_SUFFIXES = (".toml", ".json", ".jsonl", ".csv", ".npz", ".safetensors", ".html", ".png", ".tmp")
_DATA_WORDS = ("synthetic", "sites", "stratified", "dirichlet", "missing", "group", "column")


def write_bundle(path: Path, run: Path | None) -> list[str]:
    """Write the bundle, a zip file; returns the names of the files in it."""
    if path.exists():
        raise RunFolderError(
            "file.already-exists",
            f"{path} already exists and is not overwritten",
            fix="choose another file name",
        )
    files = {
        "machine.json": _dump(describe_machine().to_json()),
        "packages.json": _dump([state.to_json() for state in inspect_installation()]),
        "installed.txt": _list_installed(),
    }
    if run is not None:
        files["run.json"] = _dump(describe_run(run))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0))  # the time of the machine is not
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    write_atomic(path, content.getvalue())
    return list(files)


def _list_installed() -> bytes:
    lines = set()
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            lines.add(f"{name}=={distribution.version}")
    return ("\n".join(sorted(lines, key=str.lower)) + "\n").encode()


def describe_run(run: Path) -> dict[str, Any]:
    """Settings and numbers of a run, without any text that a person wrote."""
    if not run.is_dir():
        raise RunFolderError(
            "run.folder-not-found",
            f"there is no folder {run}",
            fix="give a folder written by `fedgsca run --out`, or omit it",
        )
    settings: object = None
    try:
        settings = hide_texts(read_toml(run / "config.toml"), known_words())
    except ConfigError as error:  # its message has a path; its code has not
        settings = {"error": error.code}
    return {
        "settings": settings,
        "rounds": _read_rounds(run / "metrics.jsonl"),
        "is_finished": (run / "result.json").is_file(),
        "files": _count_files(run),
    }


def known_words() -> frozenset[str]:
    """Words of this program that may appear in a bundle."""
    words = {*_DATA_WORDS, *MODELS, "default", "paper", "packaged"}
    for find_names in (METHODS.load, load_engines):
        try:
            words.update(find_names())
        except FedgscaError:  # a plugin that cannot be loaded: its name is not needed
            continue
    return frozenset(words)


def hide_texts(value: object, words: frozenset[str]) -> object:
    """The same tree with every text hidden that is not a known word; keys are hidden likewise.

    Lists of texts become their length: names of classes and sites are lists.
    """
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, Mapping):
        tree = {}
        for i, (key, entry) in enumerate(value.items()):
            name = str(key) if str(key) in _setting_names() else f"(key {i + 1})"
            tree[name] = hide_texts(entry, words)
        return tree
    if isinstance(value, list | tuple):
        if all(isinstance(entry, int | float) for entry in value):
            return list(value)
        return f"({len(value)} entries)"
    return value if isinstance(value, str) and value in words else HIDDEN


def _setting_names() -> frozenset[str]:
    """Every key that a configuration can have."""
    if not _SETTING_NAMES:
        from fedgsca.config import Config

        _collect_names(Config.model_json_schema(), _SETTING_NAMES)
        for name, method in METHODS.load().items():
            _SETTING_NAMES.add(name)
            _collect_names(method.Options.model_json_schema(), _SETTING_NAMES)
    return frozenset(_SETTING_NAMES)


_SETTING_NAMES: set[str] = set()


def _collect_names(schema: object, names: set[str]) -> None:
    """The names of all properties in a JSON schema."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            names.update(map(str, properties))
        for entry in schema.values():
            _collect_names(entry, names)
    elif isinstance(schema, list):
        for entry in schema:
            _collect_names(entry, names)


def _read_rounds(path: Path) -> list[dict[str, float]]:
    rounds: list[dict[str, float]] = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            rounds.append({"damaged": 1})
            continue
        numbers: dict[str, float] = {}
        for key in _ROUND_KEYS:
            value = entry.get(key) if isinstance(entry, dict) else None
            if isinstance(value, int | float):
                numbers[key] = value
        rounds.append(numbers)
    return rounds


def _count_files(run: Path) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for path in run.rglob("*"):
        if path.is_file():
            counts[path.suffix if path.suffix in _SUFFIXES else "other"] += 1
    return dict(sorted(counts.items()))


def _dump(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
