"""O: images that belong to no class, under the label of one (open-set noise)."""

from __future__ import annotations

from fedgsca.noise.base import NoiseKind, SiteNoise, register_kind


@register_kind
class OpenSetNoise(NoiseKind):
    """O20: 20 % of the images are replaced by images of no class, which take over their labels.

    So the labels that are given to foreign images follow the class distribution of the site. The
    images come from `noise.open_set` or are made (`fedgsca/experiment/foreign_images.py`).
    """

    letter = "O"
    title = "open-set"
    description = "Images of none of the classes take the place and the label of some images."
    order = 15
    replaces_images = True
    has_matrix = False

    def describe(self, noise: SiteNoise) -> str:
        """After the name of the site."""
        return f"has images of no class in place of {100 * noise.rate:g} % of its images"
