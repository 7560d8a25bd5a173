"""Whether a few sites oppose all others, who agree with each other, and outweigh them.

Honest sites with different classes or labels pull in different directions, and near the end of a
training the changes of all sites, weighted by their images, add up to nothing: each site opposes
the sum of the others. So a site that points against others proves nothing. But if the others agree
with each other, and one site leads the model against all of them, the model goes where nobody else
wants it: either the site has labels, images or software of another kind, or it lies about what it
learned or about its number of images.

Of sums of changes over the rounds (SiteMotion.change_sum):

    opposition   the median cosine of a site with the others is below -MIN_OPPOSITION
    unity        the median cosine between two of the others is above MIN_UNITY
    weight       the sum of the opponents' changes, by images, is MIN_WEIGHT times that of the rest

The last one is 1 where sites are in balance, however much they differ; also where a liar has led
the model so far away that the others just hold it. So it may be smaller if the opponents point
nearly straight against the rest (STRONG_OPPOSITION) with larger steps (MIN_STEP times theirs).
Fewer than half of the sites can be opponents: of two halves, nobody knows which one is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MIN_OPPOSITION = 0.2
MIN_UNITY = 0.4
MIN_WEIGHT = 1.25
STRONG_OPPOSITION = 0.5
MIN_STEP = 2.0
_MIN_SITES = 3


@dataclass(frozen=True)
class Balance:
    """The opponents of a round and how strong they are. Without opponents, all numbers are 0."""

    opponents: tuple[str, ...] = ()
    opposition: float = 0.0  # of the opponent with the smallest one
    unity: float = 0.0
    weight: float = 0.0
    step: float = 0.0  # of the opponents, as a multiple of the others'

    @property
    def is_alarming(self) -> bool:
        """Whether a person should know."""
        if not self.opponents or self.unity <= MIN_UNITY:
            return False
        is_strong = self.opposition > STRONG_OPPOSITION and self.step > MIN_STEP
        return self.weight > MIN_WEIGHT or is_strong


def weigh_sites(changes: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> Balance:
    """Who opposes the others, by the sums of their changes and their numbers of images."""
    sites = [site for site in sorted(changes) if np.any(changes[site])]
    if len(sites) < _MIN_SITES:
        return Balance()
    rows = np.array([changes[site] for site in sites], dtype=np.float64)
    norms = np.linalg.norm(rows, axis=1)
    directions = rows / norms[:, None]
    cosines = directions @ directions.T
    medians = np.array([np.median(np.delete(cosines[i], i)) for i in range(len(sites))])
    is_opponent = medians < -MIN_OPPOSITION
    if not is_opponent.any() or 2 * int(is_opponent.sum()) >= len(sites):
        return Balance()
    positions = np.flatnonzero(~is_opponent)
    pairs = np.triu_indices(len(positions), 1)
    unity = float(np.median(cosines[np.ix_(positions, positions)][pairs]))
    weights = np.array([sizes[site] for site in sites], dtype=np.float64)
    opposed_norm = _sum_norm(rows, weights, np.flatnonzero(is_opponent))
    rest_norm = _sum_norm(rows, weights, positions)
    opponents = tuple(site for site, flag in zip(sites, is_opponent, strict=True) if flag)
    opposition = -float(medians[is_opponent].max())
    weight = opposed_norm / rest_norm if rest_norm > 0.0 else 0.0
    step = float(np.median(norms[is_opponent]) / np.median(norms[positions]))
    return Balance(opponents, opposition, unity, weight, step)


def _sum_norm(rows: np.ndarray, weights: np.ndarray, positions: np.ndarray) -> float:
    return float(np.linalg.norm(weights[positions] @ rows[positions]))


@dataclass(frozen=True)
class Streak:
    """The rounds in a row in which a site opposed the others."""

    first_round: int
    count: int = 1

    def add(self) -> Streak:
        """One more round."""
        return Streak(self.first_round, self.count + 1)


def extend_streaks(
    streaks: Mapping[str, Streak], balance: Balance, sites: Sequence[str], round_index: int
) -> dict[str, Streak]:
    """The streaks after a round in which `sites` took part; that of others stays as it is."""
    result = {site: streak for site, streak in streaks.items() if site not in sites}
    for site in balance.opponents if balance.is_alarming else ():
        streak = streaks.get(site)
        result[site] = Streak(round_index) if streak is None else streak.add()
    return result
