"""What FedGSCA decides at a site in one round: records, what is remembered, what is logged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgsca.methods.parts.fedgsca_options import GuardOptions
from fedgsca.pseudo_label import guard_reason
from fedgsca.selector import NO_SELECTOR
from fedgsca.site import Site
from fedgsca.wire import SMALLEST_GROUP


@dataclass(frozen=True)
class Outputs:
    """Step A at one site: what the received model says about D_k."""

    # (n,) clipped, and (n, C): means over the rounds so far
    losses: np.ndarray
    probs: np.ndarray
    # of this round
    tau: float


@dataclass(frozen=True)
class Selection:
    """Step B at one site: D_hat and the decisions behind it."""

    # (m,) and (m,): D_hat
    rows: np.ndarray
    labels: np.ndarray
    # (n,) bool: D^c and, unless they are flagged, the doubtful labels
    clean: np.ndarray
    # (C,) zeta_c
    thresholds: np.ndarray
    num_pseudo: int = 0
    delta: float = 0.0
    # why the guard trains on the given labels; None: it does not
    guard: str | None = None
    # (C,) number of samples behind each threshold; None: the thresholds are fixed
    support: np.ndarray | None = None

    @property
    def public_thresholds(self) -> np.ndarray:
        """(C,) thresholds that may leave the site: NaN where one reflects a few images only."""
        if self.support is None:
            return self.thresholds
        too_few = (self.support > 0) & (self.support < SMALLEST_GROUP)
        return np.where(too_few, np.nan, self.thresholds)


@dataclass(frozen=True)
class SelectionMemory:
    """What a site remembers between rounds. It never leaves the site."""

    # rounds in the means
    count: float
    # (6,) S_k of the last round with a fit
    selector: np.ndarray
    # (n,) and (n, C) means over the rounds so far; None: selector.memory is 0
    losses: np.ndarray | None = None
    probs: np.ndarray | None = None

    @staticmethod
    def recall(site: Site, round: int) -> SelectionMemory:
        """The memory as it was before `round`; empty at first."""
        arrays = site.recall(round)
        if not arrays:
            return SelectionMemory(0.0, NO_SELECTOR.copy())
        count = float(arrays["count"])
        return SelectionMemory(count, arrays["selector"], arrays.get("losses"), arrays.get("probs"))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The named arrays for `Site.remember`."""
        arrays = {"count": np.array(self.count), "selector": self.selector}
        if self.losses is not None and self.probs is not None:
            arrays |= {"losses": self.losses, "probs": self.probs}
        return arrays


def collapse_reason(
    site: Site, labels: np.ndarray, delta: float, options: GuardOptions
) -> str | None:
    """Why D_hat with `labels` looks like a collapse; None if it does not."""
    if not options.enabled:
        return None
    return guard_reason(
        site.labels,
        labels,
        delta,
        site.num_classes,
        max_delta=options.max_delta,
        max_shift=options.max_shift,
        min_class=options.min_class,
    )


def diagnostics(selection: Selection, tau: float | None) -> dict[str, np.ndarray]:
    """Numbers for the log. No step of the method reads them. With evidence there is no tau."""
    numbers = {
        "delta": np.array(selection.delta),
        "clean": np.array(int(selection.clean.sum())),
        "pseudo": np.array(selection.num_pseudo),
        "guard": np.array(int(selection.guard is not None)),
    }
    if tau is not None:
        numbers |= {"tau": np.array(tau), "thresholds": selection.public_thresholds}
    return numbers
