"""Judgements of a site's labels as named arrays, for the site's memory and for its audit."""

from __future__ import annotations

import numpy as np

from fedgsca.evidence import FEDERATION, SITE, Judgement, SiteEvidence
from fedgsca.wire import Arrays

# of the names of these arrays among a site's notes
NOTE_PREFIX = "evidence."


def evidence_arrays(evidence: SiteEvidence) -> dict[str, np.ndarray]:
    """All judgements of a site, and how much each counts; `read_arrays` is the inverse."""
    arrays: dict[str, np.ndarray] = {}
    for name, judgement in evidence.judgements.items():
        arrays |= judgement_arrays(judgement, name)
        arrays[f"{name}.share"] = np.array(evidence.shares[name])
    return arrays


def empty_arrays(num_samples: int, num_classes: int) -> dict[str, np.ndarray]:
    """The arrays with an entry for each sample, for samples of which nothing is known."""
    uniform = np.full((num_samples, num_classes), 1.0 / num_classes)
    weights = np.ones(num_samples)
    arrays = {f"{name}.probs": uniform for name in (SITE, FEDERATION)}
    return arrays | {f"{name}.weights": weights for name in (SITE, FEDERATION)}


def read_arrays(arrays: Arrays) -> SiteEvidence:
    """The evidence in the arrays of a store; KeyError where something is missing."""
    names = sorted(name.removesuffix(".share") for name in arrays if name.endswith(".share"))
    if not names:
        raise KeyError("share")
    judgements = {}
    for name in names:
        judgement = read_judgement(arrays, name)
        if judgement is None:
            raise KeyError(f"{name}.probs")
        judgements[name] = judgement
    return SiteEvidence(judgements, {name: float(arrays[f"{name}.share"]) for name in names})


def judgement_arrays(judgement: Judgement, name: str) -> dict[str, np.ndarray]:
    """A judgement as named arrays; `read_judgement` is the inverse."""
    return {
        f"{name}.probs": judgement.probs.astype(np.float32),
        f"{name}.weights": judgement.weights.astype(np.float32),
        f"{name}.power": np.array(judgement.power),
        f"{name}.explained": np.array(judgement.share_explained),
    }


def read_judgement(arrays: Arrays, name: str) -> Judgement | None:
    """A judgement in named arrays; None if it is not there."""
    if f"{name}.probs" not in arrays:
        return None
    return Judgement(
        arrays[f"{name}.probs"].astype(np.float64),
        arrays[f"{name}.weights"].astype(np.float64),
        float(arrays[f"{name}.power"]),
        float(arrays[f"{name}.explained"]),
    )
