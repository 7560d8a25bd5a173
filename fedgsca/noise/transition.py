"""Label noise for simulations: which labels a site was "given", drawn from a transition matrix T[true, given].

    S  symmetric       a wrong label is any other class with the same chance
    P  pairflip        a wrong label is the next class, (c + 1) mod C
    C  CK-asymmetric   a wrong label is one of the classes that clinicians mistake c for (candidates.py)
    M  matrix          any transition matrix, from a file
    F  file            given labels read from a file: nothing is drawn

A specification has one part per site, joined by "-": "0-S40-P20-C20" is a clean site, 40 % symmetric, 20 % pairflip and 20 %
CK-asymmetric; "S40" alone is every site. Every sample is drawn on its own, so the realised rate differs a little from the
nominal one; `realised` says by how much.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from fedgsca.errors import ConfigError, DataError

Kind = Literal["none", "S", "P", "C", "M", "F"]
Candidates = Mapping[
    int, Sequence[int] | str
]  # class -> classes it is mistaken for; () or "any": every other class

EXAMPLE = "0-S40-P20-C20 has one part per site: 0 = clean, S = symmetric, P = pairflip, C = CK-asymmetric, with the rate in percent"
_PART = re.compile(r"([SPC])(\d+(?:\.\d+)?|\.\d+)%?")


@dataclass(frozen=True)
class SiteNoise:
    """What happens to one site's labels; `rate` is the nominal share of wrong ones, 0 to 1 (0 for M: the matrix decides)."""

    kind: Kind
    rate: float

    def __str__(self) -> str:
        return (
            "0"
            if self.kind == "none"
            else self.kind
            if self.kind in "MF"
            else f"{self.kind}{self.rate * 100:g}"
        )


def parse_noise(spec: str, sites: int) -> list[SiteNoise]:
    """One SiteNoise per site from "0-S40-P20-C20" or, the same everywhere, "S40". Decimals, % and lower case are welcome."""
    parts = [part.strip() for part in spec.split("-")]
    problems = [
        f"part {i + 1} is {part!r}" for i, part in enumerate(parts) if _parse_part(part) is None
    ]
    if problems:
        raise ConfigError(
            "todo.transition-1",
            f"noise {spec!r} cannot be read: {', '.join(problems)}",
            fix=EXAMPLE,
        )
    if len(parts) not in (1, sites):
        raise ConfigError(
            "todo.transition-2",
            f"noise {spec!r} describes {len(parts)} sites, but there {'is' if sites == 1 else 'are'} {sites}",
            fix=f"write one part for every site or {sites} parts, for example {'-'.join(['0', *['S40'] * (sites - 1)])}",
        )
    found = [cast(SiteNoise, _parse_part(part)) for part in parts]
    return found * sites if len(found) == 1 else found


def _parse_part(part: str) -> SiteNoise | None:
    word = part.upper()
    if word in ("0", "0%", "CLEAN", "NONE"):
        return SiteNoise("none", 0.0)
    if word == "M":
        return SiteNoise("M", 0.0)
    match = _PART.fullmatch(word)
    if match is None or float(match[2]) > 100:
        return None
    rate = float(match[2]) / 100
    return SiteNoise(cast(Kind, match[1]), rate) if rate > 0 else SiteNoise("none", 0.0)


def transition_matrix(
    noise: SiteNoise, num_classes: int, candidates: Candidates | None = None
) -> np.ndarray:
    """(C, C): probability of each given label (column) for each true class (row). Rows sum to one."""
    if noise.kind in ("M", "F"):
        raise ConfigError(
            "todo.transition-3",
            f"noise {noise.kind} has no formula",
            fix="give the matrix itself: --set noise.matrix=matrix.csv",
        )
    if noise.kind != "none" and num_classes < 2:
        raise ConfigError(
            "todo.transition-4",
            f"noise {noise} needs a second class to confuse with",
            fix="use noise 0, or data with more classes",
        )
    others = ~np.eye(num_classes, dtype=bool)
    if noise.kind == "P":
        wrong = np.roll(
            np.eye(num_classes, dtype=bool), 1, axis=1
        )  # row c has its one at (c + 1) mod C
    elif noise.kind == "C":
        wrong = _candidate_mask(candidates, num_classes)
    else:
        wrong = others
    wrong_rows = wrong / np.maximum(wrong.sum(axis=1, keepdims=True), 1)
    return np.asarray((1.0 - noise.rate) * np.eye(num_classes) + noise.rate * wrong_rows)


