"""What a reader of a table must know, in words: scale, data, what is missing, what stands in for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedgsca.grid.runner import Cell
from fedgsca.paper.experiments import DATASETS, REAL
from fedgsca.paper.printed_numbers import printed
from fedgsca.paper.request import Request
from fedgsca.paper.scales import SEEDS_OF, is_own, source_of, warmups
from fedgsca.paper.table_result import Row

_TOLD = (
    "CK-asymmetric candidates",
    "split ",
    "label",
)  # what readers and noise say of choices that a result depends on


def title_of(request: Request) -> str:
    """Without the scale, which the rendering adds."""
    return request.grid.title + (", part of the grid" if _missing(request) else "")


def notes_of(
    request: Request, cells: Sequence[Cell], warnings: Sequence[str], rows: Sequence[Row], data: str
) -> tuple[str, ...]:
    found = [*_scale(request, cells, data), *_missing(request), *_stand_ins(request, cells)]
    found += dict.fromkeys(warning for warning in warnings if warning.startswith(_TOLD))
    found += [*_settings(request), *_derived(request), *request.grid.notes, *_never(request, rows)]
    reference = next(
        line.label for line in request.grid.lines if line.key == request.grid.reference
    )
    if len(request.seeds) > 1 and request.grid.reference in request.rows:
        found.append(
            f"p: paired two-sided t-test against {reference} over {len(request.seeds)} seeds, not corrected for the number of comparisons."
        )
    return tuple(found)


def _scale(request: Request, cells: Sequence[Cell], data: str) -> list[str]:
    config = cells[0].config
    if request.scale == "paper":
        found = [] if config.preset == "default" else [f"Preset {config.preset}."]
        if request.without_weights:
            found.append(
                "No pretrained weights: the network started from random ones, the paper's from LVM-Med."
            )
        return found
    model = f"{'frozen ' if config.model.frozen else ''}{config.model.name}"
    asked = " and ".join(request.grid.dataset_titles)
    used = {cell.config.method for cell in cells}
    known = {
        name: pair
        for name, pair in warmups(config.train.rounds).items()
        if name in used and pair[0] != pair[1]
    }
    scaled = ", ".join(f"{name} {old} → {new} rounds" for name, (old, new) in known.items())
    return [
        f"Mini scale: {data} instead of {asked}, {model}, {config.train.rounds} rounds. "
        "The grid is the paper's, the numbers are not comparable with it; the order of methods may be.",
        *(
            [f"Warm-ups that count rounds were made for 100 and are shortened alike: {scaled}."]
            if scaled
            else []
        ),
    ]


def _missing(request: Request) -> list[str]:
    """Rows, columns or seeds of the grid that were not asked for."""
    grid, parts = request.grid, []
    if len(request.lines) < len(grid.lines):
        parts.append(f"{len(request.lines)} of {len(grid.lines)} rows")
    if len(request.settings) < len(grid.columns):
        parts.append(f"{len(request.settings)} of {len(grid.columns)} settings")
    if len(request.seeds) < SEEDS_OF[request.scale]:
        parts.append(f"{len(request.seeds)} of {SEEDS_OF[request.scale]} seeds")
    return [f"Partial: {', '.join(parts)} of the grid."] if parts else []


def _stand_ins(request: Request, cells: Sequence[Cell]) -> list[str]:
    """Real wrong labels exist only in the real data."""
    for column in request.settings:
        if column.noise == REAL and not is_own(
            column.dataset, source_of(column.dataset, request.data, request.scale)
        ):
            used = next(cell.config.noise for cell in cells if cell.column == column.key)
            what = (
                "the measured confusions of its three pathologists"
                if used.matrix
                else f"noise {used.spec}, its mean rate of wrong labels"
            )
            return [
                f"Real noise of {DATASETS[column.dataset].title} is stood in for by {what}, at {DATASETS[column.dataset].sites} sites."
            ]
    return []


def _settings(request: Request) -> list[str]:
    changed = [
        f"{key} = {value}" for key, value in sorted(_flat(request.tree)) if key != "model.weights"
    ]
    return [f"Settings of this run: {', '.join(changed)}."] if changed else []


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in tree.items():
        rows += (
            _flat(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else [(prefix + key, value)]
        )
    return rows


def _derived(request: Request) -> list[str]:
    lines = {line.key: line.label for line in request.lines}
    found = [
        f"{lines[row]}, {column}: {how}" for (row, column, _), how in printed(request.name).derived.items()
        if row in lines and column in request.columns
    ]  # fmt: skip
    return [f"Paper's numbers that follow from printed ones: {'; '.join(found)}."] if found else []


def _never(request: Request, rows: Sequence[Row]) -> list[str]:
    """A time that some seeds do not have must not pass for a mean over all."""
    found = []
    for row in rows:
        for column, scores in row.ours.items():
            reached = len(scores["minutes_to_peak"].values) if "minutes_to_peak" in scores else 0
            runs = len(scores["f1"].values) if "f1" in scores else 0
            if "minutes_to_peak" in request.grid.metrics and reached < runs:
                found.append(
                    f"{row.label} reached FedAvg's best F1 with {reached} of {runs} seeds under {column}."
                )
    return found
