"""The page of a comparison: methods x noises x seeds.

Its sections are the modules of fedgsca/report/comparison_sections.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from fedgsca.experiment.records import Comparison
from fedgsca.report.comparison_sentences import OURS, describe_comparison
from fedgsca.report.comparison_tables import BASELINE
from fedgsca.report.elements import Page, Tile
from fedgsca.report.loaded_comparison import LoadedComparison, load_comparison
from fedgsca.report.number_text import score_number
from fedgsca.report.page_sections import COMPARISON_SECTIONS, build_sections
from fedgsca.support.text import MINUS, plural

_MAX_TILES = 5
# noises that are named in the subtitle
_MAX_NOISES = 4


def build_comparison_page(path: Path, comparison: Comparison) -> Page:
    """The page of the comparison in the folder `path`, finished or not."""
    loaded = load_comparison(path, comparison)
    num_planned = len(comparison.methods) * len(comparison.noises) * len(comparison.seeds)
    num_finished = len(loaded.cells)
    banner = ""
    if num_finished < num_planned:
        banner = f"Unfinished: {num_finished} of {num_planned} runs"
    return Page(
        title=_title(loaded),
        subtitle=_subtitle(loaded),
        lead=describe_comparison(loaded),
        tiles=_tiles(loaded),
        sections=build_sections(COMPARISON_SECTIONS, loaded),
        banner=banner,
        footer=f"fedgsca · {path.resolve().name}",
    )


def _title(loaded: LoadedComparison) -> str:
    comparison = loaded.comparison
    if comparison.title:
        return comparison.title
    title = f"Comparison of {plural(len(loaded.labels), 'method')}"
    return f"{title} on {comparison.data}" if comparison.data else title


def _subtitle(loaded: LoadedComparison) -> str:
    comparison = loaded.comparison
    parts = [comparison.data] if comparison.data else []
    parts += [f"noise {noise}" for noise in loaded.noises[:_MAX_NOISES]]
    parts.append(plural(len(comparison.seeds), "seed"))
    return " · ".join(parts)


def _tiles(loaded: LoadedComparison) -> list[Tile]:
    """Mean F1 of the best methods, of the baseline and of FedGSCA, and FedGSCA's recovery."""
    means: dict[str, float] = {}
    for method in loaded.labels:
        mean = loaded.mean_over_noises(method, "f1")
        if mean is not None:
            means[method] = mean
    ranking = sorted(means, key=lambda method: (method not in (OURS, BASELINE), -means[method]))
    selection = ranking[:_MAX_TILES]
    note = "mean macro F1"
    if len(loaded.noises) > 1:
        note = f"mean macro F1 of {len(loaded.noises)} noises"
    tiles = []
    for method, label in loaded.labels.items():
        if method in selection:
            strong = _is_always_best(loaded, method)
            tiles.append(Tile(label, score_number(means[method]), "%", note, strong=strong))
    return [*tiles, *_recovery_tiles(loaded)]


def _is_always_best(loaded: LoadedComparison, method: str) -> bool:
    """Whether no other method has a higher F1 under any noise."""
    for noise in loaded.noises:
        row = loaded.find_row(method, noise)
        if row is None or "f1" not in row.best:
            return False
    return True


def _recovery_tiles(loaded: LoadedComparison) -> list[Tile]:
    recoveries = []
    for row in loaded.rows:
        if row.method == OURS and row.recovery is not None:
            recoveries.append(row.recovery)
    if not recoveries:
        return []
    value = f"{fmean(recoveries):.2f}".replace("-", MINUS)
    return [Tile(f"Recovery of {loaded.labels[OURS]}", value, "", "share of the loss won back")]
