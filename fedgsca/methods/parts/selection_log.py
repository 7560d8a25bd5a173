"""What a method that selects samples logs about a round: declared uploads, and their numbers.

No step of a method reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedgsca.methods.base import Logged
from fedgsca.methods.site import Site
from fedgsca.pseudo_label import guard_reason
from fedgsca.selector import NO_SELECTOR, SELECTOR_BOUNDS, Selector, nearest_selector
from fedgsca.wire import Extra

SELECTOR_UPLOAD = Extra(
    (6,),
    "means, variances and weights of the two Gaussians fitted to this site's losses; NaN: no fit",
    nan=True,
    inf=True,
    bounds=SELECTOR_BOUNDS,
    vote="mean",
    finish=nearest_selector,
)
SELECTOR_DOWNLOAD = Extra((6,), "the merged selector; NaN: none yet", nan=True)
LOG_UPLOADS: Mapping[str, Extra] = {
    "delta": Extra(
        (), "share of labels flagged as noisy", optional=True, low=0, high=1, diagnostic=True
    ),
    "clean": Extra((), "number of labels taken as clean", optional=True, low=0, diagnostic=True),
    "pseudo": Extra((), "number of pseudo-labelled samples", optional=True, low=0, diagnostic=True),
    "guard": Extra(
        (),
        "1 if the collapse guard trained on the given labels this round",
        optional=True,
        low=0,
        high=1,
        diagnostic=True,
    ),
}
GUARD_EVENT = "the collapse guard stepped in"


def log_selection(**events: str) -> Logged:
    """The declaration of the log: the events of a selection, and whether it ran."""
    return Logged(
        events={"guard": GUARD_EVENT, **events},
        stage="selection",
        stage_ran=lambda values, n: values.get("clean", -1) < n,  # absent: not known
    )


@dataclass(frozen=True)
class Selection:
    """Step B at one site: D_hat and the decisions behind it."""

    # (m,) and (m,): D_hat
    rows: np.ndarray
    labels: np.ndarray
    # (n,) bool: the labels that were not flagged
    clean: np.ndarray
    num_pseudo: int = 0
    delta: float = 0.0
    # why the collapse guard trains on the given labels; None: it does not
    guard: str | None = None

    @staticmethod
    def everything(site: Site) -> Selection:
        """D_hat = D_k with the given labels."""
        return Selection(np.arange(site.num_samples), site.labels, np.ones(site.num_samples, bool))

    def unless_collapsed(self, site: Site) -> Selection:
        """The same, or D_k with the given labels where D_hat looks like a collapse."""
        guard = guard_reason(site.labels, self.labels, self.delta, site.num_classes)
        if guard is None:
            return self
        given = Selection.everything(site)
        return Selection(given.rows, given.labels, self.clean, 0, self.delta, guard)

    def numbers(self) -> dict[str, np.ndarray]:
        """The values of LOG_UPLOADS."""
        return {
            "delta": np.array(self.delta),
            "clean": np.array(int(self.clean.sum())),
            "pseudo": np.array(self.num_pseudo),
            "guard": np.array(int(self.guard is not None)),
        }


def selector_array(selector: Selector | None) -> np.ndarray:
    """(6,): a selector as it is sent."""
    return NO_SELECTOR.copy() if selector is None else selector.to_array()
