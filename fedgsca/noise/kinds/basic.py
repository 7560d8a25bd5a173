"""Kinds that do not look at the image: none, S, P, C, H, U, M, R (by class), G (by group), F, O."""

from __future__ import annotations

import re

import numpy as np

from fedgsca.errors import ConfigError
from fedgsca.noise.base import (
    CLEAN,
    Candidates,
    NoiseContext,
    NoiseKind,
    SiteNoise,
    mix_with_identity,
    neighbouring_grades,
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


@register_kind
class PairflipNoise(NoiseKind):
    letter = "P"
    title = "pairflip"
    description = (
        "A wrong label is the next class, (c + 1) mod C; of grades, one directly below or above."
    )
    wrong_label = "the next class or a neighbouring grade"
    order = 2

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): the rate for the next class or, in equal parts, for the neighbouring grades."""
        if context.order:
            return mix_with_identity(noise, neighbouring_grades(context))
        # row c of the shifted identity has its one in column (c + 1) mod C
        next_class = np.roll(np.eye(context.num_classes, dtype=bool), 1, axis=1)
        return mix_with_identity(noise, next_class)


@register_kind
class CkAsymmetricNoise(NoiseKind):
    """Clinical-knowledge asymmetric noise; the candidates are found by noise/candidates.py."""

    letter = "C"
    title = "CK-asymmetric"
    description = "A wrong label is one of the classes that clinicians mistake the true one for."
    wrong_label = "a class it is easily mistaken for"
    order = 3
    needs_candidates = True

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): the rate, in equal parts, for the candidates of the class."""
        if context.num_classes < 2:
            return mix_with_identity(noise, other_classes(context.num_classes))
        return mix_with_identity(noise, candidate_mask(context.candidates, context.num_classes))


def candidate_mask(candidates: Candidates | None, num_classes: int) -> np.ndarray:
    """(C, C) bool: may a sample of class row be given label column?"""
    if candidates is None:
        raise ConfigError(
            "noise.missing-candidates",
            "CK-asymmetric noise (C) needs to know which classes are mistaken for which",
            fix="--set noise.candidates=candidates.toml, a file with lines like  "
            '"Ulcer" = ["Pylorus", "Foreign body"]',
        )
    mask = np.zeros((num_classes, num_classes), dtype=bool)
    problems = []
    for c in range(num_classes):
        labels = candidates.get(c)
        if labels is None:
            problems.append(f"class {c} has no entry")
        elif len(labels) == 0 or labels == "any":
            mask[c] = np.arange(num_classes) != c
        elif isinstance(labels, str) or not set(labels) <= set(range(num_classes)) - {c}:
            problems.append(f"class {c} has {labels!r}")
        else:
            mask[c, list(labels)] = True
    if problems:
        raise ConfigError(
            "noise.invalid-candidates",
            f"the misdiagnosis candidates do not fit {num_classes} classes: {'; '.join(problems)}",
            fix="give every class a list of other classes; an empty list means any other class",
        )
    return mask


@register_kind
class HigherGrade(NoiseKind):
    letter = "H"
    title = "one grade higher"
    description = "A reading habit: a wrong label is the next higher grade, never a lower one."
    wrong_label = "the next higher grade"
    order = 6

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): the rate for the next grade; the highest, and what is no grade, stay."""
        if not context.order:
            raise ConfigError(
                "noise.no-order",
                "noise H moves labels to the next higher grade, and the classes have no order",
                fix="list the grades from the lowest to the highest in data.order",
            )
        wrong = np.zeros((context.num_classes, context.num_classes), dtype=bool)
        wrong[list(context.order[:-1]), list(context.order[1:])] = True
        return mix_with_identity(noise, wrong)


@register_kind
class UnusedClass(NoiseKind):
    """U2: the site never gives the second class, in the order of `fedgsca data check`."""

    letter = "U"
    title = "class never used"
    description = "A reading habit: one class is always read as another that is like it."
    order = 7
    has_rate = False
    needs_candidates = True

    def parse(self, text: str) -> SiteNoise | None:
        """U2: the number of the class, from 1."""
        match = re.fullmatch(r"U([1-9]\d{0,3})", text)
        return None if match is None else SiteNoise(self.letter, 0.0, (float(match[1]),))

    def write(self, noise: SiteNoise) -> str:
        """The inverse of `parse`."""
        return f"U{noise.parameters[0]:g}"

    def format_title(self, noise: SiteNoise) -> str:
        """For reports: "class 2 never used"."""
        return f"class {noise.parameters[0]:g} never used"

    def describe(self, noise: SiteNoise) -> str:
        """After the name of the site."""
        return f"never uses class {noise.parameters[0]:g} and reads it as one that is like it"

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): the grade below, or above for the lowest one; else the most similar class."""
        target = int(noise.parameters[0]) - 1
        if target >= context.num_classes:
            raise ConfigError(
                "noise.no-such-class",
                f"noise {noise} names class {target + 1} of {context.num_classes}",
                fix=f"use U1 to U{context.num_classes}, in the order of `fedgsca data check`",
            )
        candidates = (context.candidates or {}).get(target) or ()
        if target in context.order:
            place = context.order.index(target)
            replacement = context.order[place - 1 if place else 1]
        elif candidates and not isinstance(candidates, str):
            replacement = candidates[0]
        else:  # as good as any other class
            replacement = (target + 1) % context.num_classes
        matrix = np.eye(context.num_classes)
        matrix[target] = np.eye(context.num_classes)[replacement]
        return matrix


