"""Which figures a result has. What exists decides: the name of the experiment, its series, its numbers."""

from __future__ import annotations

from collections.abc import Callable

from fedgsca.paper.figure_output import Drawing
from fedgsca.paper.figures_change import differences
from fedgsca.paper.figures_curves import levels, stability
from fedgsca.paper.figures_matrix import confusions
from fedgsca.paper.figures_order import orders
from fedgsca.paper.figures_scores import beside_paper
from fedgsca.paper.figures_time import efficiency
from fedgsca.paper.table_result import TableResult

BY_NAME: dict[str, Callable[[TableResult], list[Drawing]]] = {
    "ablation": lambda result: [*differences(result), *levels(result)],
    "sensitivity": differences,
    "stability": stability,
    "efficiency": efficiency,
}


def figures(result: TableResult) -> list[Drawing]:
    """In the order of reading; none for what has not been run yet."""
    if result.name in BY_NAME:
        return BY_NAME[result.name](result)
    return [
        *(orders(result) if result.scale == "mini" else beside_paper(result)),
        *confusions(result),
    ]
