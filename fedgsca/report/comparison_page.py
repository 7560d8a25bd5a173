"""The page of a comparison: methods x noises x seeds.

Its sections are the modules of fedgsca/report/comparison_sections.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from fedgsca.experiment.records import Comparison
from fedgsca.report.comparison_caution import find_lead
from fedgsca.report.comparison_sentences import OURS, describe_comparison
from fedgsca.report.comparison_tables import BASELINE, share_text
from fedgsca.report.elements import Page, Tile
from fedgsca.report.loaded_comparison import LoadedComparison, load_comparison
from fedgsca.report.number_text import score_number
from fedgsca.report.page_sections import COMPARISON_SECTIONS, build_sections
from fedgsca.support.text import plural

_MAX_TILES = 5
# noises that are named in the subtitle
_MAX_NOISES = 4


def build_comparison_page(path: Path, record: Comparison) -> Page:
    """The page of the comparison in the folder `path`, finished or not."""
    comparison = load_comparison(path, record)
    num_planned = len(record.methods) * len(record.conditions) * len(record.seeds)
    num_finished = len(comparison.cells)
    banner = ""
    if num_finished < num_planned:
        banner = f"Unfinished: {num_finished} of {num_planned} runs"
    return Page(
        title=_title(comparison),
        subtitle=_subtitle(comparison),
        lead=describe_comparison(comparison),
        tiles=_tiles(comparison),
        sections=build_sections(COMPARISON_SECTIONS, comparison),
        banner=banner,
        footer=f"fedgsca · {path.resolve().name}",
    )


def _title(comparison: LoadedComparison) -> str:
    record = comparison.record
    if record.title:
        return record.title
    title = f"Comparison of {plural(len(comparison.labels), 'method')}"
    return f"{title} on {record.data}" if record.data else title


def _subtitle(comparison: LoadedComparison) -> str:
    record = comparison.record
    parts = [record.data] if record.data else []
    parts += [f"noise {noise}" for noise in comparison.noises[:_MAX_NOISES]]
    parts.append(plural(len(record.seeds), "seed"))
    return " · ".join(parts)


def _tiles(comparison: LoadedComparison) -> list[Tile]:
    """Mean F1 of the best methods, of the baseline and of FedGSCA, and FedGSCA's recovery."""
    means: dict[str, float] = {}
    for method in comparison.labels:
        rows = [row for row in comparison.common_rows if row.method == method]
        scores = [row.f1.mean for row in rows if row.f1 is not None]
        if scores:
            means[method] = fmean(scores)
    ranking = sorted(means, key=lambda method: (method not in (OURS, BASELINE), -means[method]))
    selection = ranking[:_MAX_TILES]
    note = "mean macro F1"
    if len(comparison.noises) > 1:
        note = f"mean macro F1 of {len(comparison.noises)} {comparison.condition_word}s"
    tiles = []
    for method, label in comparison.labels.items():
        if method in selection:
            strong = _is_always_best(comparison, method)
            tiles.append(Tile(label, score_number(means[method]), "%", note, strong=strong))
    return [*tiles, *_recovery_tiles(comparison)]


def _is_always_best(comparison: LoadedComparison, method: str) -> bool:
    """Whether no other method has a higher F1 under any noise, beyond chance."""
    for noise in comparison.noises:
        lead = find_lead(comparison, noise)
        if lead is not None and not lead.is_shown:
            return False
        row = comparison.find_common_row(method, noise)
        if row is None or "f1" not in row.best:
            return False
    return True


def _recovery_tiles(comparison: LoadedComparison) -> list[Tile]:
    recoveries = []
    for row in comparison.rows:
        if row.method == OURS and row.recovery is not None:
            recoveries.append(row.recovery)
    if not recoveries:
        return []
    value = share_text(fmean(recoveries))
    return [
        Tile(f"Recovery of {comparison.labels[OURS]}", value, "", "share of the lost F1 won back")
    ]
