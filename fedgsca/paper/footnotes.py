"""The notes below a table: scale, data, missing parts, substitutes, settings."""

from __future__ import annotations

from collections.abc import Sequence

from fedgsca.config import Config, flatten
from fedgsca.grid.runner import GridCell
from fedgsca.paper.experiments import DATASETS, REAL, GridColumn
from fedgsca.paper.paired_test import MIN_SEEDS
from fedgsca.paper.printed_numbers import printed
from fedgsca.paper.request import Request
from fedgsca.paper.scales import SEEDS_OF, is_own, source_of, warmups
from fedgsca.paper.table_result import TableRow

# warnings of data readers and noise about choices that a result depends on begin so
_RELEVANT_WARNINGS = ("classes that are easily mistaken", "split ", "label")


def make_title(request: Request) -> str:
    """The title without the scale, which the rendering adds."""
    suffix = ", part of the grid" if _missing_parts(request) else ""
    return request.grid.title + suffix


def make_notes(
    request: Request,
    cells: Sequence[GridCell],
    warnings: Sequence[str],
    rows: Sequence[TableRow],
    data: str,
) -> tuple[str, ...]:
    """All notes in the order of importance; `warnings` are those of the runs."""
    relevant = [warning for warning in warnings if warning.startswith(_RELEVANT_WARNINGS)]
    return (
        *_scale_notes(request, cells, data),
        *_missing_parts(request),
        *_substitute_notes(request, cells),
        *dict.fromkeys(relevant),
        *_setting_notes(request),
        *_derivation_notes(request),
        *request.grid.notes,
        *_peak_notes(request, rows),
        *_test_notes(request),
    )


def _scale_notes(request: Request, cells: Sequence[GridCell], data: str) -> list[str]:
    config = cells[0].config
    if request.scale == "mini":
        methods = {cell.config.method for cell in cells}
        return [_mini_note(request, config, data), *_warmup_notes(config, methods)]
    notes = []
    if config.preset != "default":
        notes.append(f"Preset {config.preset}.")
    if request.without_weights:
        notes.append(
            "No pretrained weights: the network started from random ones, the paper's from LVM-Med."
        )
    return notes


def _mini_note(request: Request, config: Config, data: str) -> str:
    model = f"frozen {config.model.name}" if config.model.frozen else config.model.name
    datasets = " and ".join(request.grid.dataset_titles)
    return (
        f"Mini scale: {data} instead of {datasets}, {model}, {config.train.rounds} rounds. "
        "The grid is the paper's, the numbers are not comparable with it; "
        "the order of methods may be."
    )


def _warmup_notes(config: Config, methods: set[str]) -> list[str]:
    parts = []
    for name, (default, warmup) in warmups(config.train.rounds, config.preset).items():
        if name in methods and default != warmup:
            parts.append(f"{name} {default} → {warmup} rounds")
    if not parts:
        return []
    return [
        "Warm-ups that count rounds were made for 100 and are shortened in proportion: "
        f"{', '.join(parts)}."
    ]


def _missing_parts(request: Request) -> list[str]:
    """Rows, columns or seeds of the grid that were not requested."""
    grid = request.grid
    counts = (
        ("rows", len(request.grid_rows), len(grid.rows)),
        ("settings", len(request.grid_columns), len(grid.columns)),
        ("seeds", len(request.seeds), SEEDS_OF[request.scale]),
    )
    parts = []
    for noun, count, total in counts:
        if count < total:
            parts.append(f"{count} of {total} {noun}")
    return [f"Partial: {', '.join(parts)} of the grid."] if parts else []


def _substitute_notes(request: Request, cells: Sequence[GridCell]) -> list[str]:
    """Real wrong labels exist only in the real data."""
    for column in request.grid_columns:
        source = source_of(column.dataset, request.data, request.scale)
        if column.noise == REAL and not is_own(column.dataset, source):
            return [_substitute_note(column, cells)]
    return []


def _substitute_note(column: GridColumn, cells: Sequence[GridCell]) -> str:
    noise = next(cell.config.noise for cell in cells if cell.column == column.key)
    substitute = f"noise {noise.spec}, its mean rate of wrong labels"
    if noise.matrix:
        substitute = "the measured confusions of its three pathologists"
    dataset = DATASETS[column.dataset]
    return f"Real noise of {dataset.title} is replaced by {substitute}, at {dataset.sites} sites."


def _setting_notes(request: Request) -> list[str]:
    settings = []
    for key, value in sorted(flatten(request.tree).items()):
        if key != "model.weights":
            settings.append(f"{key} = {value}")
    return [f"Settings of this run: {', '.join(settings)}."] if settings else []


def _derivation_notes(request: Request) -> list[str]:
    labels = {row.key: row.label for row in request.grid_rows}
    parts = []
    for (row, column, _), calculation in printed(request.name).derivations.items():
        if row in labels and column in request.columns:
            parts.append(f"{labels[row]}, {column}: {calculation}")
    return [f"Paper's numbers that follow from printed ones: {'; '.join(parts)}."] if parts else []


def _peak_notes(request: Request, rows: Sequence[TableRow]) -> list[str]:
    """A time that some seeds do not have must not pass for a mean over all seeds."""
    if "minutes_to_peak" not in request.grid.metrics:
        return []
    notes = []
    for row in rows:
        for column, scores in row.ours.items():
            peaks = len(scores["minutes_to_peak"].values) if "minutes_to_peak" in scores else 0
            runs = len(scores["f1"].values) if "f1" in scores else 0
            if peaks < runs:
                notes.append(
                    f"{row.label} reached FedAvg's best F1 with {peaks} of {runs} seeds "
                    f"under {column}."
                )
    return notes


def _test_notes(request: Request) -> list[str]:
    reference = request.grid.reference
    if reference not in request.rows:
        return []
    if len(request.seeds) < MIN_SEEDS:
        return [f"No significance test: it needs at least {MIN_SEEDS} seeds."]
    label = next(row.label for row in request.grid.rows if row.key == reference)
    return [
        f"p: paired two-sided t-test against {label} over {len(request.seeds)} seeds, "
        "corrected for the number of rows of a column (Holm)."
    ]
