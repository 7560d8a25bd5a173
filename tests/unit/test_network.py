"""What a site answers, read by a coordinator who trusts none of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedgsca.engine.network import SiteMessage, read_message

GOOD: dict[str, Any] = {
    "kind": "train", "round": 2, "site": "north", "num_samples": 7, "error": None, "observed": {}, "seconds": 1.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (
            {"num_samples": math.inf},
            "its message cannot be used (OverflowError",
        ),  # JSON knows Infinity
        ({"num_samples": "many"}, "its message cannot be used (ValueError"),
        ({"round": math.inf}, "its message cannot be used (OverflowError"),
        ({"round": 1}, "it answered train of round 2"),
        ({"seconds": None}, "its message cannot be used (TypeError"),
        ({"seconds": math.nan}, "its message cannot be used (ValueError"),
        ({"observed": 3}, "its message cannot be used (TypeError"),
        (
            {"observed": {"num_samples": 1}},
            "its message cannot be used (ValueError: num_samples is not a number",
        ),
        (
            {"observed": {"noisy_auroc": math.inf}},
            "its message cannot be used (ValueError: noisy_auroc is not a number",
        ),
        (
            {"observed": {"pseudo_count": "<b>"}},
            "its message cannot be used (ValueError: pseudo_count is not a number",
        ),
        ({"error": "it ran out of memory"}, "it ran out of memory"),
    ],
)
def test_an_odd_answer_becomes_a_reason_and_ends_nothing(
    header: dict[str, Any], reason: str
) -> None:
    reply = read_message(SiteMessage("1", {**GOOD, **header}, {}, {}), "north", "train", 2)
    assert reply.update is None and reply.error is not None and reply.error.startswith(reason)


def test_a_good_answer_is_an_update() -> None:
    seen = {"noisy_auroc": 0.5, "pseudo_accuracy": None}
    reply = read_message(SiteMessage("1", {**GOOD, "observed": seen}, {}, {}), "north", "train", 2)
    assert (
        reply.update is not None
        and (reply.update.site, reply.update.num_samples) == ("north", 7)
        and reply.observed == seen
    )
