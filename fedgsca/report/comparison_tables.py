"""The tables of a comparison: mean ± standard deviation over seeds, ranks, recovery.

recovery = (F1 - F1 of FedAvg) / (F1 of the ceiling - F1 of FedAvg), seed by seed; the ceiling is
FedAvg without the wrong labels. This module imports nothing heavy: the command line uses it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from fedgsca.experiment.records import (
    NO_VARIANT,
    Comparison,
    ComparisonCell,
    ComparisonVariant,
    MethodInterval,
    ScoreInterval,
    finite,
    setting_name,
    setting_value,
)
from fedgsca.support.csv_table import render_csv
from fedgsca.support.latex import escape
from fedgsca.support.markdown import markdown_table
from fedgsca.support.text import DASH, signed, size_text

BASELINE = "fedavg"
# fields of ComparisonCell in percent, where more is better
SCORES = ("f1", "recall", "precision", "best_f1")
# fields of ComparisonCell that a run costs
COSTS = ("seconds_per_round", "bytes_up", "bytes_down")
# fields of ComparisonCell about the last model's probabilities
QUALITIES = ("auroc", "average_precision", "ece")
# Points of F1. Where wrong labels cost FedAvg less, a ratio to that cost would be chance.
MIN_LOSS = 1.0


@dataclass(frozen=True)
class MeanStd:
    """Mean and sample standard deviation over seeds; None for a single seed."""

    mean: float
    std: float | None = None

    def text(self, digits: int = 1) -> str:
        """For people: 86.4 ± 0.5."""
        mean = f"{self.mean:.{digits}f}"
        return mean if self.std is None else f"{mean} ± {self.std:.{digits}f}"


@dataclass(frozen=True)
class ComparisonRow:
    """One method under one condition: a noise, and a variant where network or settings vary."""

    noise: str
    method: str
    label: str
    seeds: int
    # keys of SCORES, COSTS and QUALITIES, as far as they are known
    stats: Mapping[str, MeanStd]
    recovery: float | None = None
    # keys of SCORES in which this method is the first of its noise, ties included
    best: frozenset[str] = frozenset()
    second: frozenset[str] = frozenset()
    # the ceiling: not ranked, because no method knows which labels are wrong
    reference: bool = False
    # the network and the varied settings; `noise` names them, too
    variant: ComparisonVariant = NO_VARIANT

    @property
    def model(self) -> str:
        """The network, in a comparison of several; else empty."""
        return self.variant.model or ""

    @property
    def noise_spec(self) -> str:
        """The noise without the variant."""
        return self.noise.removesuffix(self.variant.join(""))

    @property
    def f1(self) -> MeanStd | None:
        """Macro F1; None if it is not known."""
        return self.stats.get("f1")


def mean_std(values: Sequence[float]) -> MeanStd:
    """Mean and sample standard deviation of at least one value."""
    return MeanStd(fmean(values), stdev(values) if len(values) > 1 else None)


def compare_rows(
    comparison: Comparison, name_method: Callable[[str], str] = str
) -> list[ComparisonRow]:
    """Rows in the order of the comparison's noises and methods; the ceiling ends each noise.

    `name_method` gives the name for people of a method whose cells have none. Where methods have
    different seeds, none is marked as the best.
    """
    cells = [cell for cell in comparison.cells if cell.method and finite(cell.f1) is not None]
    rows: list[ComparisonRow] = []
    for noise in _in_order(comparison.conditions, [cell.condition for cell in cells]):
        noise_cells = [cell for cell in cells if cell.condition == noise]
        ceiling = comparison.ceiling.get(noise, {})
        method_rows = []
        methods = _in_order(comparison.methods, [cell.method for cell in noise_cells])
        for method in methods:
            row = _make_row(method, noise_cells, ceiling, name_method)
            if row is not None:
                method_rows.append(row)
        if all(cell.seed in common_seeds(noise_cells) for cell in noise_cells):
            method_rows = _mark_ranks(method_rows)
        rows += method_rows
        if ceiling:
            stats = {"f1": mean_std(list(ceiling.values()))}
            size = len(ceiling)
            row = ComparisonRow(noise, "ceiling", "Ceiling", size, stats, reference=True)
            rows.append(replace(row, variant=_variant_of(comparison, noise)))
    return rows


def common_seeds(cells: Iterable[ComparisonCell]) -> frozenset[int]:
    """The seeds with which every method of these cells has a run, all under one condition."""
    seeds: dict[str, set[int]] = {}
    for cell in cells:
        seeds.setdefault(cell.method, set()).add(cell.seed)
    return frozenset(set.intersection(*seeds.values())) if seeds else frozenset()


def keep_common_seeds(comparison: Comparison) -> Comparison:
    """The comparison with those runs of every condition whose seeds all its methods have.

    Seeds differ by points, so that means over different seeds cannot be compared.
    """
    cells = [cell for cell in comparison.cells if cell.method and finite(cell.f1) is not None]
    common_cells: list[ComparisonCell] = []
    ceiling = {}
    for condition in dict.fromkeys(cell.condition for cell in cells):
        condition_cells = [cell for cell in cells if cell.condition == condition]
        seeds = common_seeds(condition_cells)
        common_cells += [cell for cell in condition_cells if cell.seed in seeds]
        scores = comparison.ceiling.get(condition, {})
        ceiling[condition] = {seed: f1 for seed, f1 in scores.items() if int(seed) in seeds}
    return replace(comparison, cells=tuple(common_cells), ceiling=ceiling)


def _variant_of(comparison: Comparison, condition: str) -> ComparisonVariant:
    """The variant that a condition names; empty if none of the comparison's does."""
    for noise in comparison.noises:
        for variant in comparison.variants:
            if variant.join(noise) == condition:
                return variant
    return NO_VARIANT


