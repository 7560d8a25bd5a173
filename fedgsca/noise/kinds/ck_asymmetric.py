"""C: a wrong label is one of the classes that clinicians mistake the true one for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgsca.errors import ConfigError
from fedgsca.noise.base import (
    Candidates,
    NoiseContext,
    NoiseKind,
    SiteNoise,
    mix_with_identity,
    other_classes,
    register_kind,
)


@register_kind
class CkAsymmetricNoise(NoiseKind):
    """Clinical-knowledge asymmetric noise; the candidates are found by noise/candidates.py."""

    letter = "C"
    title = "CK-asymmetric"
    description = "A wrong label is one of the classes that clinicians mistake the true one for."
    wrong_label = "a class it is easily mistaken for"
    order = 3
    needs_candidates = True

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): the rate, in equal parts, for the candidates of the class."""
        if context.num_classes < 2:
            return mix_with_identity(noise, other_classes(context.num_classes))
        return mix_with_identity(noise, candidate_mask(context.candidates, context.num_classes))


def candidate_mask(candidates: Candidates | None, num_classes: int) -> np.ndarray:
    """(C, C) bool: may a sample of class row be given label column?"""
    if candidates is None:
        raise ConfigError(
            "noise.missing-candidates",
            "CK-asymmetric noise (C) needs to know which classes are mistaken for which",
            fix="--set noise.candidates=candidates.toml, a file with lines like  "
            '"Ulcer" = ["Pylorus", "Foreign body"]',
        )
    mask = np.zeros((num_classes, num_classes), dtype=bool)
    problems = []
    for c in range(num_classes):
        labels = candidates.get(c)
        if labels is None:
            problems.append(f"class {c} has no entry")
        elif len(labels) == 0 or labels == "any":
            mask[c] = np.arange(num_classes) != c
        elif isinstance(labels, str) or not _are_other_classes(labels, c, num_classes):
            problems.append(f"class {c} has {labels!r}")
        else:
            mask[c, list(labels)] = True
    if problems:
        raise ConfigError(
            "noise.invalid-candidates",
            f"the misdiagnosis candidates do not fit {num_classes} classes: {'; '.join(problems)}",
            fix="give every class a list of other classes; an empty list means any other class",
        )
    return mask


def _are_other_classes(labels: Sequence[int], c: int, num_classes: int) -> bool:
    return all(0 <= label < num_classes and label != c for label in labels)
