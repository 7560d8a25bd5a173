"""G: the rate differs by group: some patients, slides or videos are labelled badly, some well."""

from __future__ import annotations

import numpy as np

from fedgsca.errors import ConfigError
from fedgsca.noise.base import NoiseContext, NoiseKind, SiteNoise, other_classes, register_kind

# how alike the groups are: a Beta distribution with this sum of parameters
CONCENTRATION = 2.0


@register_kind
class GroupNoise(NoiseKind):
    """G30: each group draws its own rate from a Beta distribution with mean 30 %.

    With a concentration of 2 most groups are far from the mean: nearly all correct, or mostly
    wrong. A wrong label is any other class.
    """

    letter = "G"
    title = "by group"
    description = "Every patient, slide or video draws its own rate; the mean is the site's."
    wrong_label = "any other class, some groups far more often than others"
    order = 12
    needs_groups = True
    has_matrix = False

    def image_probabilities(
        self, noise: SiteNoise, labels: np.ndarray, context: NoiseContext, rng: np.random.Generator
    ) -> np.ndarray:
        """(n, C) from the groups (n,) of the context."""
        if context.groups is None:
            raise ConfigError(
                "noise.no-groups",
                "noise by group (G) needs to know which images belong together",
                fix="use data with a group column, or other noise",
            )
        names, numbers = np.unique(context.groups, return_inverse=True)
        a = CONCENTRATION * noise.rate
        b = CONCENTRATION * (1.0 - noise.rate)
        # a rate of 100 % has no Beta distribution
        rates = rng.beta(a, b, len(names)) if b > 0 else np.ones(len(names))
        image_rates = rates[numbers][:, None]
        count = context.num_classes
        wrong = other_classes(count)[labels] / max(count - 1, 1)
        return np.asarray((1.0 - image_rates) * np.eye(count)[labels] + image_rates * wrong)