def _in_order(plan: Sequence[str], names: Iterable[str]) -> list[str]:
    """Names as planned, then any others that occur."""
    return list(dict.fromkeys([*plan, *names]))


def _make_row(
    method: str,
    noise_cells: Sequence[ComparisonCell],
    ceiling: Mapping[str, float],
    name_method: Callable[[str], str],
) -> ComparisonRow | None:
    """The row of a method from all cells of a noise; None if the method has none."""
    cells = [cell for cell in noise_cells if cell.method == method]
    if not cells:
        return None
    baseline = {cell.seed: cell.f1 for cell in noise_cells if cell.method == BASELINE}
    recoveries = []
    for cell in cells:
        recovery = _recovery(cell.f1, baseline.get(cell.seed), ceiling.get(str(cell.seed)))
        if recovery is not None:
            recoveries.append(recovery)
    return ComparisonRow(
        noise=cells[0].condition,
        variant=cells[0].variant,
        method=method,
        label=cells[0].label or name_method(method),
        seeds=len(cells),
        stats=_statistics(cells),
        recovery=fmean(recoveries) if recoveries else None,
    )


def _statistics(cells: Sequence[ComparisonCell]) -> dict[str, MeanStd]:
    """Of every score, cost and quality that any cell has."""
    stats = {}
    for key in (*SCORES, *COSTS, *QUALITIES):
        numbers = [finite(getattr(cell, key)) for cell in cells]
        values = [value for value in numbers if value is not None]
        if values:
            stats[key] = mean_std(values)
    return stats


def _recovery(f1: float, baseline: float | None, ceiling: float | None) -> float | None:
    if baseline is None or ceiling is None or ceiling - baseline < MIN_LOSS:
        return None
    return (f1 - baseline) / (ceiling - baseline)


def _mark_ranks(rows: list[ComparisonRow]) -> list[ComparisonRow]:
    """Best and second best per score, compared as printed: equal numbers have equal marks.

    Of two methods the second is the last, and has no mark.
    """
    if len(rows) < 2:
        return rows
    for key in SCORES:
        printed_means = {
            i: round(row.stats[key].mean, 1) for i, row in enumerate(rows) if key in row.stats
        }
        first, second = first_and_second(printed_means)
        for i in first:
            rows[i] = replace(rows[i], best=rows[i].best | {key})
        for i in second if len(rows) > 2 else ():
            rows[i] = replace(rows[i], second=rows[i].second | {key})
    return rows


