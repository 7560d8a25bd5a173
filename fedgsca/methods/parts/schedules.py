"""Stages and weights that depend on the round."""

from __future__ import annotations

import numpy as np


def rounds_of(share: float, rounds: int) -> int:
    """A stage given as a share of all rounds, in rounds.

    At least one, so that no stage vanishes from a short run.
    """
    return max(1, round(share * rounds))


def rampup(t: float, begin: float, end: float) -> float:
    """exp(-5 (1 - clip((t - begin) / (end - begin), 0, 1))^2).

    It rises from e^-5 = 0.0067 at `begin` to 1 at `end` and stays there.
    """
    if end > begin:
        progress = float(np.clip((t - begin) / (end - begin), 0.0, 1.0))
    else:
        progress = float(t >= end)
    return float(np.exp(-5.0 * (1.0 - progress) ** 2))
