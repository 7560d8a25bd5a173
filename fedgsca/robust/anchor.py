"""Whether a site moves towards the model that it sent before, in constant memory.

Training on some images lowers their loss. So the model S that a site sent fits its own images
better than the model W that it receives next, which is a mean over all sites. For a convex loss f,

    -<grad f(W), S - W>  >=  f(W) - f(S)  >  0

the next change D points back to S, whatever the site's classes and labels are:

    approach = <D, S - W> / scale^2,   scale = max(|S - W|, |D_S|, FLOOR |D_max|)

D_S is the change that led to S and D_max the largest change of the site so far. Honest sites are
mostly between 0 and 1, in single rounds below 0 (noise, steps that overshoot). A site that begins
to send its change reversed is at once far below 0.

One round proves little, so `evidence` adds up how far a site moves away, and what it moves back is
subtracted, down to 0 (a CUSUM test). As long as a site moves away it keeps its old S, for at most
PATIENCE rounds: otherwise each lie would become the measure of the next one.

A site that lies from its first round on is consistent with itself; this is what motion.py is for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgsca.robust.motion import SKETCH_SIZE
from fedgsca.wire import Arrays

FLOOR = 0.3  # when a model fits its labels the changes nearly vanish, and noise remains
PATIENCE = 3  # rounds in which a site may move away before its newest model counts
_USUAL_DECAY = 0.8  # of the weight of a round with each later one


@dataclass(frozen=True)
class SiteAnchor:
    """The model that a site sent before, and what is known about its way since then."""

    model: np.ndarray  # S: (SKETCH_SIZE,) float32 as in a checkpoint, relative to the first model
    norm: float  # of the change that led to it
    largest_norm: float  # of a change of the site
    rounds_left: int = PATIENCE  # that the anchor still stays if the site moves away
    evidence: float = 0.0
    usual_approach: float | None = None  # over the rounds of the site

    @staticmethod
    def start(change: np.ndarray, model: np.ndarray) -> SiteAnchor:
        """After the first round: the sketches of the change and of the received model."""
        norm = float(np.linalg.norm(change))
        return SiteAnchor(_as_stored(model + change), norm, norm)

    def approach(self, change: np.ndarray, model: np.ndarray) -> float:
        """How far a change leads from the received model towards the anchor."""
        way = self.model.astype(np.float64) - model
        scale = max(float(np.linalg.norm(way)), self.norm, FLOOR * self.largest_norm)
        return float(change @ way) / scale**2 if scale > 0.0 else 0.0

    def evidence_with(self, approach: float, common_loss: float = 0.0) -> float:
        """The evidence with one more round.

        `common_loss` is by how much less the other sites approach in this round than usually: what
        turns all of them, such as a new stage of the method, is not the fault of one.
        """
        return max(0.0, self.evidence - approach - common_loss)

    def add(
        self, change: np.ndarray, model: np.ndarray, approach: float, evidence: float
    ) -> SiteAnchor:
        """After one more round whose change was used."""
        usual = approach
        if self.usual_approach is not None:
            usual = _USUAL_DECAY * self.usual_approach + (1.0 - _USUAL_DECAY) * approach
        norm = float(np.linalg.norm(change))
        anchor = replace(
            self,
            largest_norm=max(self.largest_norm, norm),
            rounds_left=self.rounds_left - 1,
            evidence=evidence,
            usual_approach=usual,
        )
        if approach < 0.0 and anchor.rounds_left > 0:
            return anchor
        return replace(anchor, model=_as_stored(model + change), norm=norm, rounds_left=PATIENCE)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Named arrays for a checkpoint."""
        usual = np.nan if self.usual_approach is None else self.usual_approach
        numbers = [self.norm, self.largest_norm, self.rounds_left, self.evidence, usual]
        return {"anchor": self.model, "way": np.array(numbers)}

    @staticmethod
    def from_arrays(arrays: Arrays) -> SiteAnchor:
        """The inverse of `to_arrays`."""
        norm, largest_norm, rounds_left, evidence, usual = arrays["way"].tolist()
        return SiteAnchor(
            np.asarray(arrays["anchor"]).reshape(SKETCH_SIZE),
            norm,
            largest_norm,
            int(rounds_left),
            evidence,
            None if np.isnan(usual) else usual,
        )


def _as_stored(sketch: np.ndarray) -> np.ndarray:
    return np.asarray(sketch, dtype=np.float32)
