"""Whether a site moves towards the models that it sent before, in constant memory.

Training on some images lowers their loss. So the models that a site sent in its last rounds fit its
own images better than the model W that it receives next, which is a mean over all sites; and so
does their mean S, the anchor of the site. For a convex loss f,

    -<grad f(W), S - W>  >=  f(W) - f(S)  >  0

so the next change D points back to S, whatever the site's classes and labels are:

    approach = <D, S - W> / scale^2

`scale` is the length of a usual step: the largest of |S - W|, the norm of the change that led to S,
FLOOR times the largest change of the site, and the median of the other sites' changes. Honest sites
are mostly between 0 and 1; noise and steps that overshoot lead below 0 in single rounds. A site
that begins to send its change reversed is far below 0 at once.

One round proves little. `evidence` adds up how far a site moves away, beyond TOLERANCE a round, and
what it moves back is subtracted, down to 0 (a CUSUM test). After a round that leads away the anchor
stays for one more round, and then moves half-way: otherwise a lie would be the measure of the next.

A site that lies from its first round on is consistent with itself; this is what motion.py is for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgsca.wire import Arrays

FLOOR = 0.3  # when a model fits its labels the changes nearly vanish, and noise remains
TOLERANCE = 0.25  # in a round, so that noise does not add up
_SHARE = 0.5  # of the newest model in the anchor
_USUAL_DECAY = 0.8  # of the weight of a round with each later one


@dataclass(frozen=True)
class SiteAnchor:
    """Where a site led the model in its last rounds, and what is known about its way."""

    model: np.ndarray  # S: (SKETCH_SIZE,) float32 as in a checkpoint, relative to the first model
    norm: float  # of the change that led to it
    largest_norm: float  # of a change of the site
    is_held: bool = False  # whether the last round led away from it
    evidence: float = 0.0
    usual_approach: float | None = None  # over the rounds of the site
    num_refusals: int = 0  # for a retreat, in a row

    @staticmethod
    def start(change: np.ndarray, model: np.ndarray) -> SiteAnchor:
        """After the first round: the sketches of the change and of the received model."""
        norm = float(np.linalg.norm(change))
        return SiteAnchor(np.asarray(model + change, np.float32), norm, norm)

    def pull(self, change: np.ndarray, model: np.ndarray) -> Pull:
        """Of a change of the received model towards the anchor."""
        way = self.model.astype(np.float64) - model
        length = max(float(np.linalg.norm(way)), self.norm, FLOOR * self.largest_norm)
        return Pull(float(change @ way), length, self.usual_approach)

    def evidence_with(self, approach: float, common_loss: float = 0.0) -> float:
        """The evidence with one more round.

        `common_loss` is by how much less than usually the other sites approach their anchors: what
        turns all of them, such as a new stage of the method, is not the fault of one.
        """
        return max(0.0, self.evidence - approach - common_loss - TOLERANCE)

    def add(
        self, change: np.ndarray, model: np.ndarray, approach: float, evidence: float
    ) -> SiteAnchor:
        """After one more round whose change was used."""
        usual = approach
        if self.usual_approach is not None:
            usual = _USUAL_DECAY * self.usual_approach + (1.0 - _USUAL_DECAY) * approach
        norm = float(np.linalg.norm(change))
        largest_norm = max(self.largest_norm, norm)
        if approach < 0.0 and not self.is_held:
            return SiteAnchor(self.model, self.norm, largest_norm, True, evidence, usual)
        mean = (1.0 - _SHARE) * self.model + _SHARE * (model + change)
        return SiteAnchor(np.asarray(mean, np.float32), norm, largest_norm, False, evidence, usual)

    def refuse(self, evidence: float, *, is_retreat: bool) -> SiteAnchor:
        """After a round whose change was not used, for a retreat or for another reason."""
        evidence = max(self.evidence, evidence)
        num_refusals = self.num_refusals + 1 if is_retreat else self.num_refusals
        return replace(self, evidence=evidence, num_refusals=num_refusals)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Named arrays for a checkpoint."""
        usual = np.nan if self.usual_approach is None else self.usual_approach
        numbers = [self.norm, self.largest_norm, float(self.is_held), self.evidence, usual]
        return {"anchor": self.model, "way": np.array([*numbers, float(self.num_refusals)])}

    @staticmethod
    def from_arrays(arrays: Arrays) -> SiteAnchor:
        """The inverse of `to_arrays`."""
        norm, largest_norm, is_held, evidence, usual, num_refusals = arrays["way"].tolist()
        return SiteAnchor(
            np.asarray(arrays["anchor"]),
            norm,
            largest_norm,
            bool(is_held),
            evidence,
            None if np.isnan(usual) else usual,
            int(num_refusals),
        )


@dataclass(frozen=True)
class Pull:
    """Of one change towards the anchor of its site."""

    product: float  # <D, S - W>
    length: float  # of a usual step of the site
    usual_approach: float | None

    def approach(self, other_length: float = 0.0) -> float:
        """In usual steps; `other_length` is the median step of the other sites."""
        scale = max(self.length, other_length)
        return self.product / scale**2 if scale > 0.0 else 0.0
