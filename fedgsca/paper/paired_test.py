"""A paired two-sided t-test over seeds.

Two rows ran with the same data, sites, wrong labels and first weights, so only their differences
count. With the three to five seeds of these tables an exact sign-flip test cannot go below
p = 2 / 2^n (0.25 for three, 0.0625 for five) and could never be significant. The t-test can, under
an assumption that so few seeds cannot verify: that the differences are normally distributed. Read
p as a measure of how steady a difference is, not as proof. `holm` corrects the p of all rows of a
column for their number, and `difference_interval` says how large a difference may be. Below three
seeds there are no stars: with two, one degree of freedom makes p a matter of luck.

scipy.stats.ttest_1samp computes the same, but scipy would become a dependency of every
installation for one function of twelve lines. tests/unit/test_paired_test.py compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

MIN_SEEDS = 3
LEVEL = 0.95


class Interval(NamedTuple):
    """A mean difference and its confidence interval."""

    mean: float
    low: float
    high: float


def difference_interval(
    values: Mapping[str, float], reference: Mapping[str, float]
) -> Interval | None:
    """Values minus reference over common seeds: the mean and its 95 % interval by Student's t.

    None with fewer than three common seeds.
    """
    differences = [values[seed] - reference[seed] for seed in values if seed in reference]
    if len(differences) < MIN_SEEDS:
        return None
    mean = fmean(differences)
    half = t_quantile(LEVEL, len(differences) - 1) * stdev(differences) / len(differences) ** 0.5
    return Interval(mean, mean - half, mean + half)


def t_quantile(level: float, df: int) -> float:
    """The t with P(|T| <= t) = level, by bisection."""
    low = 0.0
    high = 1.0
    while two_sided(high, df) > 1.0 - level:
        high *= 2.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        if two_sided(middle, df) > 1.0 - level:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction for the number of tests; None, no test, stays None."""
    tests = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    results: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(tests):
        largest = max(largest, min(1.0, p * (len(tests) - rank)))
        results[i] = largest
    return results


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
