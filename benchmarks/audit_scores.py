"""Scores and windows that the audit study compares. Higher is worse.

The package's own choice is fedgsca.label_audit.score.relative_losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.audit_record import SiteOutputs
from fedgsca.engine.label_evidence import Evidence, add_round, mean_evidence
from fedgsca.label_audit.score import relative_losses
from fedgsca.selector import class_relative

WINDOWS = ((0, 5), (1, 10), (3, 15), (3, 20), (5, 20), (3, 30), (10, 30), (1, 60), (30, 60))
# from the evidence and the given labels, (n,), to (n,)
ScoreFunction = Callable[[Evidence, np.ndarray], np.ndarray]


def window_evidence(outputs: SiteOutputs, first: int, last: int) -> Evidence:
    """What the engine would have stored of these rounds."""
    sums: dict[str, np.ndarray] = {}
    rows = np.arange(len(outputs.given))
    for probs, posterior in zip(
        outputs.probs[first:last], outputs.posterior[first:last], strict=True
    ):
        exact = probs.astype(np.float64)
        losses = -np.log(np.maximum(exact[rows, outputs.given], 1e-30))
        sums = add_round(sums, exact, losses, None if np.isnan(posterior).any() else posterior)
    return mean_evidence(sums)


def _given_probs(evidence: Evidence, given: np.ndarray) -> np.ndarray:
    return np.asarray(evidence.probs[np.arange(len(given)), given], dtype=np.float64)


def _margin(evidence: Evidence, given: np.ndarray) -> np.ndarray:
    rival_probs = evidence.probs.astype(np.float64)
    rival_probs[np.arange(len(given)), given] = -1
    return np.asarray(rival_probs.max(axis=1) - _given_probs(evidence, given))


def _votes(evidence: Evidence, given: np.ndarray) -> np.ndarray:
    """The share of rounds in which the model did not predict the given label; ties by margin."""
    against = 1 - evidence.votes[np.arange(len(given)), given] / evidence.rounds
    return np.asarray(against + 1e-3 * _margin(evidence, given))


def _posterior(evidence: Evidence, given: np.ndarray) -> np.ndarray:
    if evidence.posterior is None:
        return np.full(len(given), np.nan)
    return -evidence.posterior


def _relative_probs(evidence: Evidence, given: np.ndarray) -> np.ndarray:
    return class_relative(-_given_probs(evidence, given), given, evidence.probs.shape[1])


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.argsort(np.argsort(values, kind="stable"), kind="stable") / len(values))


def _loss_and_margin(evidence: Evidence, given: np.ndarray) -> np.ndarray:
    ranks: np.ndarray = _ranks(relative_losses(evidence, given)) + _ranks(_margin(evidence, given))
    return ranks


SCORES: Mapping[str, ScoreFunction] = {
    "loss": lambda evidence, given: evidence.losses,
    "class-relative loss": relative_losses,
    "1 - p": lambda evidence, given: -_given_probs(evidence, given),
    "class-relative 1 - p": _relative_probs,
    "margin": _margin,
    "votes": _votes,
    "posterior": _posterior,
    "relative loss + margin (ranks)": _loss_and_margin,
}
