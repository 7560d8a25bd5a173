"""Distance: how much each site would weigh under the rule `mixing`. A diagnosis, never a verdict.

Every round, whatever its rule, records for each site k

    coefficient_k = w_k / (n_k / n)    w from MixingRule.coefficients, n_k images of n in the round

1: the site weighs as much as its images. Near 0: its update is far from those of all others, who
would not listen to it. The inner products of changes come from sketches (robust/sketch.py), so
updates need not wait for each other.

A site whose coefficient was below LOW in LOW_ROUNDS of its last WINDOW rounds is *distant*: log,
report and status page name it, so that people ask what differs. Other images, other classes, wrong
labels and a lie look alike from here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fedgsca.federation.filters.base import RoundContext, UpdateContext, UpdateFilter
from fedgsca.federation.filters.form import trained_arrays
from fedgsca.federation.robust.base import Rule
from fedgsca.federation.robust.sketch import Sketcher
from fedgsca.wire import Arrays, Update

LOW = 0.2  # of a site's share of the images
WINDOW = 8  # rounds of a site
LOW_ROUNDS = 6  # of them: with equal sites, mixing leaves out an honest one every few rounds
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
        # of each site's last rounds: whether its coefficient was low
        self.windows: dict[str, tuple[bool, ...]] = {}
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
        known_sites = self.distant_sites()
        for site, coefficient in self._coefficients(sites).items():
            context.note(site, "coefficient", round(coefficient, _DIGITS))
            window = (*self.windows.get(site, ()), coefficient < LOW)
            self.windows[site] = window[-WINDOW:]
        context.distant_sites = self.distant_sites()
        for site in context.distant_sites:
            if site not in known_sites:
                context.tell(f"round {context.payload.round + 1}: {site}: {DISTANT_TEXT}")

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
        """Sites that had hardly any weight in most of their last rounds."""
        sites = []
        for name in self.names:
            window = self.windows.get(name, ())
            if sum(window) >= LOW_ROUNDS:
                sites.append(name)
        return tuple(sites)

    def to_arrays(self) -> Arrays:
        """(K, WINDOW) int8: 1 low, 0 not, -1 for rounds that were not there yet, newest last."""
        rows = np.full((len(self.names), WINDOW), -1, dtype=np.int8)
        for row, name in zip(rows, self.names, strict=True):
            window = self.windows.get(name, ())
            if window:
                row[-len(window) :] = window
        return {"windows": rows}

    def from_arrays(self, arrays: Arrays) -> None:
        """The inverse of `to_arrays`."""
        for name, row in zip(self.names, arrays["windows"], strict=True):
            window = tuple(bool(value) for value in row if value >= 0)
            if window:
                self.windows[name] = window
