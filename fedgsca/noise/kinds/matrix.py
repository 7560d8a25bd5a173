"""M: any transition matrix, from a file."""

from __future__ import annotations

import numpy as np

from fedgsca.errors import ConfigError
from fedgsca.noise.base import NoiseContext, NoiseKind, SiteNoise, register_kind


@register_kind
class MatrixNoise(NoiseKind):
    letter = "M"
    title = "custom matrix"
    description = "Labels are drawn from the transition matrix in noise.matrix."
    order = 4
    has_rate = False
    needs_matrix = True

    def describe(self, noise: SiteNoise) -> str:
        """After the name of the site."""
        return "draws its labels from the given matrix"

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): the given matrix."""
        if context.matrix is None:
            raise ConfigError(
                "noise.missing-matrix",
                "noise M needs a transition matrix, but none was given",
                fix="--set noise.matrix=matrix.csv",
            )
        return context.matrix
