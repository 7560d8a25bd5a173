"""The page of one run. A section without data is not there."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from fedgsca.report.elements import Page, Section, Tile
from fedgsca.report.run_reader import LAST, Run
from fedgsca.report.sections_facts import (
    PHASES,
    configuration_section,
    cost_section,
    events_section,
    sites_section,
    transitions_section,
)
from fedgsca.report.sections_labels import labels_section
from fedgsca.report.sections_selector import found_section, quality_section, selection_section
from fedgsca.report.sections_training import (
    classes_section,
    learning_section,
    stability_section,
    thresholds_section,
)
from fedgsca.report.sentences import (
    NBSP,
    found,
    headline,
    lead,
    method_name,
    own_data,
    percent,
    plural,
    score,
    seconds,
    wrong_share,
)

ORDER: tuple[Callable[[Run], Section | None], ...] = (
    learning_section,
    classes_section,
    labels_section,
    sites_section,
    selection_section,
    found_section,
    quality_section,
    thresholds_section,
    stability_section,
    transitions_section,
    cost_section,
    events_section,
    configuration_section,
)


def run_page(run: Run) -> Page:
    name, data = method_name(run.method), data_name(run)
    return Page(
        title=f"{name} on {data}" if data else name,
        subtitle=_subtitle(run),
        lead=lead(run),
        tiles=_tiles(run),
        sections=[section for make in ORDER if (section := make(run)) is not None],
        banner=""
        if run.result is not None
        else f"Unfinished, round {len(run.metrics)} of {run.planned}",
        footer=f"fedgsca {run.setup.get('version', '')} · {run.path.resolve().name}",
    )


def data_name(run: Run) -> str:
    source = str(run.config.get("data", {}).get("source", ""))
    return str(run.setup.get("data", {}).get("name") or (run.result or {}).get("data") or source)


def _subtitle(run: Run) -> str:
    model = run.config.get("model", {})
    parts = [
        plural(len(run.sites), "site"),
        "the sites' own labels"
        if own_data(run)
        else f"noise {run.config.get('noise', {}).get('spec', '0')}",
        plural(run.planned, "round"),
    ]
    parts.append(f"seed {run.config.get('seed', 0)}")
    if model.get("name"):
        parts.append(f"{model['name']}{', frozen backbone' if model.get('frozen') else ''}")
    return " · ".join(parts)


def _tiles(run: Run) -> list[Tile]:
    lines, value = run.evaluated, headline(run)
    tiles: list[Tile] = []
    if value is not None:
        tail = min(LAST, len(lines)) or LAST
        tiles.append(
            Tile(
                "Macro F1",
                score(value),
                "%",
                f"mean of the last {tail} rounds" if tail > 1 else "one round",
                strong=True,
            )
        )
    if lines:
        best, last = max(lines, key=lambda line: float(line["f1"])), lines[-1]
        tiles.append(
            Tile(
                "Best round",
                score(best["f1"]),
                "%",
                f"round {int(best['round']) + 1}; the last has {score(last['f1'])}",
            )
        )
        tiles.append(
            Tile(
                "Recall",
                score(headline(run, "recall")),
                "%",
                f"precision {score(headline(run, 'precision'))} %",
            )
        )
    share, flagged = wrong_share(run), found(run)["flagged"]
    if flagged is not None:
        tiles.append(
            Tile(
                "Labels flagged",
                f"{100 * flagged:.0f}",
                "%",
                f"{percent(share)} are wrong" if share is not None else "suspect",
            )
        )
    elif share:
        tiles.append(Tile("Wrong labels", f"{100 * share:.0f}", "%", "of those it learned from"))
    if run.timing:
        each = median(sum(float(line.get(phase) or 0) for phase in PHASES) for line in run.timing)
        amount, unit = seconds(each).split(NBSP)
        tiles.append(
            Tile(
                "Time per round",
                amount,
                unit,
                f"all {len(run.sites)} sites" if len(run.sites) > 1 else "",
            )
        )
    return tiles
