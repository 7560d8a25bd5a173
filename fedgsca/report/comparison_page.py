"""The page of a comparison: methods x noises x seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.report.comparison_plots import curves_of, found_against_present, overlay
from fedgsca.report.comparison_sentences import OURS, compare_lead
from fedgsca.report.comparison_tables import (
    BASELINE,
    RANKED,
    Row,
    compare_rows,
    recovery_text,
    score_text,
    summary,
)
from fedgsca.report.elements import (
    Block,
    Cell,
    Fold,
    Gallery,
    Heats,
    Key,
    Page,
    Picture,
    Section,
    Table,
    Tile,
    heat_of,
    heats_width,
)
from fedgsca.report.plot_style import DASHES, slot
from fedgsca.report.run_reader import Run, Tree, number, read_run
from fedgsca.report.sentences import method_name, plural, score, seconds
from fedgsca.support.text import size_text

TILES = 5
REPORTED = {
    "f1": "Macro F1",
    "recall": "Recall",
    "precision": "Precision",
    "best_f1": "Best round's F1",
}


@dataclass(frozen=True)
class Comparison:
    """compare.json, its rows, and those of its runs that can still be read."""

    compare: Tree
    rows: Sequence[Row]
    runs: Mapping[tuple[str, str], Sequence[Run]]  # (noise, method) -> one per seed

    @property
    def noises(self) -> list[str]:
        return list(dict.fromkeys(row.noise for row in self.rows))

    @property
    def labels(self) -> dict[str, str]:
        """method -> the name to show, in order."""
        return {row.method: row.label for row in self.rows if not row.reference}

    def legend(self) -> list[Key]:
        return [key_of(method, label) for method, label in self.labels.items()]


def key_of(method: str, label: str) -> Key:
    return Key(label, f"s{slot(method)}", "line", DASHES[slot(method)])


def compare_page(path: Path, compare: Tree) -> Page:
    known = _named(compare)
    it = Comparison(known, compare_rows(known), _runs(path, known))
    sections = [
        _result(it),
        _learning(it),
        _confusions(it),
        _found(it),
        _stability(it),
        _cost(it),
        _cells(it),
    ]
    wanted = (
        len(known.get("methods", [])) * len(known.get("noises", [])) * len(known.get("seeds", []))
    )
    done = len(known.get("cells", []))
    data = str(known.get("data") or "")
    return Page(
        title=str(known.get("title") or "")
        or f"{plural(len(it.labels), 'method')} compared{f' on {data}' if data else ''}",
        subtitle=" · ".join(
            [
                *([data] if data else []),
                *(f"noise {noise}" for noise in it.noises[:4]),
                plural(len(known.get("seeds", [])), "seed"),
            ]
        ),
        lead=compare_lead(it.rows, known),
        tiles=_tiles(it),
        sections=[section for section in sections if section is not None],
        banner=f"Unfinished, {done} of {wanted} runs" if done < wanted else "",
        footer=f"fedgsca · {path.resolve().name}",
    )


def _named(compare: Tree) -> dict[str, Any]:
    """Cells with a name to show, and only those that are cells."""
    cells = [
        dict(cell)
        for cell in compare.get("cells") or []
        if isinstance(cell, Mapping) and {"method", "noise", "seed"} <= cell.keys()
    ]
    for cell in cells:
        cell["label"] = cell.get("label") or method_name(str(cell["method"]))
    return {**compare, "cells": cells}


def _runs(path: Path, compare: Tree) -> dict[tuple[str, str], list[Run]]:
    found: dict[tuple[str, str], list[Run]] = {}
    for cell in compare["cells"]:
        try:
            run = read_run(path / str(cell.get("path", "")), with_losses=False)
        except (
            RunFolderError
        ):  # moved or deleted: its numbers are in compare.json, its curves are not
            continue
        found.setdefault((str(cell["noise"]), str(cell["method"])), []).append(run)
    return found


def _tiles(it: Comparison) -> list[Tile]:
    """Mean F1 over the noises of the best methods, of the baseline and of ours, and what ours wins back."""
    means = {
        m: fmean(row.f1.mean for row in it.rows if row.method == m and row.f1) for m in it.labels
    }
    order = sorted(means, key=lambda m: (m not in (OURS, BASELINE), -means[m]))[:TILES]
    where = "mean macro F1" if len(it.noises) == 1 else f"mean macro F1 of {len(it.noises)} noises"
    first = [
        {row.method for row in it.rows if row.noise == noise and "f1" in row.best}
        for noise in it.noises
    ]
    always = set.intersection(*first) if first else set()
    tiles = [
        Tile(it.labels[m], score(means[m]), "%", where, strong=m in always)
        for m in it.labels
        if m in order
    ]
    won = [row.recovery for row in it.rows if row.method == OURS and row.recovery is not None]
    if won:
        tiles.append(
            Tile(
                f"{it.labels[OURS]}'s recovery",
                f"{fmean(won):.2f}".replace("-", "−"),
                "",
                "share of the loss won back",
            )
        )
    return tiles


def _result(it: Comparison) -> Section | None:
    if not it.rows:
        return None
    blocks: list[Block] = [_overview(it)] if len(it.noises) > 1 else []
    tables = [_scores(it, noise) for noise in it.noises]
    blocks += tables if len(tables) <= 2 else [Fold(table.caption, [table]) for table in tables]
    clean = [
        float(value)
        for value in (it.compare.get("clean") or {}).values()
        if number(value) is not None
    ]
    intro = "Percent, mean ± standard deviation over the seeds; the best is bold, the second best underlined. "
    if any(row.reference for row in it.rows):
        intro += (
            "The ceiling is FedAvg without the wrong labels, which no method can know. Recovery is the share of the way from "
            "FedAvg to the ceiling: 1 is all of it, below 0 is worse than FedAvg; no value where that way is below a point. "
        )
    if clean:
        intro += f"On clean labels FedAvg reaches {summary(clean).text()}."
    return Section("result", "Result", intro.strip(), blocks)


def _overview(it: Comparison) -> Table:
    """Methods by noises, F1 only."""
    rows: list[list[str | Cell]] = []
    for method, label in [
        *it.labels.items(),
        *([("ceiling", "Ceiling")] if any(row.reference for row in it.rows) else []),
    ]:
        mine = {row.noise: row for row in it.rows if row.method == method}
        cells = [_marked(mine[noise], "f1") if noise in mine else "–" for noise in it.noises]
        rows.append(
            [Cell(label, key=key_of(method, label) if method in it.labels else None), *cells]
        )
    return Table("Macro F1 under every noise", ["Method", *it.noises], rows)


def _scores(it: Comparison, noise: str) -> Table:
    here = [row for row in it.rows if row.noise == noise]
    keys = [key for key in RANKED if any(key in row.stats for row in here)]
    won = any(row.recovery is not None for row in here)
    rows: list[list[str | Cell]] = []
    for row in here:
        name = Cell(row.label, key=None if row.reference else key_of(row.method, row.label))
        rows.append(
            [
                name,
                *(_marked(row, key) for key in keys),
                *([recovery_text(row)] if won else []),
                str(row.seeds),
            ]
        )
    head = ["Method", *(REPORTED[key] for key in keys), *(["Recovery"] if won else []), "Seeds"]
    return Table(f"Noise {noise}", head, rows)


def _marked(row: Row, key: str) -> Cell:
    return Cell(
        score_text(row, key),
        mark="best" if key in row.best else "second" if key in row.second else "",
    )


def _curves(it: Comparison, key: str, *, score: bool) -> list[Picture]:
    pictures = []
    for i, noise in enumerate(it.noises):
        found = {
            m: (label, c)
            for m, label in it.labels.items()
            if (c := curves_of(it.runs.get((noise, m), ()), key))
        }
        if not any(len(points) > 1 for _, points in found.values()):
            continue
        ends = ", ".join(
            f"{label} {fmean(list(points.values())[-1]):.3g}" for label, points in found.values()
        )
        small = overlay(found, f"Noise {noise}", f"{key}-{i}", wide=False, score=score)
        large = (
            overlay(found, f"Noise {noise}", f"{key}-{i}", wide=True, score=score)
            if len(it.noises) == 1
            else ""
        )
        alt = f"Noise {noise}, one line per method; in the last round: {ends}."
        pictures.append(Picture(large or small, alt, narrow=small if large else ""))
    return pictures


def _learning(it: Comparison) -> Section | None:
    pictures = _curves(it, "f1", score=True)
    if not pictures:
        return None
    intro = "Macro F1 on the test set, percent, round by round: the line is the mean over the seeds, the band their range."
    note = "The first rounds may lie below the plot. A curve that falls from its peak is often one that memorises wrong labels."
    gallery = Gallery(pictures, "wide" if len(pictures) == 1 else "half", it.legend(), note)
    return Section("learning", "How the methods learned", intro, [gallery])


def _stability(it: Comparison) -> Section | None:
    pictures = _curves(it, "stability", score=False)
    if not pictures:
        return None
    intro = "How far the sites move the shared model in a round (the paper's stability metric). Lower is calmer."
    gallery = Gallery(pictures, "wide" if len(pictures) == 1 else "half", it.legend())
    return Section("stability", "How steady the training is", intro, [gallery])


def _confusions(it: Comparison) -> Section | None:
    blocks: list[Block] = []
    for noise in it.noises:
        heats = []
        for method, label in it.labels.items():
            runs = [
                run
                for run in it.runs.get((noise, method), ())
                if run.evaluated and run.evaluated[-1].get("confusion")
            ]
            sizes = {len(run.evaluated[-1]["confusion"]) for run in runs}
            if len(sizes) == 1:
                total = np.sum([run.evaluated[-1]["confusion"] for run in runs], axis=0)
                heats.append(heat_of(f"{label}, noise {noise}", runs[0].classes, total.tolist()))
        if heats:
            pair = Heats(heats, heats_width(len(heats[0].rows)))
            blocks.append(pair if not blocks else Fold(f"Noise {noise}", [pair]))
    intro = "Test images of the last round, all seeds together: percent of the images of each class, with the number below."
    return Section("confusion", "Which classes are confused", intro, blocks) if blocks else None


def _found(it: Comparison) -> Section | None:
    pictures: list[Picture] = []
    for method, label in it.labels.items():
        points: dict[str, list[tuple[float, float]]] = {}
        for noise in it.noises:
            for run in it.runs.get((noise, method), ()):
                for name, site in run.last_selection.items():
                    truth, share = run.realised(name), number(site.get("delta"))
                    if truth is not None and share is not None:
                        points.setdefault(noise, []).append((float(truth["rate"]), share))
        if points:
            gap = fmean(abs(a - b) for pairs in points.values() for a, b in pairs)
            alt = f"{label}: labels flagged against labels wrong, by site and seed; the mean gap is {100 * gap:.1f} points."
            pictures.append(
                Picture(
                    found_against_present(points, f"found-{method}"),
                    alt,
                    f"{label}: the mean gap is {100 * gap:.1f} points",
                )
            )
    if not pictures:
        return None
    legend = [Key(f"noise {noise}", f"s{i}", "dot") for i, noise in enumerate(it.noises)]
    intro = "Every dot is one site of one run, in the last round. On the dashed line, as many labels are flagged as are wrong."
    return Section(
        "found", "Noise found against noise present", intro, [Gallery(pictures, "half", legend)]
    )


def _cost(it: Comparison) -> Section | None:
    base = _mean_cost(it, BASELINE, "seconds_per_round")
    rows: list[list[str | Cell]] = []
    for method, label in it.labels.items():
        each = _mean_cost(it, method, "seconds_per_round")
        if each is None:
            continue
        sizes = [_mean_cost(it, method, key) for key in ("bytes_down", "bytes_up")]
        texts = [size_text(int(size)) if size is not None else "–" for size in sizes]
        rows.append(
            [
                Cell(label, key=key_of(method, label)),
                seconds(each),
                f"{each / base:.2f} ×" if base else "–",
                *texts,
            ]
        )
    if not rows:
        return None
    head = [
        "Method",
        "Time per round",
        "Compared with FedAvg",
        "Server to sites",
        "Sites to server",
    ]
    note = "Per round and for all sites together, mean over all runs. Times of runs that shared a machine with others are longer."
    return Section(
        "cost", "Time and traffic", "", [Table("What a round costs", head, rows, note=note)]
    )


def _mean_cost(it: Comparison, method: str, key: str) -> float | None:
    values = [row.stats[key].mean for row in it.rows if row.method == method and key in row.stats]
    return fmean(values) if values else None


def _cells(it: Comparison) -> Section | None:
    cells = it.compare["cells"]
    if not cells:
        return None
    rows = [
        [
            str(c["label"]),
            str(c["noise"]),
            str(c["seed"]),
            score(c.get("f1")),
            score(c.get("best_f1")),
            str(c.get("path", "")),
        ]
        for c in cells
    ]
    table = Table(
        "All runs", ["Method", "Noise", "Seed", "Macro F1", "Best", "Folder"], rows, words=(1, 5)
    )
    return Section(
        "runs",
        "The runs",
        "Each folder holds the run's own configuration, log and model.",
        [Fold("All runs", [table])],
    )
