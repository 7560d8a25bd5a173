"""A paired test over seeds: two rows ran with the same data, sites, wrong labels and first weights, so only differences count.

The t-test, two-sided. With the three to five seeds of these tables an exact sign-flip test cannot go below p = 2 / 2^n (0.25 for
three, 0.0625 for five), so it could never tell anything; the t-test can, at the price of an assumption that so few seeds cannot check:
that differences of seeds are normally distributed. Read p as a measure of how steady a difference is, not as proof; nothing is
corrected for the number of comparisons in a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev


def paired_p(mine: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """p of "no difference" over the seeds that both have; None with fewer than two of them or if all differences are equal."""
    return t_test([mine[seed] - reference[seed] for seed in mine if seed in reference])


def t_test(differences: Sequence[float]) -> float | None:
    """Two-sided p that the mean is zero."""
    n = len(differences)
    spread = stdev(differences) if n > 1 else 0.0
    if spread <= 1e-12 * max(map(abs, differences), default=0.0):
        return None
    return two_sided(fmean(differences) / (spread / math.sqrt(n)), n - 1)


def two_sided(t: float, df: int) -> float:
    """P(|T| >= |t|) for Student's t with a whole number of degrees of freedom: a finite sum of powers of cosines."""
    angle = math.atan2(abs(t), math.sqrt(df))
    sine, cosine = math.sin(angle), math.cos(angle)
    first = 2 if df % 2 == 0 else 3
    term = 1.0 if df % 2 == 0 else cosine
    total = term if df > 1 else 0.0
    for k in range(first, df, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    inside = sine * total if df % 2 == 0 else (angle + sine * total) * 2.0 / math.pi
    return min(1.0, max(0.0, 1.0 - inside))
