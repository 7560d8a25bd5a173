"""When a comparison must not name a winner, and what its learning curves show."""

from __future__ import annotations

import pytest

from fedgsca.experiment.records import Comparison
from fedgsca.report.comparison_caution import Lead, caution_sentences, find_lead
from fedgsca.report.comparison_sections.method_curves import MethodCurves, score_range
from fedgsca.report.comparison_sentences import describe_comparison
from fedgsca.report.comparison_tables import compare_rows
from fedgsca.report.loaded_comparison import LoadedComparison


def make_comparison(**scores: tuple[float, ...]) -> LoadedComparison:
    """One F1 per seed and method, without run folders."""
    cells = []
    for method, values in scores.items():
        for seed, f1 in enumerate(values):
            cells.append({"method": method, "noise": "S40", "seed": seed, "f1": f1})
    tree = {"noises": ["S40"], "methods": list(scores), "cells": cells, "ceiling": {}}
    record = Comparison.from_json(tree)
    return LoadedComparison(record, compare_rows(record), {})


def test_few_images_and_one_seed_name_no_winner() -> None:
    lead = Lead(points=0.4, threshold=15.2, seeds=1, images=30)
    assert not lead.is_shown
    assert lead.caution() == (
        "no winner can be named, because 30 test images and 1 seed cannot show a difference of"
        " 0.4 points; it would have to be larger than about 15.2 points."
    )


def test_one_seed_is_not_enough_however_large_the_difference() -> None:
    comparison = make_comparison(fedavg=(60.0,), fedgsca=(80.0,))
    assert caution_sentences(comparison) == [
        "Noise S40: no winner can be named, because 1 seed cannot show whether a difference of"
        " 20.0 points is chance; compare at least 3 seeds."
    ]
    verdict = describe_comparison(comparison)[1]
    assert "is best" not in verdict and "No winner can be named" in verdict


def test_a_clear_difference_over_three_seeds_has_a_winner() -> None:
    comparison = make_comparison(fedavg=(60.0, 61.0, 62.0), fedgsca=(70.0, 71.0, 72.0))
    assert caution_sentences(comparison) == []
    assert "is best with" in describe_comparison(comparison)[1]


def test_a_difference_within_the_variation_of_the_seeds_has_none() -> None:
    comparison = make_comparison(fedavg=(50.0, 60.0, 70.0), fedgsca=(55.0, 65.0, 75.0))
    lead = find_lead(comparison, "S40")
    assert lead is not None and lead.is_within_error
    assert lead.threshold == pytest.approx(2 * (2 * 100 / 3) ** 0.5)


@pytest.mark.parametrize("scores", [{"fedavg": (60.0,)}, {"fedavg": (60.0,), "fedgsca": (60.0,)}])
def test_one_method_and_equal_methods_need_no_caution(scores: dict[str, tuple[float, ...]]) -> None:
    assert caution_sentences(make_comparison(**scores)) == []


def test_the_plot_contains_the_highest_value_of_the_first_rounds() -> None:
    values = {1: [13.5], **{number: [10.0] for number in range(2, 17)}}
    low, high = score_range({"fedavg": MethodCurves("FedAvg", values)}, 16)
    assert low < 10.0 and high > 13.5


def test_low_first_rounds_lie_below_the_plot() -> None:
    values = {1: [5.0], **{number: [70.0 + number] for number in range(2, 17)}}
    low, high = score_range({"fedavg": MethodCurves("FedAvg", values)}, 16)
    assert 5.0 < low < 73.0 and high > 86.0
