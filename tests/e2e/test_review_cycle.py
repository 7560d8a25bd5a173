"""Audit, check six labels, apply, audit again: the count becomes surer and never jumps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedgsca
from fedgsca.federation.records import WrongEstimate
from fedgsca.labels.audit_table import Audit

CLASSES = ("mild", "moderate", "severe")
NUM_CHECKED = 6


def write_data(path: Path, n: int, spread: float, wrong_share: float, seed: int) -> dict[str, str]:
    """Features of three classes in a row and labels, some of them wrong; image -> true class."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, n)
    features = rng.normal(size=(n, 12))
    features[:, 0] += spread * truth
    wrong = rng.random(n) < wrong_share
    given = np.where(wrong, (truth + rng.integers(1, 3, n)) % 3, truth)
    names = np.array(CLASSES)
    np.savez(path, features=features.astype(np.float32), labels=names[given])
    return {f"row/{row}": CLASSES[label] for row, label in enumerate(truth)}


def check_labels(audit: Audit, truth: dict[str, str]) -> None:
    """What a person decides who looks at the first six."""
    decisions = audit.open_decisions()
    for suspect in audit.window(0, NUM_CHECKED, priority=False):
        decisions.record(suspect, truth[suspect.id], reviewer="anna")


def width(estimate: WrongEstimate) -> int:
    return estimate.high - estimate.low


@pytest.mark.parametrize(
    ("n", "spread", "wrong_share", "seed"),
    [
        (300, 4.0, 0.2, 0),
        (300, 2.5, 0.2, 1),
        (600, 3.0, 0.1, 2),
        (200, 3.0, 0.3, 3),
        (150, 2.0, 0.05, 11),
        (150, 1.5, 0.15, 11),
    ],
)
def test_six_checked_labels_make_the_count_surer(
    tmp_path: Path, n: int, spread: float, wrong_share: float, seed: int
) -> None:
    truth = write_data(tmp_path / "own.npz", n, spread, wrong_share, seed)
    first = fedgsca.audit_folder(tmp_path / "own.npz", tmp_path / "first")
    check_labels(first, truth)
    file = fedgsca.apply_decisions(first).file
    assert file is not None
    second = fedgsca.audit_folder(tmp_path / "own.npz", tmp_path / "second", labels=file)
    before = first.summary.estimated_wrong
    after = second.summary.estimated_wrong
    assert second.header.num_checked == NUM_CHECKED
    assert after.can_tell or not before.can_tell, "a number does not become 'cannot tell'"
    assert width(after) <= width(before)
    assert before.low - NUM_CHECKED <= after.count <= before.high, "no jump"
