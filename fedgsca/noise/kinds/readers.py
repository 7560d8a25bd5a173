"""Errors of readers: I on images that are hard, A and V of annotators with own confusions."""

from __future__ import annotations

import itertools
import re
from typing import ClassVar

import numpy as np

from fedgsca.errors import ConfigError
from fedgsca.noise.base import NoiseContext, NoiseKind, SiteNoise, register_kind
from fedgsca.rng import stream

MAX_ANNOTATORS = 5
MAX_OUTCOMES = 400_000
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


# ---- annotators ----


class AnnotatorNoise(NoiseKind):
    """What both kinds share: A30x3 is a panel of three whose mean error is 30 %.

    Annotator m is the same person at every site and in every experiment: the error rate lies
    between a half and one and a half times the panel's, and the confusions of each class are drawn
    once, most of them towards a few classes. Without numbers, A and V use the matrices of
    `noise.annotators`.
    """

    has_rate = False
    action: ClassVar[str]

    def parse(self, text: str) -> SiteNoise | None:
        """A, or A30x3: the mean error in percent, and the number of annotators."""
        if text == self.letter:
            return SiteNoise(self.letter, 0.0)
        match = re.fullmatch(rf"{self.letter}(\d+(?:\.\d+)?)%?X([1-9])", text)
        if match is None or not 0 < float(match[1]) <= 60 or int(match[2]) > MAX_ANNOTATORS:
            return None
        return SiteNoise(self.letter, 0.0, (float(match[1]) / 100, float(match[2])))

    def write(self, noise: SiteNoise) -> str:
        """The inverse of `parse`."""
        if not noise.parameters:
            return self.letter
        rate, count = noise.parameters
        return f"{self.letter}{100 * rate:g}x{count:g}"

    def format_title(self, noise: SiteNoise) -> str:
        """For reports."""
        if not noise.parameters:
            return f"{self.title}, from a file"
        rate, count = noise.parameters
        return f"{self.title}, {count:g} with {100 * rate:g} % errors"

    def describe(self, noise: SiteNoise) -> str:
        """After the name of the site."""
        if not noise.parameters:
            return f"{self.action} the annotators of the given file"
        rate, count = noise.parameters
        return f"{self.action} {count:g} annotators, who are wrong in {100 * rate:g} % on average"

    def panel(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(A, C, C): one transition matrix per annotator."""
        if noise.parameters:
            rate, count = noise.parameters
            return make_panel(rate, int(count), context.num_classes)
        if context.annotators is None:
            raise ConfigError(
                "noise.missing-annotators",
                f"noise {self.letter} needs the annotators' matrices, but none were given",
                fix=f"--set noise.annotators=FILE.csv, or noise {self.letter}30x3",
            )
        return context.annotators


@register_kind
class OneAnnotator(AnnotatorNoise):
    letter = "A"
    title = "one annotator per image"
    description = "One annotator of a panel, drawn at random, labels each image; hard ones suffer."
    order = 13
    needs_likeness = True
    action = "asks one of"

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): the mean of the annotators' matrices."""
        return np.asarray(self.panel(noise, context).mean(axis=0))

    def image_probabilities(
        self, noise: SiteNoise, labels: np.ndarray, context: NoiseContext, rng: np.random.Generator
    ) -> np.ndarray:
        """(n, C): of every class the matrix's share of errors, on the images that are hard."""
        rows = np.asarray(self.transition_matrix(noise, context)[labels])
        if context.likeness is None:
            return rows
        probabilities: np.ndarray = np.zeros_like(rows)
        for c in np.unique(labels):
            members = labels == c
            probabilities[members] = err_on_hard_images(
                labels[members],
                1.0 - float(rows[members][0, c]),
                context.likeness[members],
                rows[members],
            )
        return probabilities


@register_kind
class VotingAnnotators(AnnotatorNoise):
    letter = "V"
    title = "vote of annotators"
    description = "All annotators of a panel label each image, and the most frequent label wins."
    order = 14
    action = "takes the majority of"

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): the distribution of the most frequent label; ties are drawn."""
        return majority_matrix(self.panel(noise, context))


def make_panel(rate: float, count: int, num_classes: int) -> np.ndarray:
    """(A, C, C): annotators 1 to `count`, whose errors have the mean `rate`."""
    factors = []
    directions = []
    for number in range(count):
        rng = stream(number, "annotator", num_classes)
        factors.append(rng.uniform(0.5, 1.5))
        wrong = np.zeros((num_classes, num_classes))
        for c in range(num_classes):
            is_other = np.arange(num_classes) != c
            wrong[c, is_other] = rng.dirichlet(np.full(num_classes - 1, 0.5))
        directions.append(wrong)
    rates = np.minimum(rate * np.array(factors) / np.mean(factors), 1.0)
    matrices = []
    for own_rate, wrong in zip(rates, directions, strict=True):
        matrices.append((1.0 - own_rate) * np.eye(num_classes) + own_rate * wrong)
    return np.stack(matrices)


def majority_matrix(panel: np.ndarray) -> np.ndarray:
    """(C, C): the most frequent label of independent annotators (A, C, C); ties are drawn."""
    count, num_classes, _ = panel.shape
    if num_classes**count > MAX_OUTCOMES:
        raise ConfigError(
            "noise.too-many-annotators",
            f"a vote of {count} annotators over {num_classes} classes has "
            f"{num_classes**count} outcomes, which is too many",
            fix="use fewer annotators",
        )
    result = np.zeros((num_classes, num_classes))
    for labels in itertools.product(range(num_classes), repeat=count):
        votes = np.bincount(labels, minlength=num_classes)
        winners = np.flatnonzero(votes == votes.max())
        probability = np.ones(num_classes)  # for every true class
        for annotator, label in enumerate(labels):
            probability = probability * panel[annotator, :, label]
        result[:, winners] += probability[:, None] / len(winners)
    return result
