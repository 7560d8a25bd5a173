"""Scores and windows that the audit study compares. Higher is worse. The package's own choice is fedgsca.label_audit.score.relative_losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.audit_record import Record
from fedgsca.engine.label_evidence import Evidence, add_round, mean_evidence
from fedgsca.label_audit.score import relative_losses
from fedgsca.selector import class_relative

WINDOWS = ((0, 5), (1, 10), (3, 15), (3, 20), (5, 20), (3, 30), (10, 30), (1, 60), (30, 60))
Score = Callable[[Evidence, np.ndarray], np.ndarray]


def evidence(record: Record, first: int, last: int) -> Evidence:
    """What the engine would have kept of these rounds."""
    sums: dict[str, np.ndarray] = {}
    for probs, posterior in zip(
        record.probs[first:last], record.posterior[first:last], strict=True
    ):
        exact = probs.astype(np.float64)
        losses = -np.log(np.maximum(exact[np.arange(len(exact)), record.given], 1e-30))
        sums = add_round(sums, exact, losses, None if np.isnan(posterior).any() else posterior)
    return mean_evidence(sums)


def _own(seen: Evidence, given: np.ndarray) -> np.ndarray:
    return np.asarray(seen.probs[np.arange(len(given)), given], dtype=np.float64)


def _margin(seen: Evidence, given: np.ndarray) -> np.ndarray:
    others = seen.probs.astype(np.float64)
    others[np.arange(len(given)), given] = -1
    return np.asarray(others.max(axis=1) - _own(seen, given))


def _votes(seen: Evidence, given: np.ndarray) -> np.ndarray:
    """Rounds in which the model did not say the given label; ties by the margin."""
    against = 1 - seen.votes[np.arange(len(given)), given] / seen.rounds
    return np.asarray(against + 1e-3 * _margin(seen, given))


def _posterior(seen: Evidence, given: np.ndarray) -> np.ndarray:
    return np.full(len(given), np.nan) if seen.posterior is None else -seen.posterior


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.argsort(np.argsort(values, kind="stable"), kind="stable") / len(values))


SCORES: Mapping[str, Score] = {
    "loss": lambda seen, given: seen.losses,
    "class-relative loss": relative_losses,
    "1 - p": lambda seen, given: -_own(seen, given),
    "class-relative 1 - p": lambda seen, given: class_relative(
        -_own(seen, given), given, seen.probs.shape[1]
    ),
    "margin": _margin,
    "votes": _votes,
    "posterior": _posterior,
    "relative loss + margin (ranks)": lambda seen, given: (
        _ranks(relative_losses(seen, given)) + _ranks(_margin(seen, given))
    ),
}
