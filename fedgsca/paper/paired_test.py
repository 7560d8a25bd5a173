"""A paired two-sided t-test over seeds.

Two rows ran with the same data, sites, wrong labels and first weights, so only their differences
count. With the three to five seeds of these tables an exact sign-flip test cannot go below
p = 2 / 2^n (0.25 for three, 0.0625 for five) and could never be significant. The t-test can, under
an assumption that so few seeds cannot verify: that the differences are normally distributed. Read
p as a measure of how steady a difference is, not as proof; nothing is corrected for the number of
comparisons in a table.

scipy.stats.ttest_1samp computes the same, but scipy would become a dependency of every
installation for one function of twelve lines. tests/unit/test_paired_test.py compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev


def paired_p(values: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """p of "no difference" over the seeds that both have; arguments map seeds to values.

    None with fewer than two common seeds, or if all differences are equal.
    """
    return t_test([values[seed] - reference[seed] for seed in values if seed in reference])


def t_test(differences: Sequence[float]) -> float | None:
    """Two-sided p that the mean of the differences is zero; None if they do not vary."""
    n = len(differences)
    if n < 2:
        return None
    spread = stdev(differences)
    if spread <= 1e-12 * max(map(abs, differences)):
        return None
    return two_sided(fmean(differences) / (spread / math.sqrt(n)), n - 1)


def two_sided(t: float, df: int) -> float:
    """P(|T| >= |t|) for Student's t with `df` degrees of freedom.

    For a whole number of degrees of freedom the distribution is a finite sum of powers of a cosine
    (Abramowitz and Stegun, 26.7.3 and 26.7.4), so the result is exact.
    """
    angle = math.atan2(abs(t), math.sqrt(df))
    sine = math.sin(angle)
    cosine = math.cos(angle)
    is_even = df % 2 == 0
    term = 1.0 if is_even else cosine
    total = term if df > 1 else 0.0
    for k in range(2 if is_even else 3, df, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    inside = sine * total
    if not is_even:
        inside = (angle + inside) * 2.0 / math.pi
    return min(1.0, max(0.0, 1.0 - inside))
