"""The page of a comparison: methods x noises x seeds. Its sections are functions at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.federation.records import finite
from fedgsca.lab.records import Comparison, ComparisonCell
from fedgsca.lab.report.comparison_columns import (
    MAX_PAIRS,
    class_tables,
    difference_sentences,
    expected_choice,
    explain_numbers,
    make_tables,
    overview_table,
    share_text,
)
from fedgsca.lab.report.comparison_rows import ComparisonRow, compare_rows
from fedgsca.lab.report.elements import (
    BulletList,
    Collapsible,
    HeatMatrix,
    MatrixGroup,
    Page,
    PageElement,
    PageSection,
    PlotGallery,
    PlotImage,
    Tile,
    count_matrix,
    matrix_width,
    score_number,
)
from fedgsca.lab.report.plots import (
    LineEnd,
    figure_svg,
    format_round_axis,
    label_line_ends,
    make_axes,
    method_entry,
    method_slot,
    slot_colour,
    slot_line_style,
    with_plot_style,
)
from fedgsca.lab.report.run_facts import describe_noises
from fedgsca.lab.report.run_reader import LoadedRun, read_run
from fedgsca.lab.table import Cell, LegendEntry, Row, Table
from fedgsca.support.text import join_words, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    sections = (result_section, learning_section, confusion_section, run_list_section)
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
        sections=[section for build in sections if (section := build(comparison))],
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


# ---- scores, confusions and runs ----

# tables of single conditions on the open page; more of them are folded
_MAX_OPEN_TABLES = 2


def result_section(comparison: LoadedComparison) -> PageSection | None:
    """An overview of several conditions, one table per condition, and the differences."""
    if not comparison.rows:
        return None
    blocks: list[PageElement] = []
    overview = overview_table(comparison.record)
    if overview is not None:
        blocks.append(overview)
    tables = make_tables(comparison.record, is_brief=True)
    for table in tables:
        is_open = len(tables) <= _MAX_OPEN_TABLES
        blocks.append(table if is_open else Collapsible(table.title, [table]))
    sentences = difference_sentences(comparison.record)
    if len(sentences) > MAX_PAIRS:  # the others are at the top of the page
        blocks.append(BulletList(sentences, "What can be told apart"))
    full_tables = make_tables(comparison.record)
    blocks.append(Collapsible("All numbers, as in compare.md and compare.csv", full_tables))
    classes = class_tables(comparison.record)
    if classes:
        blocks.append(Collapsible("Recall of every class", classes))
    intro = explain_numbers(comparison.record)
    legend = describe_noises(dict.fromkeys(row.noise_spec for row in comparison.rows))
    return PageSection("result", "Result", " ".join([*intro, legend]).strip(), blocks)


def confusion_section(comparison: LoadedComparison) -> PageSection | None:
    """Sums over the seeds, folded: many methods and noises have many matrices."""
    blocks: list[PageElement] = []
    for noise in comparison.noises:
        matrices = []
        for method, label in comparison.labels.items():
            runs = comparison.find_runs(method, noise)
            matrix = _sum_matrix(runs, f"{label}, noise {noise}")
            if matrix is not None:
                matrices.append(matrix)
        if matrices:
            group = MatrixGroup(matrices, matrix_width(len(matrices[0].rows)))
            blocks.append(Collapsible(f"Noise {noise}", [group]))
    if not blocks:
        return None
    intro = (
        "Test images of the last round, all seeds together: percent of the images of each class, "
        "with the number below."
    )
    return PageSection("confusion", "Which classes are confused", intro, blocks)


def _sum_matrix(runs: Sequence[LoadedRun], caption: str) -> HeatMatrix | None:
    """None without runs, or if the runs have different numbers of classes."""
    matrices = []
    classes: list[str] = []
    for run in runs:
        confusion = run.test_rounds[-1].confusion if run.test_rounds else None
        if confusion:
            matrices.append(confusion)
            classes = classes or run.classes
    if len({len(matrix) for matrix in matrices}) != 1:
        return None
    return count_matrix(caption, classes, np.sum(matrices, axis=0).tolist())


def run_list_section(comparison: LoadedComparison) -> PageSection | None:
    """Folded, because there are many."""
    rows: list[Row] = []
    for cell in comparison.cells:
        label = comparison.labels.get(cell.method, cell.label or cell.method)
        scores = [score_number(cell.f1), score_number(cell.best_f1)]
        has_page = (comparison.folder / cell.path / "report.html").is_file()
        link = f"{quote(cell.path)}/{'report.html' if has_page else ''}"
        folder = Cell(cell.path, link=link)
        rows.append([label, cell.condition, str(cell.seed), *scores, folder])
    if not rows:
        return None
    head = ["Method", "Noise", "Seed", "Macro F1", "Best", "Folder"]
    table = Table("All runs", head, rows, words=(1, 5))
    intro = (
        "Each folder holds the configuration, the log and the model of the run. `fedgsca report"
        " FOLDER` writes the report of a run; after that, and after writing this page again, the"
        " link leads to it."
    )
    return PageSection("runs", "The runs", intro, [Collapsible("All runs", [table])])


# ---- learning curves of all methods, drawn over each other ----

# round, from 1 -> one value per seed
RoundCurves = Mapping[int, Sequence[float]]


def learning_section(comparison: LoadedComparison) -> PageSection | None:
    """Macro F1 over the rounds: one picture per condition, if a method has several rounds."""
    pictures = []
    is_wide = len(comparison.noises) == 1
    for i, noise in enumerate(comparison.noises):
        curves = {}
        for method in comparison.labels:
            seed_curves = collect_curves(comparison.find_runs(method, noise))
            if seed_curves:
                curves[method] = seed_curves
        if not any(len(method_curves) > 1 for method_curves in curves.values()):
            continue
        ends = []
        for method, method_curves in curves.items():
            last = list(method_curves.values())[-1]
            ends.append(f"{comparison.labels[method]} {fmean(last):.3g}")
        alt = f"Noise {noise}, one line per method; in the last round: {', '.join(ends)}."
        names = (comparison.labels, f"Noise {noise}", f"f1-{i}")
        pictures.append(PlotImage(draw_method_curves(curves, *names, is_wide=is_wide), alt))
    if not pictures:
        return None
    intro = (
        "Macro F1 on the test set, percent, round by round: the line is the mean over the seeds, "
        "the band their range. Low values of the first rounds may lie below the plot. A curve that "
        "falls from its peak often belongs to a model that memorises wrong labels."
    )
    gallery = PlotGallery(pictures, "wide" if is_wide else "half", comparison.legend())
    return PageSection("learning", "Learning curves", intro, [gallery])


def collect_curves(runs: Sequence[LoadedRun]) -> RoundCurves:
    """Macro F1 over rounds, as far as all seeds have it."""
    values_of_round: dict[int, list[float]] = {}
    for run in runs:
        for record in run.metrics:
            value = finite(record.f1)
            if value is not None:
                values_of_round.setdefault(record.round + 1, []).append(value)
    num_seeds = max(map(len, values_of_round.values()), default=0)
    curves = {}
    for number in sorted(values_of_round):
        if len(values_of_round[number]) == num_seeds:
            curves[number] = values_of_round[number]
    return curves


@with_plot_style
def draw_method_curves(
    curves: Mapping[str, RoundCurves],
    labels: Mapping[str, str],
    title: str,
    name: str,
    *,
    is_wide: bool,
) -> str:
    """One line per method: the mean over the seeds, with a band over their range."""
    figure, axes = make_axes(1000, 360, margin_right=122) if is_wide else make_axes(460, 290)
    ends = []
    for method, method_curves in curves.items():
        last_value = draw_mean(axes, method_curves, method_slot(method))
        ends.append(LineEnd(last_value, labels[method], slot_colour(method_slot(method))))
    last_round = max(max(method_curves) for method_curves in curves.values())
    axes.set_ylim(*score_range(list(curves.values()), last_round))
    format_round_axis(axes, last_round)
    axes.set_title(title)
    if is_wide:
        label_line_ends(axes, ends, room=0.06)
    return figure_svg(figure, name)


def draw_mean(axes: Axes, curves: RoundCurves, slot: int, **style: Any) -> float:
    """Draw mean and range in the colour and dash of a slot. Returns the last value of the mean."""
    rounds = list(curves)
    means = [fmean(curves[number]) for number in rounds]
    if max(map(len, curves.values())) > 1:
        low = [min(curves[number]) for number in rounds]
        high = [max(curves[number]) for number in rounds]
        axes.fill_between(rounds, low, high, color=slot_colour(slot), alpha=0.16, lw=0)
    axes.plot(rounds, means, color=slot_colour(slot), ls=slot_line_style(slot), **style)
    return means[-1]


def score_range(curves: Sequence[RoundCurves], last_round: int) -> tuple[float, float]:
    """The lowest and the highest F1 of the plot.

    Low values of the steep first rounds lie below: they would press the differences together.
    The highest value of any round is always inside.
    """
    values: list[float] = []
    later_values: list[float] = []
    for curve in curves:
        for number, seed_values in curve.items():
            values += seed_values
            later_values += seed_values if number > last_round / 8 else ()
    low, high = min(later_values or values), max(values)
    padding = 0.06 * max(high - low, 4)
    return low - padding, min(high + padding, 101)
