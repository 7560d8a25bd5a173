"""S: a wrong label is any other class, each with the same probability."""

from __future__ import annotations

import numpy as np

from fedgsca.noise.base import (
    NoiseContext,
    NoiseKind,
    SiteNoise,
    mix_with_identity,
    other_classes,
    register_kind,
)


@register_kind
class SymmetricNoise(NoiseKind):
    letter = "S"
    title = "symmetric"
    description = "A wrong label is any other class, each with the same probability."
    wrong_label = "any other class"
    order = 1

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): rate / (C - 1) for every other class."""
        return mix_with_identity(noise, other_classes(context.num_classes))