def _candidate_mask(candidates: Candidates | None, num_classes: int) -> np.ndarray:
    """(C, C) bool: may a sample of class row be given label column?"""
    if candidates is None:
        raise ConfigError(
            "todo.transition-5",
            "CK-asymmetric noise (C) needs to know which classes are mistaken for which",
            fix='--set noise.candidates=candidates.toml with lines like  "Ulcer" = ["Pylorus", "Foreign body"]',
        )
    mask, problems = np.zeros((num_classes, num_classes), dtype=bool), []
    for c in range(num_classes):
        chosen = candidates.get(c)
        if chosen is None:
            problems.append(f"class {c} has none")
        elif len(chosen) == 0 or chosen == "any":
            mask[c] = np.arange(num_classes) != c
        elif isinstance(chosen, str) or any(
            not 0 <= other < num_classes or other == c for other in chosen
        ):
            problems.append(f"class {c} has {chosen!r}")
        else:
            mask[c, list(chosen)] = True
    if problems:
        raise ConfigError(
            "todo.transition-6",
            f"misdiagnosis candidates do not fit {num_classes} classes: {'; '.join(problems)}",
            fix="give every class a list of other classes; an empty list means any other class",
        )
    return mask


def corrupt(
    labels: np.ndarray,
    noise: SiteNoise,
    *,
    num_classes: int,
    candidates: Candidates | None = None,
    rng: np.random.Generator,
) -> np.ndarray:
    """The labels a site is given when its true ones are `labels`; a new array, also without noise."""
    return corrupt_with(labels, transition_matrix(noise, num_classes, candidates), rng)


def corrupt_with(labels: np.ndarray, matrix: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a given label for every sample from its true label's row of `matrix` (C, C). One uniform number per sample."""
    matrix = np.asarray(matrix, dtype=np.float64)
    _check_matrix(matrix)
    if labels.size and not 0 <= labels.min() <= labels.max() < len(matrix):
        raise DataError(
            "todo.transition-7",
            f"labels run from {labels.min()} to {labels.max()}, the noise has {len(matrix)} classes",
            fix="labels must be 0 .. number of classes - 1",
        )
    edges = matrix.cumsum(axis=1)
    edges /= edges[
        :, -1:
    ]  # ends at exactly 1, so a class with probability 0 is never drawn, not even by rounding
    drawn = (rng.random(labels.size)[:, None] >= edges[labels]).sum(axis=1)
    return np.asarray(drawn, dtype=np.int64)


def _check_matrix(matrix: np.ndarray) -> None:
    fix = "a square table of probabilities, one row per true class, each row summing to 1"
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ConfigError(
            "todo.transition-8",
            f"a transition matrix must be square, this one is {matrix.shape}",
            fix=fix,
        )
    bad = np.flatnonzero(
        ~(
            np.isfinite(matrix).all(axis=1)
            & (matrix >= 0).all(axis=1)
            & (abs(matrix.sum(axis=1) - 1) < 1e-6)
        )
    )
    if bad.size:
        rows = "; ".join(f"row {i} is {matrix[i].tolist()}" for i in bad[:3])
        raise ConfigError(
            "todo.transition-9",
            f"{bad.size} of {len(matrix)} rows of the transition matrix are no probabilities: {rows}",
            fix=fix,
        )


def realised(true: np.ndarray, given: np.ndarray, num_classes: int) -> dict[str, Any]:
    """What the noise did: number of samples, share of wrong labels, and counts[true][given]; ready for JSON."""
    counts = np.bincount(true * num_classes + given, minlength=num_classes**2).reshape(
        num_classes, num_classes
    )
    rate = float(np.mean(true != given)) if true.size else 0.0
    return {"samples": int(true.size), "rate": rate, "counts": counts.tolist()}
