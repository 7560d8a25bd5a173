"""A comparison as its page needs it: compare.json, the rows of its tables, and its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

from fedgsca.errors import RunFolderError
from fedgsca.experiment.records import Comparison, ComparisonCell
from fedgsca.report.comparison_tables import ComparisonRow, compare_rows, keep_common_seeds
from fedgsca.report.elements import LegendEntry
from fedgsca.report.palette import method_slot, slot_dashes, slot_token
from fedgsca.report.run_facts import method_title
from fedgsca.report.run_reader import LoadedRun, read_run


@dataclass(frozen=True)
class LoadedComparison:
    """compare.json, its rows, and those of its runs that can still be read."""

    record: Comparison
    rows: Sequence[ComparisonRow]
    # (noise, method) -> one run per seed
    runs: Mapping[tuple[str, str], Sequence[LoadedRun]]
    # of the comparison; the paths of its runs are relative to it
    folder: Path = Path()

    @property
    def cells(self) -> list[ComparisonCell]:
        """The finished runs."""
        return [cell for cell in self.record.cells if cell.method and cell.noise]

    @cached_property
    def common_rows(self) -> list[ComparisonRow]:
        """The rows over the seeds that all methods of a condition have: what can be compared."""
        return compare_rows(keep_common_seeds(self.record), method_title)

    @property
    def noises(self) -> list[str]:
        """The conditions, in the order of the rows: noises, and what varies beside them."""
        return list(dict.fromkeys(row.noise for row in self.rows))

    @property
    def condition_word(self) -> str:
        """What the conditions differ in, as one word."""
        return "condition" if len(self.record.variants) > 1 else "noise"

    @property
    def labels(self) -> dict[str, str]:
        """The methods with their names for people, in the order of the rows."""
        return {row.method: row.label for row in self.rows if not row.reference}

    @property
    def has_ceiling(self) -> bool:
        """Whether FedAvg without the wrong labels is one of the rows."""
        return any(row.reference for row in self.rows)

    def find_common_row(self, method: str, noise: str) -> ComparisonRow | None:
        """The row of a method under a noise, over the seeds that all methods have."""
        for row in self.common_rows:
            if row.method == method and row.noise == noise:
                return row
        return None

    def find_row(self, method: str, noise: str) -> ComparisonRow | None:
        """The row of a method under a noise."""
        for row in self.rows:
            if row.method == method and row.noise == noise:
                return row
        return None

    def find_runs(self, method: str, noise: str) -> Sequence[LoadedRun]:
        """The runs of a method under a noise, one per seed."""
        return self.runs.get((noise, method), ())

    def mean_over_noises(self, method: str, key: str) -> float | None:
        """The mean of one number of a method over all noises; None if it is not known."""
        values = []
        for row in self.rows:
            if row.method == method and key in row.stats:
                values.append(row.stats[key].mean)
        return fmean(values) if values else None

    def legend(self) -> list[LegendEntry]:
        """One entry per method."""
        return [method_entry(method, label) for method, label in self.labels.items()]


def method_entry(method: str, label: str) -> LegendEntry:
    """A method in a legend or a table, with its colour and dash."""
    slot = method_slot(method)
    return LegendEntry(label, slot_token(slot), "line", slot_dashes(slot))


def load_comparison(path: Path, record: Comparison) -> LoadedComparison:
    """The rows and runs of a comparison in the folder `path`."""
    rows = compare_rows(record, method_title)
    return LoadedComparison(record, rows, _read_runs(path, record), path)


def _read_runs(path: Path, record: Comparison) -> dict[tuple[str, str], list[LoadedRun]]:
    runs: dict[tuple[str, str], list[LoadedRun]] = {}
    for cell in record.cells:
        try:
            run = read_run(path / cell.path, with_losses=False)
        except RunFolderError:
            # moved or deleted: its numbers are in compare.json, its curves are not
            continue
        runs.setdefault((cell.condition, cell.method), []).append(run)
    return runs
