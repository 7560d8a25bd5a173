"""I: images that look like another class are mistaken for it (instance-dependent noise)."""

from __future__ import annotations

import numpy as np

from fedgsca.errors import ConfigError
from fedgsca.noise.base import NoiseContext, NoiseKind, SiteNoise, register_kind

# no image is labelled wrongly for sure, however much it looks like another class
LARGEST_RATE = 0.95
_STEPS = 50


@register_kind
class InstanceNoise(NoiseKind):
    """I30: 30 % of the labels are wrong, mostly those of images between two classes.

    s_i = softmax of the likeness of image i to every class. The probability of a wrong label is
    proportional to 1 - s_i(y_i), with a factor that makes the mean of the site the rate; the
    wrong label c is drawn in proportion to s_i(c).
    """

    letter = "I"
    title = "instance-dependent"
    description = "Images that look like another class get its label; the mean rate is the site's."
    wrong_label = "a class that the image looks like"
    order = 11
    needs_likeness = True
    has_matrix = False

    def image_probabilities(
        self, noise: SiteNoise, labels: np.ndarray, context: NoiseContext, rng: np.random.Generator
    ) -> np.ndarray:
        """(n, C) from the likeness (n, C) of the context."""
        if context.likeness is None:
            raise ConfigError(
                "noise.missing-likeness",
                "instance-dependent noise (I) needs to know how much each image looks like "
                "each class",
                fix="draw it in a simulation, which measures that on the features",
            )
        s = np.exp(context.likeness - context.likeness.max(axis=1, keepdims=True))
        s /= s.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        rivals = s.copy()
        rivals[rows, labels] = 0.0
        doubt = rivals.sum(axis=1)  # 1 - s_i(y_i)
        rates = scale_to_mean(doubt, noise.rate)
        # an image that looks like no other class at all is mistaken for any
        rivals[doubt <= 0] = 1.0
        rivals[rows, labels] = 0.0
        probabilities = rates[:, None] * rivals / rivals.sum(axis=1, keepdims=True)
        probabilities[rows, labels] = 1.0 - rates
        return np.asarray(probabilities)


def scale_to_mean(values: np.ndarray, mean: float) -> np.ndarray:
    """(n,): values of 0 or more times a common factor, at most 0.95, with this mean.

    A mean above 0.95 cannot be reached; values that are all 0 become the mean.
    """
    if values.size == 0 or values.sum() <= 0:
        return np.full(values.shape, min(mean, LARGEST_RATE))
    low = 0.0
    high = 1.0
    while np.minimum(high * values, LARGEST_RATE).mean() < mean and high < 1e12:
        high *= 2.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if np.minimum(middle * values, LARGEST_RATE).mean() < mean:
            low = middle
        else:
            high = middle
    return np.asarray(np.minimum(high * values, LARGEST_RATE))
