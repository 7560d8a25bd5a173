"""The paired test over seeds, against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from fedgsca.paper.paired_test import (
    difference_interval,
    holm,
    paired_p,
    t_quantile,
    t_test,
    two_sided,
)
from fedgsca.rng import stream


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 12, 31])
def test_p_is_that_of_scipy(n: int) -> None:
    for trial in range(20):
        differences = stream(trial, "paired", n).normal(0.5, 1.0, n)
        assert t_test(differences.tolist()) == pytest.approx(
            stats.ttest_1samp(differences, 0.0).pvalue, abs=1e-12
        )


def test_two_sided_by_hand() -> None:
    assert two_sided(1.0, 1) == pytest.approx(0.5)  # Cauchy: half of it lies beyond +-1
    assert two_sided(0.0, 4) == 1.0
    assert two_sided(2.776445105, 4) == pytest.approx(0.05, abs=1e-9)
    assert two_sided(1e9, 2) == pytest.approx(0.0, abs=1e-12)


def test_only_seeds_that_both_have_are_paired() -> None:
    values = {"0": 2.0, "1": 4.0, "2": 7.0, "9": 100.0}
    assert paired_p(values, {"0": 1.0, "1": 2.0, "2": 3.0, "8": 0.0}) == t_test([1.0, 2.0, 4.0])


@pytest.mark.parametrize("differences", [[], [3.0], [0.0, 0.0, 0.0], [0.1 + 0.2, 0.3, 0.3]])
def test_undefined_without_spread(differences: list[float]) -> None:
    assert t_test(differences) is None


def test_holm_is_the_textbook_example() -> None:
    corrected = holm([0.01, 0.04, 0.03, None, 0.005])
    assert corrected == pytest.approx([0.03, 0.06, 0.06, None, 0.02])
    assert holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize("df", [1, 2, 4, 9])
def test_quantiles_are_scipys(df: int) -> None:
    assert t_quantile(0.95, df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-6)


def test_the_interval_of_a_difference_needs_three_seeds_and_is_scipys() -> None:
    ours = {"0": 71.0, "1": 73.5, "2": 72.0, "3": 70.0}
    reference = {"0": 75.0, "1": 75.5, "2": 76.0}
    interval = difference_interval(ours, reference)
    assert interval is not None
    differences = [ours[seed] - reference[seed] for seed in reference]
    scipy = stats.t.interval(0.95, 2, np.mean(differences), stats.sem(differences))
    assert interval == pytest.approx((np.mean(differences), *scipy))
    assert difference_interval({"0": 1.0, "1": 2.0}, reference) is None