def first_and_second(values: Mapping[int, float]) -> tuple[set[int], set[int]]:
    """The keys of the largest value and of the next one.

    A tie for the first place leaves no second place, and a single value wins nothing.
    """
    if len(values) < 2:
        return set(), set()
    largest, next_largest = sorted(values.values(), reverse=True)[:2]
    first = {key for key, value in values.items() if value == largest}
    if len(first) > 1:
        return first, set()
    return first, {key for key, value in values.items() if value == next_largest}


def score_text(row: ComparisonRow, key: str) -> str:
    """A score for people: "86.4 ± 0.5", or a dash."""
    return row.stats[key].text() if key in row.stats else DASH


def recovery_text(row: ComparisonRow) -> str:
    """The recovery for people: "0.75", or a dash."""
    if row.recovery is None:
        return DASH
    return share_text(row.recovery)


def share_text(value: float) -> str:
    """A share that can be negative: 0.75, −0.12; what rounds to zero has no sign."""
    return signed(value, 2).removeprefix("+")


def quality_text(row: ComparisonRow | None, key: str) -> str:
    """One of QUALITIES for people: "96.4 ± 0.5", or a dash."""
    return DASH if row is None or key not in row.stats else row.stats[key].text()


def difference_text(entry: MethodInterval) -> str:
    """The difference to the reference with its interval: "+3.1 (0.4 to 5.9)", or a dash."""
    difference = entry.difference
    if difference is None:
        return DASH
    text = signed(difference.value)
    if difference.low is None or difference.high is None:
        return text
    return f"{text} ({signed(difference.low)} to {signed(difference.high)})"


def intervals_to_markdown(
    intervals: Sequence[MethodInterval], rows: Sequence[ComparisonRow]
) -> str:
    """The last models with their 95 % intervals; empty if there are none."""
    if not intervals:
        return ""
    row_of = {(row.noise, row.method): row for row in rows}
    lines = []
    for entry in intervals:
        row = row_of.get((entry.noise, entry.method))
        label = entry.method if row is None else row.label
        bounds = DASH
        if entry.f1.low is not None and entry.f1.high is not None:
            bounds = f"{entry.f1.low:.1f} to {entry.f1.high:.1f}"
        qualities = [quality_text(row, key) for key in QUALITIES]
        score = f"{entry.f1.value:.1f}"
        lines.append([entry.noise, label, score, bounds, difference_text(entry), *qualities])
    labels = {row.method: row.label for row in rows}
    reference = labels.get(intervals[0].reference, intervals[0].reference)
    header = ["Noise", "Method", "Last F1", "95 % interval", f"Minus {reference} (95 %)"]
    header += ["AUROC", "Average precision", "Calibration error"]
    text = (
        "The models of the last round, in percent; 95 % bootstrap intervals over test images and"
        " seeds.\n\n"
    )
    return "\n" + text + "\n".join(markdown_table(header, lines, text_columns=2))


def to_markdown(rows: Sequence[ComparisonRow]) -> str:
    """A table for a README: best bold, second best underlined (with <u>)."""
    with_recovery = any(row.recovery is not None for row in rows)
    names, values = variant_columns(rows)
    titles = ["Network" if name == "model" else name.capitalize() for name in names]
    header = ["Noise", *titles, "Method", "Macro F1", "Recall", "Precision", "Best F1"]
    if with_recovery:
        header.append("Recovery")
    header += ["s/round", "Bytes up/round", "Seeds"]
    lines = []
    for row, variant in zip(rows, values, strict=True):
        cells = [row.noise_spec, *variant, f"*{row.label}*" if row.reference else row.label]
        cells += [_marked_score(row, key) for key in SCORES]
        if with_recovery:
            cells.append(recovery_text(row))
        lines.append([*cells, *_costs(row), str(row.seeds)])
    return "\n".join(markdown_table(header, lines, text_columns=2 + len(names), has_markup=True))


