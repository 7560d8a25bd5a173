"""M: any transition matrix, from a file."""

from __future__ import annotations

import numpy as np

from fedgsca.errors import ConfigError
from fedgsca.noise.base import NoiseContext, NoiseKind, SiteNoise, register_kind


@register_kind
class MatrixNoise(NoiseKind):
    letter = "M"
    title = "own matrix"
    description = "Labels are drawn from the transition matrix in noise.matrix."
    order = 4
    has_rate = False
    needs_matrix = True

    def parse(self, text: str) -> SiteNoise | None:
        return SiteNoise("M", 0.0) if text == "M" else None

    def write(self, noise: SiteNoise) -> str:
        return "M"

    def entitle(self, noise: SiteNoise) -> str:
        return self.title

    def describe(self, noise: SiteNoise) -> str:
        return "draws its labels from the given matrix"

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        if context.matrix is None:
            raise ConfigError(
                "noise.missing-matrix",
                "noise M needs a transition matrix, but none was given",
                fix="--set noise.matrix=matrix.csv",
            )
        return context.matrix
