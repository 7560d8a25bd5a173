"""What a protocol demands of a run: its configuration, its inputs, and the settings it may try."""

from __future__ import annotations

import csv
import hashlib
import io
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.protocols.protocol import TUNABLE, Protocol, Tree
from fedgsca.config import Config, build, flatten, merge
from fedgsca.data.table import ImageTable
from fedgsca.errors import ConfigError, DataError
from fedgsca.federation.simulation import Division
from fedgsca.support.files import sha256_file
from fedgsca.support.text import plural
from fedgsca.support.version import __version__

# keys that differ between the runs of a submission, or say where a file is
_UNSHARED_KEYS = ("data.source", "model.weights", "seed")


def protocol_config(
    protocol: Protocol, data: str, method: str, setting: Mapping[str, Any], seed: int
) -> Config:
    """The configuration of a run; `setting` is nested: {"train": {"lr": 0.01}}.

    Evidence heads are trained only beside a method that reads them.
    """
    run_tree: Tree = {
        "method": method,
        "seed": seed,
        "data": {"source": data},
        "noise": {"spec": protocol.noise},
        "audit": {"enabled": False},
    }
    return build(merge(merge(protocol.tree, setting), run_tree))


def shared_config(config: Config) -> Tree:
    """The configuration as a submission has it: flat, without seed and paths."""
    rows = flatten(config.to_tree())
    return {key: value for key, value in rows.items() if key not in _UNSHARED_KEYS}


def label_file(division: Division) -> bytes:
    """csv with file, site, true and given label of every training image, site by site."""
    table = division.table
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "site", "true", "given"])
    for site, rows in division.rows.items():
        for row, label in zip(rows.tolist(), division.given[site].tolist(), strict=True):
            true = table.classes[int(table.labels[row])]
            writer.writerow([str(table.ids[row]), site, true, table.classes[label]])
    return text.getvalue().encode()


def digest_data(source: str, table: ImageTable) -> str:
    """sha256 of a data file, or of labels.csv and the image files of a folder."""
    path = Path(source).expanduser()
    if path.is_file():
        return sha256_file(path)
    sha = hashlib.sha256()
    for name in ("labels.csv", *sorted(map(str, table.ids))):
        file = path / name
        digest = sha256_file(file) if file.is_file() else "missing"
        sha.update(f"{name}\t{digest}\n".encode())
    return sha.hexdigest()


def check_inputs(
    protocol: Protocol, seed: int, *, data_digest: str, weights: str, labels: str
) -> None:
    """Stop unless data, weights and the label file of a seed are those of the protocol."""
    if data_digest != protocol.data_digest:
        raise DataError(
            "benchmark.other-data",
            f"the data is not that of {protocol.label}: its checksum is "
            f"{data_digest[:16]}, the protocol has {protocol.data_digest[:16]}",
            fix=f"give {protocol.data}",
        )
    if weights != protocol.weights:
        raise DataError(
            "benchmark.other-weights",
            f"the backbone's weights are not those of {protocol.label}",
            fix="install the extra [weights] of this version",
        )
    if labels != protocol.labels[seed]:
        raise DataError(
            "benchmark.other-labels",
            f"the sites or the wrong labels of seed {seed} are not those of {protocol.label}",
            fix="use a version of fedgsca whose tests pass on this machine, or report it",
        )


def check_candidates(protocol: Protocol, method: str, candidates: Sequence[Tree]) -> None:
    """Stop unless the settings follow the tuning rule."""
    problems = candidate_problems(protocol, method, [flatten(tree) for tree in candidates])
    if problems:
        raise ConfigError(
            "benchmark.tuning-rule",
            f"{protocol.label}: {problems[0]}",
            fix=f"give {plural(len(protocol.candidates), 'setting')} of train.lr, other keys of "
            "the optimiser or the loss, or the method's own options",
        )


def candidate_problems(
    protocol: Protocol, method: str, settings: Sequence[Mapping[str, Any]]
) -> list[str]:
    """How flat settings break the tuning rule."""
    problems = []
    budget = len(protocol.candidates)
    if len(settings) != budget:
        problems.append(f"{method} has {len(settings)} validation runs instead of {budget}")
    for setting in settings:
        for key in setting:
            section, _, name = key.partition(".")
            if section != method and not (section == "train" and name in TUNABLE):
                problems.append(f"{key} may not be tuned")
    return problems


def software_versions() -> dict[str, str]:
    """Versions that decide the bytes of a result."""
    import numpy as np
    import torch

    return {
        "fedgsca": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
