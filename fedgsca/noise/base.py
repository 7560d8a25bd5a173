"""The contract of a noise kind, and the noise of one site.

A new kind is one file in `fedgsca/noise/kinds`: a class that derives from `NoiseKind` and is
decorated with `@register_kind`. Specifications, previews, reports and help texts read its
attributes; no other file, test or list has to change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from fedgsca.errors import ConfigError
from fedgsca.support.registry import Registry
from fedgsca.support.text import one_line

# the true label of an image that belongs to none of the classes, and its name in files and tables
NO_CLASS = -1
NO_CLASS_NAME = "none of the classes"
# class -> classes it is mistaken for; () or "any": every other class
Candidates = Mapping[int, Sequence[int] | str]


@dataclass(frozen=True)
class SiteNoise:
    """What happens to the labels of one site.

    `kind` is the letter of a registered kind, "none" for a clean site. `rate` is the nominal share
    of wrong labels, 0 to 1; 0 where a matrix decides. `parameters` are for kinds that need more
    than a rate.
    """

    kind: str
    rate: float
    parameters: tuple[float, ...] = ()

    def __str__(self) -> str:
        """The part of a specification that means this noise, such as S40."""
        return self.definition.write(self)

    @property
    def definition(self) -> NoiseKind:
        """The registered kind."""
        return load_kinds()[self.kind]

    @property
    def is_clean(self) -> bool:
        """The labels stay as they are."""
        return self.definition.is_clean

    @property
    def nominal_rate(self) -> float | None:
        """The share of wrong labels that was asked for; None where there is no such number."""
        return self.definition.nominal_rate(self)

    @property
    def title(self) -> str:
        """For people: "symmetric 40 %"."""
        return self.definition.format_title(self)

    def describe(self) -> str:
        """What the site does, as the end of a sentence that begins with the site."""
        return self.definition.describe(self)


@dataclass(frozen=True)
class NoiseContext:
    """What a kind may use to draw labels, beside the true ones."""

    num_classes: int
    # for kinds with `needs_candidates`
    candidates: Candidates | None = None
    # (C, C), for kind M
    matrix: np.ndarray | None = None
    # (C,) how often each class occurs among the true labels of the site; None: not known
    class_counts: np.ndarray | None = None
    # (A, C, C) transition matrices of annotators, for kinds A and V; None: no file
    annotators: np.ndarray | None = None
    # (n, C) how near each image of the site is to each class, for kinds with `needs_likeness`
    likeness: np.ndarray | None = None
    # (n,) names of the patients, slides or videos, for kinds with `needs_groups`
    groups: np.ndarray | None = None
    # names of the classes, for messages; (): not known
    classes: tuple[str, ...] = ()
    # class indices from the lowest grade to the highest; (): the classes have no order
    order: tuple[int, ...] = ()


class NoiseKind:
    """A kind of label noise. Most kinds define only the attributes and `transition_matrix`.

    A kind with other parameters than one rate sets `has_rate = False`, stores its numbers in
    `SiteNoise.parameters` and overrides `parse`, `write`, `format_title` and `describe`, so that
    `parse(write(noise)) == noise`. D30/10, 30 % wrong labels in class 0 and 10 % elsewhere:

        has_rate = False

        def parse(self, text):
            match = re.fullmatch(r"D([0-9]+)/([0-9]+)", text)
            if match is None or max(int(match[1]), int(match[2])) > 100:
                return None
            return SiteNoise("D", 0.0, (int(match[1]) / 100, int(match[2]) / 100))

        def write(self, noise):
            first, others = noise.parameters
            return f"D{100 * first:g}/{100 * others:g}"

        def format_title(self, noise):
            first, others = noise.parameters
            return f"by class {100 * first:g} % and {100 * others:g} %"

        def describe(self, noise):
            first, others = noise.parameters
            return f"labels {100 * first:g} % of class 0 and {100 * others:g} % of others wrongly"

    A dash cannot be part of such a text, because it separates the sites of a specification.
    """

    # unique; in a specification it is followed by the rate in percent, if the kind has a rate
    letter: ClassVar[str]
    # for reports: "symmetric"
    title: ClassVar[str]
    # for the documentation: one sentence
    description: ClassVar[str]
    # completes "labels 40 % of its images wrongly, as ..."
    wrong_label: ClassVar[str] = "another class"
    # position in lists and help texts
    order: ClassVar[int] = 100
    is_clean: ClassVar[bool] = False
    # the labels are read from a file: nothing is drawn, and no specification can ask for it
    is_recorded: ClassVar[bool] = False
    # False: something else decides how many labels are wrong
    has_rate: ClassVar[bool] = True
    needs_candidates: ClassVar[bool] = False
    needs_likeness: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False
    # the labels stay, but some images are replaced by images of no class; only a simulation can
    replaces_images: ClassVar[bool] = False
    # False: two images of one class can have different probabilities, so there is no matrix
    has_matrix: ClassVar[bool] = True

    def parse(self, text: str) -> SiteNoise | None:
        """The noise that an upper-case part of a specification means; None if it is another kind's.

        The default reads the letter and a rate in percent: S40, S2.5, S40%. A rate of 0 is clean.
        A kind without a rate is its letter alone.
        """
        if not self.has_rate:
            return SiteNoise(self.letter, 0.0) if text == self.letter else None
        match = re.fullmatch(rf"{re.escape(self.letter)}(\d+(?:\.\d+)?|\.\d+)%?", text)
        if match is None or float(match[1]) > 100:
            return None
        rate = float(match[1]) / 100
        return SiteNoise(self.letter, rate) if rate > 0 else CLEAN

    def write(self, noise: SiteNoise) -> str:
        """The inverse of `parse`."""
        return f"{self.letter}{noise.rate * 100:g}" if self.has_rate else self.letter

    def format_title(self, noise: SiteNoise) -> str:
        """For reports and tables: "symmetric 40 %"."""
        return f"{self.title} {noise.rate * 100:g} %" if self.has_rate else self.title

    def nominal_rate(self, noise: SiteNoise) -> float | None:
        """The share of wrong labels that was asked for, 0 to 1; None if there is no such number."""
        return noise.rate if self.has_rate else None

    def describe(self, noise: SiteNoise) -> str:
        """For previews, after the name of the site: "labels 40 % of its images wrongly, ..."."""
        return f"labels {100 * noise.rate:g} % of its images wrongly, as {self.wrong_label}"

    def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
        """(C, C): probability of each given label (column) for each true class (row)."""
        raise NotImplementedError

    def image_probabilities(
        self, noise: SiteNoise, labels: np.ndarray, context: NoiseContext, rng: np.random.Generator
    ) -> np.ndarray:
        """(n, C): probability of each given label for each image with true labels (n,).

        The default takes the row of the transition matrix. A kind that depends on the image
        overrides this instead of `transition_matrix`, and sets `has_matrix = False`.
        """
        return np.asarray(self.transition_matrix(noise, context)[labels])


# a site whose labels are all correct
CLEAN = SiteNoise("none", 0.0)
KINDS: Registry[NoiseKind] = Registry("fedgsca.noise.kinds")

K = TypeVar("K", bound=type[NoiseKind])


def register_kind(kind: K) -> K:
    """Class decorator that offers a kind to specifications, previews, reports and help texts."""
    KINDS.register(kind.letter, kind())
    return kind


def load_kinds() -> Mapping[str, NoiseKind]:
    """All kinds by letter: those of this package and those of plugins."""
    return KINDS.load()


def list_kinds() -> list[NoiseKind]:
    """All kinds in the order of help texts."""
    return sorted(load_kinds().values(), key=lambda kind: (kind.order, kind.letter))


def mix_with_identity(noise: SiteNoise, wrong: np.ndarray) -> np.ndarray:
    """(C, C): the true label with probability 1 - rate, else one of the `wrong` ones of its row.

    wrong (C, C) bool says which label (column) may be given to which true class (row). A class
    without wrong labels, an empty row, always keeps its true label.
    """
    num_classes = len(wrong)
    if num_classes < 2 and not noise.is_clean:
        raise ConfigError(
            "noise.single-class",
            f"noise {noise} needs at least 2 classes, but the data has {num_classes}",
            fix="use noise 0, or data with more classes",
        )
    wrong_rows = wrong / np.maximum(wrong.sum(axis=1, keepdims=True), 1)
    identity = np.eye(num_classes)
    matrix = (1.0 - noise.rate) * identity + noise.rate * wrong_rows
    return np.where(wrong.any(axis=1, keepdims=True), matrix, identity)


def neighbouring_grades(context: NoiseContext) -> np.ndarray:
    """(C, C) bool: the grades directly below and above; any other class for one that is no grade.

    Of the grades, the first row is the lowest's; without an order all rows are those of no grade.
    """
    wrong = other_classes(context.num_classes)
    for place, grade in enumerate(context.order):
        wrong[grade] = False
        for neighbour in (*context.order[:place][-1:], *context.order[place + 1 :][:1]):
            wrong[grade, neighbour] = True
    return wrong


def other_classes(num_classes: int) -> np.ndarray:
    """(C, C) bool: every label but the true one."""
    return ~np.eye(num_classes, dtype=bool)


# ---- specifications as people type them: "0-S40-P20-C20", one part per site, or "S40" for all ----
# "0-S40-P20-C20*" repeats its parts over any number of sites.


def parse_noise(spec: str, sites: int) -> list[SiteNoise]:
    """One SiteNoise per site from "0-S40-P20-C20" or, the same at every site, "S40".

    "0-S40*" repeats its parts in order. Decimals, percent signs and lower case are accepted.
    """
    text, star, end = spec.partition("*")
    is_repeated = bool(star) and not end.strip()
    parts = [part.strip() for part in (text if is_repeated else spec).split("-")]
    noises = []
    problems = []
    for position, part in enumerate(parts, start=1):
        noise = read_site_noise(part)
        if noise is None or noise.definition.is_recorded:
            problems.append(f"part {position} is {part!r}{_explain_problem(part)}")
        else:
            noises.append(noise)
    if problems:
        raise ConfigError(
            "noise.invalid-specification",
            f"the noise specification {one_line(spec)!r} is not valid: "
            f"{one_line(', '.join(problems))}",
            fix=f"write for example {explain_specification()}",
        )
    if is_repeated:
        return [noises[k % len(noises)] for k in range(sites)]
    if len(parts) not in (1, sites):
        example = "-".join(["0", *["S40"] * (sites - 1)])
        raise ConfigError(
            "noise.wrong-number-of-parts",
            f"the noise specification {one_line(spec)!r} has {len(parts)} parts for {sites} "
            "site(s)",
            fix=f"repeat the parts with {one_line(spec)}*, or write one part for all sites, or one "
            f"part per site such as {example}",
        )
    return noises * sites if len(noises) == 1 else noises


def _explain_problem(part: str) -> str:
    """Why a part is not a noise, in brackets; empty if there is no simple reason."""
    match = re.fullmatch(r"([A-Z]+)\s*(\d+(?:\.\d+)?|\.\d+)?\s*%?", part.strip().upper())
    if match is None:
        return ""
    letters, rate = match[1], match[2]
    kinds = {kind.letter: kind for kind in list_kinds()}
    if letters not in kinds:
        return f" (unknown kind {letters})"
    if kinds[letters].is_recorded or not kinds[letters].has_rate:
        return ""
    if rate is None:
        return " (without a rate in percent)"
    return f" ({rate} % is above 100 %)" if float(rate) > 100 else ""


def fixed_sites(spec: str) -> int | None:
    """The number of sites that a specification fixes by its parts; None for S40 and for 0-S40*."""
    if "-" not in spec or spec.rstrip().endswith("*"):
        return None
    return spec.count("-") + 1


def read_site_noise(text: str) -> SiteNoise | None:
    """The noise of one site as `str(SiteNoise)` writes it, or as a person types it; None if none.

    Unlike `parse_noise` it also reads F, which run folders contain and specifications do not.
    """
    word = text.strip().upper()
    for kind in list_kinds():
        noise = kind.parse(word)
        if noise is not None:
            return noise
    return None


def explain_specification() -> str:
    """What a specification means, in one line for help texts and errors."""
    letters = ["0 = clean"]
    for kind in list_kinds():
        if not kind.is_clean and not kind.is_recorded:
            letters.append(f"{kind.letter} = {kind.title}")
    meaning = ", ".join(letters)
    return (
        f"0-S40-P20-C20, one part per site: {meaning}; rates are in percent; "
        "a * at the end repeats the parts"
    )
