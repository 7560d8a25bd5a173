"""The arithmetic of the time to accuracy, by hand."""

from __future__ import annotations

import math

import pytest

from benchmarks.speed import Measurement
from fedgsca.config import build
from fedgsca.errors import ConfigError
from fedgsca.grid.time_to_accuracy import (
    Curve,
    format_ratio,
    summarise_times,
    timed_tree,
    to_csv,
    to_markdown,
)


def test_a_curve_reaches_a_score_in_its_first_round_at_or_above_it() -> None:
    curve = Curve([10.0, 30.0, 20.0, 40.0], [1.0, 2.0, 3.0, 4.0])
    assert curve.reach(30.0) == (2, 2.0)
    assert curve.reach(30.5) == (4, 4.0)
    assert curve.reach(40.5) is None
    assert curve.final == pytest.approx(25.0)


def test_times_are_ratios_to_fedavg_or_seconds_where_fedavg_never_arrives() -> None:
    fedavg = Curve([10.0, 30.0], [1.0, 2.0])
    assert fedavg.seconds_until(30.0) == 2.0
    assert fedavg.seconds_until(50.0) == math.inf
    assert format_ratio([3.0], [2.0]) == "1.50"
    assert format_ratio([6.0], [math.inf]) == "6.00 s"
    assert format_ratio([math.inf, math.inf], [2.0, 2.0]) == "–"


def test_a_missed_goal_says_why() -> None:
    row = Measurement("a / b", 1.2, 1.05, previous="1.3", reason="one more pass")
    assert not row.is_met
    assert str(row).endswith("1.3  MISSED: one more pass")
    assert "MISSED" not in str(Measurement("a / b", 1.0, 1.05))


def test_a_summary_has_the_times_of_each_seed_and_their_median_ratio() -> None:
    """Targets: FedAvg's best 40 and 30; 95 % of the ceiling, 57 and 57."""
    ceiling = Curve([60.0, 60.0], [1.0, 2.0])
    runs = {
        5: {
            "fedavg": Curve([40.0, 35.0], [1.0, 2.0]),
            "fedgsca": Curve([20.0, 58.0], [3.0, 6.0]),
            "ceiling": ceiling,
        },
        7: {
            "fedavg": Curve([10.0, 30.0], [1.0, 2.0]),
            "fedgsca": Curve([31.0, 50.0], [3.0, 6.0]),
            "fedprox": Curve([10.0, 20.0], [1.0, 2.0]),
            "ceiling": ceiling,
        },
    }
    group = summarise_times("noise S40", runs, ["fedavg", "fedgsca", "fedprox"])
    assert group.best == {5: 40.0, 7: 30.0}
    assert group.goal == pytest.approx({5: 57.0, 7: 57.0})
    fedavg, fedgsca, fedprox = group.rows
    assert fedgsca.to_best.rounds == (2, 1)
    assert fedgsca.to_best.seconds == (6.0, 3.0)
    assert fedgsca.to_best.ratio == pytest.approx(3.75)  # of 6 / 1 and 3 / 2
    assert fedgsca.to_share.seconds == (6.0, None)
    assert fedgsca.to_share.ratio is None and fedgsca.to_share.text == "–"
    assert fedgsca.cost == pytest.approx(3.0)
    assert fedavg.to_share.text == "–" and fedavg.to_share.arrivals == "0/2"
    assert fedprox.seeds == (7,)
    assert fedprox.to_best.arrivals == "0/1"  # the other seed has no run of it
    lines = to_csv([group]).splitlines()
    assert len(lines) == 1 + 2 + 2 + 1
    assert lines[4] == "noise S40,fedgsca,7,CPU seconds,1,3.0,,"
    # F1: the mean of 39 and 40.5
    assert "| FedGSCA | 39.8 | 3.00 | 3.75 | 2/2 | – | 1/2 |" in to_markdown([group])


def test_every_round_is_scored_and_a_section_that_is_no_table_stays_for_the_check() -> None:
    assert timed_tree({"train": {"rounds": 3}}) == {
        "train": {"rounds": 3, "threads": 1},
        "federation": {"eval_every": 1},
    }
    assert timed_tree({"train": {"threads": 2}})["train"]["threads"] == 2
    with pytest.raises(ConfigError) as caught:
        timed_tree({"federation": {"eval_every": 2}})
    assert caught.value.code == "grid.rounds-without-a-score"
    with pytest.raises(ConfigError, match="federation"):
        build(timed_tree({"federation": 3}))
