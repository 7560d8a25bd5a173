"""P: a wrong label is the next class, (c + 1) mod C."""

from __future__ import annotations

import numpy as np

from fedgsca.noise.base import (
    NoiseContext,
    NoiseKind,
    SiteNoise,
    mix_with_identity,
    register_kind,
)


@register_kind
class PairflipNoise(NoiseKind):
    letter = "P"
    title = "pairflip"
    description = "A wrong label is the next class, (c + 1) mod C."
    wrong_label = "the next class"
    order = 2

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): the rate for the next class."""
        # row c of the shifted identity has its one in column (c + 1) mod C
        next_class = np.roll(np.eye(context.num_classes, dtype=bool), 1, axis=1)
        return mix_with_identity(noise, next_class)
