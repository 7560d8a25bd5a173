"""The paired test over seeds, against scipy."""

from __future__ import annotations

import pytest
from scipy import stats  # type: ignore[import-untyped]

from fedgsca.paper.paired_test import paired_p, t_test, two_sided
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
