"""Whether a comparison can show that its best method is better than the next one.

The rule is simple on purpose. A difference counts if there are at least MIN_SEEDS seeds and if it
is larger than two standard errors. The standard error adds two parts:

- the test images: a score p in percent of n images has the variance p (100 - p) / n, as a share of
  n images has. Macro F1 gives all classes the same weight, so n is K^2 / sum(1 / n_k) for K classes
  with n_k test images: all of them if the classes are equally frequent, far fewer if one is rare;
- the seeds: the variance between k seeds, divided by k.

Both are added for the two methods as if they were independent. They share test images and seeds, so
the true error is often smaller: the rule is careful, and its answer is "not shown", never "equal".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedgsca.experiment.records import Matrix
from fedgsca.report.comparison_tables import ComparisonRow
from fedgsca.report.loaded_comparison import LoadedComparison
from fedgsca.support.text import plural

# with fewer, the variation between seeds is hardly known
MIN_SEEDS = 3
_STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class Lead:
    """The first method of a noise compared with the second."""

    points: float
    # the difference that could be shown; None if neither test images nor seeds tell
    threshold: float | None
    seeds: int
    # test images; None if no run can be read any more
    images: int | None

    @property
    def is_shown(self) -> bool:
        """Whether seeds and test images suffice for this difference."""
        return self.seeds >= MIN_SEEDS and not self.is_within_error

    @property
    def is_within_error(self) -> bool:
        """Whether the difference is not larger than two standard errors."""
        return self.threshold is not None and self.points <= self.threshold

    def caution(self) -> str:
        """A sentence for people, without its capital letter; empty if the difference is shown."""
        seeds = plural(self.seeds, "seed")
        if self.is_shown:
            return ""
        if not self.is_within_error or self.threshold is None:
            return (
                f"no winner can be named, because {seeds} cannot show whether a difference of"
                f" {self.points:.1f} points is chance; compare at least {MIN_SEEDS} seeds."
            )
        basis = seeds
        if self.images is not None:
            basis = f"{plural(self.images, 'test image')} and {seeds}"
        return (
            f"no winner can be named, because {basis} cannot show a difference of"
            f" {self.points:.1f} points; it would have to be larger than about"
            f" {self.threshold:.1f} points."
        )


def caution_sentences(comparison: LoadedComparison) -> list[str]:
    """One sentence for each noise whose first method may be the first by chance."""
    sentences = []
    for noise in comparison.noises:
        lead = find_lead(comparison, noise)
        if lead is not None and not lead.is_shown:
            sentences.append(f"Noise {noise}: {lead.caution()}")
    return sentences


def find_lead(comparison: LoadedComparison, noise: str) -> Lead | None:
    """The lead of the best method under a noise; None with one method, or if two are equal.

    Over the seeds that all methods have.
    """
    rows = []
    for row in comparison.common_rows:
        if row.noise == noise and not row.reference and row.f1 is not None:
            rows.append(row)
    rows.sort(key=_mean_f1, reverse=True)
    if len(rows) < 2 or round(_mean_f1(rows[0]), 1) == round(_mean_f1(rows[1]), 1):
        return None
    pair = rows[:2]
    counts = _class_counts(comparison, pair)
    return Lead(
        points=_mean_f1(pair[0]) - _mean_f1(pair[1]),
        threshold=_needed_points(pair, counts),
        seeds=min(row.seeds for row in pair),
        images=sum(counts) if counts else None,
    )


def _mean_f1(row: ComparisonRow) -> float:
    return row.f1.mean if row.f1 else 0.0


def _class_counts(comparison: LoadedComparison, rows: Sequence[ComparisonRow]) -> list[int]:
    """Test images of every class that has any; empty if no run can be read."""
    for row in rows:
        for run in comparison.find_runs(row.method, row.noise):
            matrix: Matrix | None = run.test_rounds[-1].confusion if run.test_rounds else None
            if matrix:
                counts = [int(sum(line)) for line in matrix]
                return [count for count in counts if count > 0]
    return []


def _needed_points(rows: Sequence[ComparisonRow], counts: Sequence[int]) -> float | None:
    """Two standard errors of the difference between two rows, in points."""
    variances = []
    size = 0.0
    if counts:
        size = len(counts) ** 2 / sum(1 / count for count in counts)
    for row in rows:
        if row.f1 is None:
            continue
        if size:
            variances.append(row.f1.mean * (100 - row.f1.mean) / size)
        if row.f1.std is not None:
            variances.append(row.f1.std**2 / row.seeds)
    return _STANDARD_ERRORS * math.sqrt(sum(variances)) if variances else None
