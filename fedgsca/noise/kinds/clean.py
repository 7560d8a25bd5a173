"""0: no noise."""

from __future__ import annotations

import numpy as np

from fedgsca.noise.base import (
    CLEAN,
    NoiseContext,
    NoiseKind,
    SiteNoise,
    mix_with_identity,
    other_classes,
    register_kind,
)


@register_kind
class CleanLabels(NoiseKind):
    letter = "none"
    title = "none"
    description = "Every label is correct."
    order = 0
    is_clean = True

    def parse(self, text: str) -> SiteNoise | None:
        """0, 0%, clean or none."""
        return CLEAN if text in ("0", "0%", "CLEAN", "NONE") else None

    def write(self, noise: SiteNoise) -> str:
        """Always 0."""
        return "0"

    def format_title(self, noise: SiteNoise) -> str:
        """ "none", without a rate."""
        return self.title

    def describe(self, noise: SiteNoise) -> str:
        """After the name of the site."""
        return "labels every image correctly"

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): the identity."""
        return mix_with_identity(noise, other_classes(context.num_classes))
