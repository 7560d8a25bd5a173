"""R: every class has its own rate, such as R40/10/0; a wrong label is any other class."""

from __future__ import annotations

import re

import numpy as np

from fedgsca.noise.base import NoiseContext, NoiseKind, SiteNoise, other_classes, register_kind

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
