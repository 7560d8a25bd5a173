"""I: images that are hard to read get the label that they look like (instance-dependent noise)."""

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

    The likeness comes from an independent reader, who sees other features than the methods do.
    """

    letter = "I"
    title = "instance-dependent"
    description = "Images that are hard to read get a label that they look like."
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
                fix="draw it in a simulation, which asks an independent reader",
            )
        return err_on_hard_images(
            labels, noise.rate, context.likeness, np.ones(context.likeness.shape)
        )


def err_on_hard_images(
    labels: np.ndarray, rate: float, likeness: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """(n, C): probabilities of given labels, with errors where the true label is in doubt.

    s_i = softmax of the likeness (n, C). The probability of an error is proportional to
    1 - s_i(true), with the mean `rate`; the wrong label c is drawn in proportion to s_i(c) and the
    weights (n, C), which are zero for labels that are never given.
    """
    rows = np.arange(len(likeness))
    s = np.exp(likeness - likeness.max(axis=1, keepdims=True))
    s /= s.sum(axis=1, keepdims=True)
    s[rows, labels] = 0.0
    rates = scale_to_mean(s.sum(axis=1), rate)
    wrong = s * weights
    # an image that looks like no other class at all is mistaken for any
    is_clear = wrong.sum(axis=1) <= 0
    wrong[is_clear] = weights[is_clear]
    wrong[rows, labels] = 0.0
    # a class with which nothing is confused keeps its label
    totals = wrong.sum(axis=1)
    rates = np.where(totals > 0, rates, 0.0)
    probabilities = rates[:, None] * wrong / np.where(totals > 0, totals, 1.0)[:, None]
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
