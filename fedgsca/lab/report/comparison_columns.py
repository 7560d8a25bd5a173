"""The columns of every table of a comparison, in one list: `compare`, `table`, `demo`, the report.

A column is a heading and a function from a row to a cell (None: the row has no such number). An
entry of COLUMNS is in Markdown, csv and the page, an `is_brief` one also in the terminal and in
LaTeX. A column is left out where no row has a number for it. A new number of a run also needs a
field of `ComparisonCell` (lab/records.py), which `make_cell` (lab/comparison.py) fills in, and its
name in MEASURES (comparison_rows.py), without which the column is left out everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedgsca.lab.records import Comparison, PairedDifference, setting_name, setting_value
from fedgsca.lab.report.comparison_rows import (
    BASELINE,
    MIN_GAP,
    ComparisonRow,
    common_seeds,
    compare_rows,
    mean_std,
    rank_agreement,
)
from fedgsca.lab.report.plots import method_entry
from fedgsca.lab.statistic import describe
from fedgsca.lab.table import Cell, Row, Table
from fedgsca.support.text import DASH, duration, number, percent, plural, signed, size_text

NO_GAP = f"no recovery: the ceiling is less than {MIN_GAP:g} point above FedAvg"
# sentences about pairs at the top of a page; more of them are a list below the tables
MAX_PAIRS = 6
FLAGGED_LABELS = "Labels flagged"


@dataclass(frozen=True)
class ComparisonColumn:
    """A column of the tables of a comparison."""

    title: str
    make_cell: Callable[[ComparisonRow], Cell | None]
    is_brief: bool = False


def _score(key: str, title: str, *, is_brief: bool = False) -> ComparisonColumn:
    """A score in percent, mean ± standard deviation over the seeds."""

    def make_cell(row: ComparisonRow) -> Cell | None:
        if key not in row.stats:
            return None
        stat = row.stats[key]
        data = {f"{key}_mean": stat.mean, f"{key}_std": stat.std}
        mark: Literal["", "best"] = "best" if key == "f1" and row.is_winner else ""
        return Cell(stat.text(), mark, data=data)

    return ComparisonColumn(title, make_cell, is_brief)


def _balanced_cell(row: ComparisonRow) -> Cell | None:
    """Balanced accuracy; the csv has the recall of every class beside it."""
    stat = row.stats.get("recall")
    if stat is None:
        return None
    data = {"recall_mean": stat.mean, "recall_std": stat.std}
    data |= {f"recall of {name}": recall for name, recall in row.class_recall.items()}
    return Cell(stat.text(), data=data)


def _number(
    key: str, title: str, form: Callable[[float], str], *, is_brief: bool = False
) -> ComparisonColumn:
    """Another number of a run, mean over the seeds."""

    def make_cell(row: ComparisonRow) -> Cell | None:
        if key not in row.stats:
            return None
        mean = row.stats[key].mean
        return Cell(form(mean), data={key: mean})

    return ComparisonColumn(title, make_cell, is_brief)


def _printed(key: str, title: str, *, is_brief: bool = False) -> ComparisonColumn:
    """What the publication prints."""

    def make_cell(row: ComparisonRow) -> Cell | None:
        if key not in row.printed_scores:
            return None
        score = row.printed_scores[key]
        text = f"{score.mean:g}" if score.std is None else f"{score.mean:.1f} ± {score.std:.1f}"
        return Cell(text, data={f"printed_{key}_mean": score.mean, f"printed_{key}_std": score.std})

    return ComparisonColumn(title, make_cell, is_brief)


def _time(key: str, title: str) -> ComparisonColumn:
    """Seconds until a target, where a comparison measures them."""

    def make_cell(row: ComparisonRow) -> Cell | None:
        time = row.times.get(key)
        if time is None or time.seconds is None:
            return None
        text = duration(time.seconds)
        if time.num_reached < time.num_seeds:
            text += f" ({time.num_reached}/{time.num_seeds} seeds)"
        return Cell(text, data={key: time.seconds, f"{key}_reached": time.num_reached})

    return ComparisonColumn(title, make_cell, is_brief=True)


def _recovery_cell(row: ComparisonRow) -> Cell | None:
    if row.recovery is None:
        return None
    return Cell(share_text(row.recovery), data={"recovery": row.recovery})


def share_text(value: float) -> str:
    """A share that can be negative: 0.75, −0.12; what rounds to zero has no sign."""
    return signed(value, 2).removeprefix("+")


def _difference_cell(row: ComparisonRow) -> Cell | None:
    if row.difference is None:
        return None
    entry = row.difference
    data = {
        "difference": entry.points,
        "difference_low": entry.low,
        "difference_high": entry.high,
        "difference_p": entry.p,
    }
    return Cell(difference_text(entry), data=data)


def difference_text(entry: PairedDifference) -> str:
    """The difference to the reference with its interval: "+3.1 (+0.4 to +5.9)"."""
    text = signed(entry.points)
    if entry.low is None or entry.high is None:
        return text
    return f"{text} ({signed(entry.low)} to {signed(entry.high)})"


def _seeds_cell(row: ComparisonRow) -> Cell:
    return Cell(str(len(row.seeds)), data={"seeds": len(row.seeds)})


def _seconds_text(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


COLUMNS: tuple[ComparisonColumn, ...] = (
    _score("f1", "Macro F1", is_brief=True),
    _printed("f1", "Printed F1", is_brief=True),
    ComparisonColumn("Balanced accuracy", _balanced_cell, is_brief=True),
    _printed("recall", "Printed recall"),
    _score("precision", "Precision"),
    _printed("precision", "Printed precision"),
    _score("best_f1", "Best round's F1"),
    _score("stopped_f1", "F1 with early stopping", is_brief=True),
    _number("kappa", "Quadratic kappa", lambda value: f"{value:.2f}", is_brief=True),
    ComparisonColumn("Recovery", _recovery_cell, is_brief=True),
    ComparisonColumn("Difference (95 %)", _difference_cell, is_brief=True),
    _score("expected_f1", "Expected F1", is_brief=True),
    _number("flagged_labels", FLAGGED_LABELS, percent),
    _score("auroc", "AUROC"),
    _score("average_precision", "Average precision"),
    _score("ece", "Calibration error"),
    _number("stability", "Stability", lambda value: f"{value:.3g}"),
    _time("seconds_to_best", "Time to FedAvg's best"),
    _time("seconds_to_goal", "Time to 95 % of the ceiling"),
    _number("seconds_per_round", "s/round", _seconds_text, is_brief=True),
    _number("bytes_down", "Received/round", size_text),
    _number("bytes_up", "Sent/round", size_text, is_brief=True),
    ComparisonColumn("Seeds", _seeds_cell, is_brief=True),
)


def make_tables(comparison: Comparison, *, is_brief: bool = False) -> list[Table]:
    """One table per condition."""
    rows = compare_rows(comparison)
    tables = []
    for condition in dict.fromkeys(row.noise for row in rows):
        table = _condition_table(
            comparison, [row for row in rows if row.noise == condition], is_brief=is_brief
        )
        tables.append(table)
    return tables


def _condition_table(
    comparison: Comparison, rows: Sequence[ComparisonRow], *, is_brief: bool
) -> Table:
    columns = [column for column in COLUMNS if column.is_brief or not is_brief]
    filled_columns = []
    for column in columns:
        if any(column.make_cell(row) is not None for row in rows):
            filled_columns.append(column)
    common_notes = _common_notes(rows)
    table_rows = []
    for row in rows:
        own_notes = tuple(_sentence(note) for note in row.notes if note not in common_notes)
        cells = [column.make_cell(row) or DASH for column in filled_columns]
        table_rows.append([name_cell(row, own_notes), *cells])
    first = rows[0]
    data: dict[str, object] = {"noise": first.noise_spec}
    if first.variant.model:
        data["network"] = first.variant.model
    for key, value in first.variant.settings.items():
        data[setting_name(key)] = setting_value(value)
    return Table(
        f"Noise {first.noise}",
        ["Method", *(column.title for column in filled_columns)],
        table_rows,
        note=" ".join(_table_notes(comparison, rows, common_notes)),
        data=data,
    )


def name_cell(row: ComparisonRow, notes: tuple[str, ...] = ()) -> Cell:
    """The first cell of a row: the method with its colour, and the footnotes of the row."""
    data = {"method": row.method, "label": row.label}
    if row.is_reference:
        return Cell(row.label, "reference", data=data)
    return Cell(row.label, notes=notes, data=data, key=method_entry(row.method, row.label))


def _common_notes(rows: Sequence[ComparisonRow]) -> list[str]:
    """Notes that all methods of a table have: they are said once."""
    methods = [row for row in rows if not row.is_reference]
    first = methods[0].notes if methods else ()
    common_notes = set(first)
    for row in methods:
        common_notes &= set(row.notes)
    return [note for note in first if note in common_notes]


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."


def _table_notes(
    comparison: Comparison, rows: Sequence[ComparisonRow], common_notes: Sequence[str]
) -> list[str]:
    """What is said below a table: how its numbers came about, as far as all rows share it."""
    notes = [_sentence(note) for note in common_notes]
    has_ceiling = any(row.is_reference for row in rows)
    has_baseline = any(row.method == BASELINE for row in rows)
    if has_ceiling and has_baseline and all(row.recovery is None for row in rows):
        notes.append(_sentence(NO_GAP))
    references = [row.difference.reference for row in rows if row.difference is not None]
    if references:
        label = next((row.label for row in rows if row.method == references[0]), references[0])
        differences = [row.difference for row in rows if row.difference is not None]
        is_single = all(item.seeds == 1 and item.low is not None for item in differences)
        suffix = "; one seed: the intervals are over test images only" if is_single else ""
        notes.append(f"Difference: to {label}{suffix}.")
    rho = rank_agreement(rows)
    if rho is not None:
        notes.append(f"Order by F1 here and in print: Spearman's rho {share_text(rho)}.")
    cells = [cell for cell in comparison.cells if cell.condition == rows[0].noise]
    if any(cell.seed not in common_seeds(cells) for cell in cells):
        notes.append(
            "Some methods have more seeds than others, so that their means cannot be compared;"
            " differences are over common seeds."
        )
    return notes


def overview_table(comparison: Comparison) -> Table | None:
    """Macro F1 of every method (rows) and condition (columns); None for a single condition."""
    rows = compare_rows(comparison)
    conditions = list(dict.fromkeys(row.noise for row in rows))
    if len(conditions) < 2:
        return None
    lines: list[Row] = []
    for method in dict.fromkeys(row.method for row in rows):
        members = {row.noise: row for row in rows if row.method == method}
        cells = [_f1_cell(members.get(condition)) for condition in conditions]
        lines.append([name_cell(next(iter(members.values()))), *cells])
    lines.sort(key=lambda line: isinstance(line[0], Cell) and line[0].mark == "reference")
    note = "Bold: better than every other method of the column." if comparison.winners else ""
    return Table("Macro F1 of all conditions", ["Method", *conditions], lines, note=note)


def _f1_cell(row: ComparisonRow | None) -> str | Cell:
    if row is None or row.f1 is None:
        return DASH
    data = {f"f1_{row.noise}_mean": row.f1.mean, f"f1_{row.noise}_std": row.f1.std}
    return Cell(row.f1.text(), "best" if row.is_winner else "", data=data)


def class_tables(comparison: Comparison) -> list[Table]:
    """Recall of every method (rows) and class (columns), one table per condition."""
    rows = [row for row in compare_rows(comparison) if row.class_recall]
    tables = []
    for condition in dict.fromkeys(row.noise for row in rows):
        members = [row for row in rows if row.noise == condition]
        names = [name for name in comparison.classes or () if name in members[0].class_recall]
        names = names or list(members[0].class_recall)
        lines: list[Row] = []
        for row in members:
            cells = [number(row.class_recall.get(name)) for name in names]
            lines.append([name_cell(row), *cells])
        title = f"Recall of every class in the last round, noise {condition}"
        tables.append(Table(title, ["Method", *names], lines))
    return tables


def explain_numbers(comparison: Comparison) -> list[str]:
    """What the numbers of all tables mean, as sentences."""
    rows = compare_rows(comparison)
    text = "Scores are percentages, means of the last five rounds"
    if any(len(row.seeds) > 1 for row in rows):
        text += " ± standard deviation over the seeds"
    sentences = [f"{text}."]
    sentences.append("Balanced accuracy is the macro recall.")
    if any(row.is_winner for row in rows):
        sentences.append(
            "A marked F1 is better than that of every other method of its table (paired over seeds"
            " and test images, corrected for their number)."
        )
    if any(row.is_reference for row in rows):
        sentences.append("The ceiling is FedAvg without the wrong labels.")
    if any(row.recovery is not None for row in rows):
        sentences.append("Recovery is (F1 - FedAvg) / (ceiling - FedAvg) of the printed means.")
    scores = [score for score in (comparison.clean or {}).values() if score == score]
    if scores:
        sentences.append(f"Without noise FedAvg reaches {mean_std(scores).text()}.")
    return [*sentences, *comparison.notes]


def difference_sentences(comparison: Comparison) -> list[str]:
    """One sentence per pair; with several conditions it names its own."""
    rows = compare_rows(comparison)
    labels = {row.method: row.label for row in rows}
    conditions = {row.noise for row in rows}
    sentences = []
    for row in rows:
        entry = row.difference
        if entry is not None:
            text = describe(entry, row.label, labels.get(entry.reference, entry.reference))
            sentences.append(f"Noise {row.noise}: {text}" if len(conditions) > 1 else text)
    return sentences


def expected_choice(comparison: Comparison) -> str:
    """The settings with the highest expected F1, for a choice without a true label; or empty."""
    rows = [row for row in compare_rows(comparison) if "expected_f1" in row.stats]
    if len(rows) < 2:
        return ""
    best = max(rows, key=lambda row: row.stats["expected_f1"].mean)
    condition = best.variant.text or f"noise {best.noise}"
    return (
        f"Highest expected F1, for which no true label was used: {best.label} with {condition},"
        f" {best.stats['expected_f1'].mean:.1f} (of {plural(len(rows), 'candidate')})."
    )
