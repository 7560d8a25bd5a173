"""Distance: how much each site would weigh under the rule `mixing`. A diagnosis, never a verdict.

Every round, whatever its rule, records for each site k

    coefficient_k = w_k / (n_k / n)    w from MixingRule.coefficients, n_k images of n in the round

1: the site weighs as much as its images. Near 0: its update is far from those of all others, who
would not listen to it. The inner products of changes come from sketches, so
updates need not wait for each other.

A site whose coefficient was below LOW in ROUNDS rounds in a row is *distant*: log, report and the
status page name it, so that people ask what differs. Other images or classes, wrong labels and lies
look alike from here; with four equal sites the rule leaves out one of them in every round, so a
few low rounds say nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fedgsca.federation.filters.base import RoundContext, UpdateContext, UpdateFilter, numbers_of
from fedgsca.federation.filters.form import trained_arrays
from fedgsca.federation.filters.rules import Rule
from fedgsca.rng import stream
from fedgsca.wire import Arrays, Update

LOW = 0.2  # of a site's share of the images
ROUNDS = 8  # of a site, in a row
# the end of a sentence that begins with the name of a site
DISTANT_TEXT = "its updates are far from those of all others; ask what differs"
_MIN_SITES = 3  # of two sites that differ, nobody knows which one is far away
_DIGITS = 4  # of a coefficient in the log


class DistanceFilter(UpdateFilter):
    """Lets every update pass and writes down its coefficient."""

    name = "distance"

    def __init__(self, rule: Rule, names: Sequence[str]) -> None:
        """`rule` gives the coefficients."""
        self.rule = rule
        self.names = tuple(names)
        # low rounds of each site in a row, up to now
        self.low_rounds: dict[str, int] = {}
        self._sketcher = Sketcher()
        # of this round: sketches of changes, and numbers of images
        self._sketches: dict[str, np.ndarray] = {}
        self._sizes: dict[str, int] = {}

    def start(self, context: RoundContext) -> None:
        """Forget the updates of an unfinished round."""
        self._sketches = {}
        self._sizes = {}

    def examine(self, update: Update, context: UpdateContext) -> Update:
        """Sketch the change; a site that did not train has none."""
        weights = trained_arrays(update.weights)
        sketch = self._sketcher.sketch(weights, context.round.payload.weights)
        if sketch.any() and update.num_samples > 0:
            self._sketches[update.site] = sketch
            self._sizes[update.site] = update.num_samples
        return update

    def remember(self, sites: Collection[str], context: RoundContext) -> None:
        """The coefficients of the round, and the sites that are distant after it."""
        for site, coefficient in self._coefficients(sites).items():
            context.note(site, "coefficient", round(coefficient, _DIGITS))
            is_low = coefficient < LOW
            self.low_rounds[site] = self.low_rounds.get(site, 0) + 1 if is_low else 0
            if self.low_rounds[site] == ROUNDS:
                context.tell(f"round {context.payload.round + 1}: {site}: {DISTANT_TEXT}")
        context.distant_sites = self.distant_sites()

    def _coefficients(self, sites: Collection[str]) -> dict[str, float]:
        """Relative to the share of images; empty if there are too few sites to compare."""
        names = [site for site in self._sketches if site in sites]
        if len(names) < _MIN_SITES:
            return {}
        sketches = np.stack([self._sketches[name] for name in names])
        sizes = np.array([self._sizes[name] for name in names], dtype=np.float64)
        weights = self.rule.coefficients(sketches @ sketches.T, sizes)
        relative_weights = weights / (sizes / sizes.sum())
        return dict(zip(names, relative_weights.tolist(), strict=True))

    def distant_sites(self) -> tuple[str, ...]:
        """Sites that had hardly any weight for many rounds."""
        return tuple(name for name in self.names if self.low_rounds.get(name, 0) >= ROUNDS)

    def to_arrays(self) -> Arrays:
        """(K,) low rounds in a row, in the order of the sites."""
        return {"low_rounds": numbers_of(self.low_rounds, self.names, 0)}

    def from_arrays(self, arrays: Arrays) -> None:
        """The inverse of `to_arrays`."""
        self.low_rounds = dict(zip(self.names, arrays["low_rounds"].tolist(), strict=True))


# ---- sketches: a few numbers of a change that keep inner products between changes ----


SKETCH_SIZE = 1024


class Sketcher:
    """Sketches of changes of one model; the signs are drawn once.

    Blocks of the flattened arrays are added up with random signs (a count sketch whose buckets take
    turns): inner products have a relative error of about 1/sqrt(SKETCH_SIZE).
    """

    def __init__(self) -> None:
        self._signs: dict[str, np.ndarray] = {}

    def sketch(self, arrays: Arrays, reference: Arrays) -> np.ndarray:
        """(SKETCH_SIZE,) of `arrays` minus the arrays of the same names in `reference`."""
        total = np.zeros(SKETCH_SIZE)
        offset = 0
        for name in sorted(arrays):
            change = np.subtract(arrays[name], reference[name], dtype=np.float64).ravel()
            change *= self._signs_of(name, change.size)
            # an array begins where the one before ended, so that small ones share no bucket
            end = offset + change.size
            row = np.zeros(end + -end % SKETCH_SIZE)
            row[offset:end] = change
            total += row.reshape(-1, SKETCH_SIZE).sum(axis=0)
            offset = end % SKETCH_SIZE
        return total

    def _signs_of(self, name: str, size: int) -> np.ndarray:
        if name not in self._signs:
            bits = stream(0, "sketch", name).integers(0, 2, size, dtype=np.int8)
            self._signs[name] = np.asarray(2 * bits - 1, dtype=np.int8)
        return self._signs[name]
