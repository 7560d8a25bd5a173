"""A submission: one method under one protocol, with everything that is needed to check it.

One JSON file of some 20 KB: the protocol's digest, the checksums of data, weights and label files,
the validation runs with their scores, the chosen setting, and for every test run the confusion
matrices of the last five rounds, from which all scores follow.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedgsca.errors import RunFolderError
from fedgsca.federation.records import Matrix
from fedgsca.support.files import write_atomic
from fedgsca.support.json_record import Record

FORMAT = 1


@dataclass(frozen=True)
class ProtocolReference(Record):
    """The protocol that was followed."""

    name: str
    version: int
    digest: str


@dataclass(frozen=True)
class ValidationRun(Record):
    """One candidate setting and its F1 on the validation images, mean of the last five rounds."""

    setting: Mapping[str, Any]  # flat: section.key -> value
    val_f1: float


@dataclass(frozen=True)
class TestRun(Record):
    """One seed. Scores are percentages, means over the last five rounds."""

    seed: int
    f1: float
    recall: float
    precision: float
    # of the last five rounds; rows: true class
    confusions: tuple[Matrix, ...]
    # sha256 of the label file
    labels: str
    # of images, division, given labels and weights
    signature: str
    seconds_per_round: float
    bytes_up: int


@dataclass(frozen=True)
class Submission(Record):
    """The content of a submission file."""

    format: int
    protocol: ProtocolReference
    method: str
    title: str
    paper: str
    data_digest: str
    weights: str  # sha256
    validation: tuple[ValidationRun, ...]
    chosen_setting: Mapping[str, Any]
    # flat configuration of the test runs, without seed and paths
    config: Mapping[str, Any]
    runs: tuple[TestRun, ...]
    f1: float  # mean over the seeds
    f1_std: float
    software: Mapping[str, str] = field(default_factory=dict)
    # free text, such as who ran it
    note: str = ""
    digest: str = ""  # sha256 of all other fields

    def content_digest(self) -> str:
        """sha256 of everything but the digest itself."""
        tree = replace(self, digest="").to_json()
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def write_submission(submission: Submission, path: Path) -> None:
    """Write the file, with its digest."""
    final = replace(submission, digest=submission.content_digest())
    content = json.dumps(final.to_json(), indent=1, sort_keys=True)
    write_atomic(path, (_on_one_line(content) + "\n").encode())


def _on_one_line(text: str) -> str:
    """JSON with every list of numbers on one line: easier to read, and a third of the size."""
    return re.sub(r"\[\s*(-?[\d.]+(?:,\s*-?[\d.]+)*)\s*\]", _join_numbers, text)


def _join_numbers(match: re.Match[str]) -> str:
    return "[" + re.sub(r"\s+", "", match.group(1)) + "]"


def read_submission(path: Path) -> Submission:
    """A submission file; its content is checked by `python -m benchmarks.protocols check`."""
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(
            "benchmark.unreadable-submission",
            f"{path} cannot be read as a submission: {error}",
            fix="give a JSON file that `python -m benchmarks.protocols NAME` has written",
        ) from None
    submission = Submission.from_json(tree)
    if submission.format != FORMAT:
        raise RunFolderError(
            "benchmark.unknown-format",
            f"{path} is not a submission of format {FORMAT}",
            fix="give a JSON file that this version has written",
        )
    return submission