def variant_columns(rows: Sequence[ComparisonRow]) -> tuple[list[str], list[list[str]]]:
    """The names of what varies beside the noise, and for each row the values; "": none."""
    # a dict keeps the order and holds every key once
    settings: dict[str, object] = {}
    for row in rows:
        settings.update(row.variant.settings)
    keys = list(settings)
    with_model = any(row.model for row in rows)
    names = ["model"] if with_model else []
    names += [setting_name(key) for key in keys]
    values = []
    for row in rows:
        row_values = [row.model] if with_model else []
        for key in keys:
            row_values.append(setting_value(row.variant.settings.get(key, "")))
        values.append(row_values)
    return names, values


def _costs(row: ComparisonRow) -> list[str]:
    """Median seconds of a round, and what all sites send in it; means over the seeds."""
    seconds = row.stats.get("seconds_per_round")
    upload = row.stats.get("bytes_up")
    return [
        DASH if seconds is None else f"{seconds.mean:.2g}",
        DASH if upload is None else size_text(round(upload.mean)),
    ]


def _marked_score(row: ComparisonRow, key: str) -> str:
    text = score_text(row, key)
    if key in row.best:
        return f"**{text}**"
    if key in row.second:
        return f"<u>{text}</u>"
    return text


def to_latex(rows: Sequence[ComparisonRow]) -> str:
    """A table to \\input, which needs only booktabs: best bold, second best underlined."""
    with_recovery = any(row.recovery is not None for row in rows)
    header = ["Method", "Macro F1", "Recall", "Precision"]
    keys = SCORES[:3]
    if with_recovery:
        header.append("Recovery")
    lines = [
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        r"\toprule",
        " & ".join(header) + r" \\",
    ]
    for noise in dict.fromkeys(row.noise for row in rows):
        lines += [r"\midrule", rf"\multicolumn{{{len(header)}}}{{l}}{{Noise {escape(noise)}}} \\"]
        for row in rows:
            if row.noise != noise:
                continue
            label = rf"\emph{{{escape(row.label)}}}" if row.reference else escape(row.label)
            cells = [label, *(_latex_score(row, key) for key in keys)]
            if with_recovery:
                cells.append(escape(recovery_text(row)))
            lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _latex_score(row: ComparisonRow, key: str) -> str:
    text = escape(score_text(row, key))
    if key in row.best:
        return rf"\textbf{{{text}}}"
    if key in row.second:
        return rf"\underline{{{text}}}"
    return text


def to_csv(rows: Sequence[ComparisonRow], intervals: Sequence[MethodInterval] = ()) -> str:
    """All numbers at full precision, one row per method and noise; empty where unknown."""
    variant_names, variant_values = variant_columns(rows)
    header = ["noise", *variant_names, "method", "label", "seeds"]
    keys = (*SCORES, *COSTS, *QUALITIES)
    for key in keys:
        header += [f"{key}_mean", f"{key}_std"]
    for name in ("last_f1", "difference"):
        header += [name, f"{name}_low", f"{name}_high"]
    entry_of = {(entry.noise, entry.method): entry for entry in intervals}
    lines: list[list[object]] = [[*header, "recovery"]]
    for row, variant in zip(rows, variant_values, strict=True):
        numbers: list[float | None] = []
        for key in keys:
            stat = row.stats.get(key)
            numbers += (None, None) if stat is None else (stat.mean, stat.std)
        entry = entry_of.get((row.noise, row.method))
        numbers += _interval_numbers(None if entry is None else entry.f1)
        numbers += _interval_numbers(None if entry is None else entry.difference)
        names: list[object] = [row.noise_spec, *variant, row.method, row.label, row.seeds]
        # csv writes None as an empty field
        lines.append([*names, *numbers, row.recovery])
    return render_csv(lines)


def _interval_numbers(interval: ScoreInterval | None) -> list[float | None]:
    if interval is None:
        return [None, None, None]
    return [interval.value, interval.low, interval.high]
