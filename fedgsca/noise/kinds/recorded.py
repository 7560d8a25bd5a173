"""F: given labels that were read from a file. Nothing is drawn, so no specification asks for it."""

from __future__ import annotations

import numpy as np

from fedgsca.errors import ConfigError
from fedgsca.noise.base import NoiseContext, NoiseKind, SiteNoise, register_kind


@register_kind
class RecordedLabels(NoiseKind):
    letter = "F"
    title = "from a file"
    description = "Given labels are read from a file (noise.given or data.label)."
    order = 5
    has_rate = False
    is_recorded = True

    def describe(self, noise: SiteNoise) -> str:
        """After the name of the site."""
        return "takes its labels from a file"

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """Always raises ConfigError."""
        raise ConfigError(
            "noise.no-transition-matrix",
            "labels that were read from a file (F) have no transition matrix",
            fix="use another kind of noise, or noise M with --set noise.matrix=matrix.csv",
        )
