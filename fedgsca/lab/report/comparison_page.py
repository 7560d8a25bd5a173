"""The page of a comparison: methods x noises x seeds.

Its sections are the modules of fedgsca/lab/report/comparison_sections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgsca.errors import RunFolderError
from fedgsca.lab.records import Comparison, ComparisonCell
from fedgsca.lab.report.comparison_columns import (
    MAX_PAIRS,
    difference_sentences,
    expected_choice,
    share_text,
)
from fedgsca.lab.report.comparison_rows import ComparisonRow, compare_rows
from fedgsca.lab.report.elements import COMPARISON_SECTIONS, Page, Tile, build_sections
from fedgsca.lab.report.number_text import score_number
from fedgsca.lab.report.plots import method_entry
from fedgsca.lab.report.run_reader import LoadedRun, read_run
from fedgsca.lab.table import LegendEntry
from fedgsca.support.text import join_words, plural

# conditions that are named in the subtitle
_MAX_NOISES = 4


@dataclass(frozen=True)
class LoadedComparison:
    """compare.json, its rows, and those of its runs that can still be read."""

    record: Comparison
    rows: Sequence[ComparisonRow]
    # (condition, method) -> one run per seed
    runs: Mapping[tuple[str, str], Sequence[LoadedRun]]
    # of the comparison; the paths of its runs are relative to it
    folder: Path = Path()

    @property
    def cells(self) -> list[ComparisonCell]:
        """The finished runs."""
        return [cell for cell in self.record.cells if cell.method and cell.noise]

    @property
    def noises(self) -> list[str]:
        """The conditions, in the order of the rows: noises, and what varies beside them."""
        return list(dict.fromkeys(row.noise for row in self.rows))

    @property
    def labels(self) -> dict[str, str]:
        """The methods with their names for people, in the order of the rows."""
        return {row.method: row.label for row in self.rows if not row.is_reference}

    def find_runs(self, method: str, noise: str) -> Sequence[LoadedRun]:
        """The runs of a method under a condition, one per seed."""
        return self.runs.get((noise, method), ())

    def legend(self) -> list[LegendEntry]:
        """One entry per method."""
        return [method_entry(method, label) for method, label in self.labels.items()]


def load_comparison(path: Path, record: Comparison) -> LoadedComparison:
    """The rows and runs of a comparison in the folder `path`."""
    runs: dict[tuple[str, str], list[LoadedRun]] = {}
    for cell in record.cells:
        try:
            run = read_run(path / cell.path, with_losses=False)
        except RunFolderError:
            # moved or deleted: its numbers are in compare.json, its curves are not
            continue
        runs.setdefault((cell.condition, cell.method), []).append(run)
    return LoadedComparison(record, compare_rows(record), runs, path)


def build_comparison_page(path: Path, record: Comparison) -> Page:
    """The page of the comparison in the folder `path`, finished or not."""
    comparison = load_comparison(path, record)
    num_planned = len(record.methods) * len(record.conditions) * len(record.seeds)
    num_finished = len(comparison.cells)
    banner = ""
    if num_finished < num_planned:
        banner = f"Unfinished: {num_finished} of {num_planned} runs"
    return Page(
        title=record.title or f"Comparison of {plural(len(comparison.labels), 'method')}",
        subtitle=_subtitle(comparison),
        lead=describe_comparison(comparison),
        tiles=_tiles(comparison),
        sections=build_sections(COMPARISON_SECTIONS, comparison),
        banner=banner,
        footer=f"fedgsca · {path.resolve().name}",
    )


def _subtitle(comparison: LoadedComparison) -> str:
    record = comparison.record
    parts = [record.data] if record.data else []
    parts += [f"noise {noise}" for noise in comparison.noises[:_MAX_NOISES]]
    parts.append(plural(len(record.seeds), "seed"))
    return " · ".join(parts)


def describe_comparison(comparison: LoadedComparison) -> list[str]:
    """What was compared, and what can be told apart."""
    labels = list(comparison.labels.values())
    if not labels:
        return ["No run is finished yet."]
    verb = "was" if len(labels) == 1 else "were"
    sentences = [
        f"{join_words(labels)} {verb} trained on the same data with the same wrong labels."
    ]
    pairs = difference_sentences(comparison.record)
    sentences += pairs[:MAX_PAIRS]
    if len(pairs) > MAX_PAIRS:
        sentences.append(f"{len(pairs) - MAX_PAIRS} more pairs are described below.")
    choice = expected_choice(comparison.record)
    return [*sentences, choice] if choice else sentences


def _tiles(comparison: LoadedComparison) -> list[Tile]:
    """F1 and recovery of every method under a single condition."""
    if len(comparison.noises) != 1:
        return []
    tiles = []
    for row in comparison.rows:
        if row.f1 is not None:
            note = "" if row.recovery is None else f"recovery {share_text(row.recovery)}"
            value = score_number(row.f1.mean)
            tiles.append(Tile(row.label, value, "%", note or "macro F1", strong=row.is_winner))
    return tiles