@register_kind
class MatrixNoise(NoiseKind):
    letter = "M"
    title = "custom matrix"
    description = "Labels are drawn from the transition matrix in noise.matrix."
    order = 4
    has_rate = False

    def describe(self, noise: SiteNoise) -> str:
        """After the name of the site."""
        return "draws its labels from the given matrix"

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): the given matrix."""
        if context.matrix is None:
            raise ConfigError(
                "noise.missing-matrix",
                "noise M needs a transition matrix, but none was given",
                fix="--set noise.matrix=matrix.csv",
            )
        return context.matrix


_RATE = r"(?:\d+(?:\.\d+)?|\.\d+)"


@register_kind
class ClassRateNoise(NoiseKind):
    """R40/10/0: 40 % of the first class, 10 % of the second, none of the others.

    The last rate is for all further classes, in the order of `fedgsca data check`.
    """

    letter = "R"
    title = "by class"
    description = "Every class has its own rate of wrong labels, which are any other class."
    order = 10
    has_rate = False

    def parse(self, text: str) -> SiteNoise | None:
        """R40/10: rates in percent, separated by slashes."""
        if re.fullmatch(rf"R{_RATE}%?(?:/{_RATE}%?)+", text) is None:
            return None
        rates = tuple(float(part.rstrip("%")) / 100 for part in text[1:].split("/"))
        return SiteNoise(self.letter, 0.0, rates) if max(rates) <= 1 else None

    def write(self, noise: SiteNoise) -> str:
        """The inverse of `parse`."""
        return "R" + "/".join(f"{100 * rate:g}" for rate in noise.parameters)

    def format_title(self, noise: SiteNoise) -> str:
        """For reports: "by class 40, 10 %"."""
        return f"by class {', '.join(f'{100 * rate:g}' for rate in noise.parameters)} %"

    def describe(self, noise: SiteNoise) -> str:
        """After the name of the site."""
        rates = ", ".join(f"{100 * rate:g} %" for rate in noise.parameters)
        return f"labels {rates} of its classes wrongly, in their order, as any other class"

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): the rate of each row, in equal parts for the other classes."""
        count = context.num_classes
        last = noise.parameters[-1]
        rates = np.array([*noise.parameters, *[last] * count])[:count, None]
        wrong = other_classes(count) / max(count - 1, 1)
        return np.asarray((1.0 - rates) * np.eye(count) + rates * wrong)


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


@register_kind
class RecordedLabels(NoiseKind):
    letter = "F"
    title = "from a file"
    description = "Given labels are read from a file (noise.given or data.label)."
    order = 5
    has_rate = False
    is_recorded = True
    has_matrix = False

    def describe(self, noise: SiteNoise) -> str:
        """After the name of the site."""
        return "takes its labels from a file"

    def image_probabilities(
        self, noise: SiteNoise, labels: np.ndarray, context: NoiseContext, rng: np.random.Generator
    ) -> np.ndarray:
        """Always raises ConfigError."""
        raise ConfigError(
            "noise.no-transition-matrix",
            "labels that were read from a file (F) have no transition matrix",
            fix="use another kind of noise, or noise M with --set noise.matrix=matrix.csv",
        )


@register_kind
class OpenSetNoise(NoiseKind):
    """O20: 20 % of the images are replaced by images of no class, which take over their labels.

    So the labels that are given to foreign images follow the class distribution of the site. The
    images come from `noise.open_set` or are made (`fedgsca/federation/label_noise.py`).
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
