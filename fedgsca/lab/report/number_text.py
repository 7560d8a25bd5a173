"""Numbers of a report as text, with spaces at which a line does not break."""

from __future__ import annotations

from collections.abc import Iterable

from fedgsca.federation.records import ScoreInterval, finite
from fedgsca.support.text import DASH, NBSP, number, percent


def percent_text(share: float | None, digits: int = 0) -> str:
    """A share of 1 as a percentage: 0.204 -> 20 %; a dash if there is none."""
    return percent(finite(share), digits, NBSP)


def score_number(value: float | None) -> str:
    """A score in percent without the sign: 71.3; a dash if there is none."""
    return number(finite(value))


def bounds_text(interval: ScoreInterval | None) -> str:
    """The ends of an interval: 80.1 to 88.0; a dash if there is none."""
    if interval is None or interval.low is None or interval.high is None:
        return DASH
    return f"{interval.low:.1f}{NBSP}to{NBSP}{interval.high:.1f}"


def ratio_text(value: float | None) -> str:
    """A ratio: 0.71; a dash if there is none."""
    return number(finite(value), 2)


def count_text(value: float | None) -> str:
    """A count with separators: 12,345; a dash if there is none."""
    value = finite(value)
    return DASH if value is None else f"{value:,.0f}"


def seconds_text(value: float | None) -> str:
    """A time with two or three digits: 0.21 s, 14.2 s, 3.5 min, 2.1 h; a dash if there is none."""
    seconds = finite(value)
    if seconds is None:
        return DASH
    if seconds < 1:
        return f"{seconds:.2g}{NBSP}s"
    if seconds < 120:
        return f"{seconds:.1f}{NBSP}s"
    if seconds < 7200:
        return f"{seconds / 60:.1f}{NBSP}min"
    return f"{seconds / 3600:.1f}{NBSP}h"


def range_text(numbers: Iterable[int]) -> str:
    """Numbers as ranges: 1, 2, 3, 7 -> 1–3, 7."""
    ranges: list[tuple[int, int]] = []
    for value in sorted(set(numbers)):
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], value)
        else:
            ranges.append((value, value))
    texts = []
    for first, last in ranges:
        texts.append(str(first) if first == last else f"{first}–{last}")
    return ", ".join(texts)
