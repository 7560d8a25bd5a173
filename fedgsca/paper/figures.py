"""Which figures a result has: the name of the experiment, its series and its numbers decide."""

from __future__ import annotations

from collections.abc import Callable

from fedgsca.paper.figure_output import Drawing
from fedgsca.paper.figures_change import draw_changes
from fedgsca.paper.figures_curves import draw_noise_levels, draw_stability
from fedgsca.paper.figures_matrix import draw_confusions
from fedgsca.paper.figures_order import draw_orders
from fedgsca.paper.figures_scores import draw_scores
from fedgsca.paper.figures_time import draw_efficiency
from fedgsca.paper.table_result import TableResult

FIGURES_OF: dict[str, tuple[Callable[[TableResult], list[Drawing]], ...]] = {
    "ablation": (draw_changes, draw_noise_levels),
    "sensitivity": (draw_changes,),
    "stability": (draw_stability,),
    "efficiency": (draw_efficiency,),
}


def draw_figures(result: TableResult) -> list[Drawing]:
    """All figures in reading order; none for what has not been run yet."""
    comparison = draw_orders if result.scale == "mini" else draw_scores
    drawings = []
    for draw in FIGURES_OF.get(result.name, (comparison, draw_confusions)):
        drawings += draw(result)
    return drawings
