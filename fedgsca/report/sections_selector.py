"""Sections about the selector: what it sees, what it finds, how often it is right. Absent for methods without one."""

from __future__ import annotations

from collections.abc import Sequence

from fedgsca.report.elements import MANY, Block, Cell, Gallery, Key, Picture, Section, Table, folded
from fedgsca.report.plot_style import DASHES, shorten
from fedgsca.report.run_reader import Losses, Run, Tree, number
from fedgsca.report.selector_plots import (
    loss_histogram,
    noise_dumbbells,
    noise_over_rounds,
    quality_over_rounds,
)
from fedgsca.report.sentences import count, percent, ratio


def selection_section(run: Run) -> Section | None:
    """Loss histograms with the two Gaussians and the threshold (Eq. 1-7)."""
    seen = {
        name: losses
        for name in run.sites
        if (losses := run.losses.get(name)) is not None and losses.losses.size
    }
    if not seen:
        return None
    shown = seen
    if len(seen) > MANY:
        worst = sorted(seen, key=lambda name: float(seen[name].clean.mean()))[:MANY]
        shown = {name: seen[name] for name in seen if name in worst}
    monotone = bool(run.config.get(run.method, {}).get("selector", {}).get("monotone", True))
    pictures = [
        Picture(
            loss_histogram(name, losses, _title(name, losses), monotone=monotone),
            _histogram_alt(name, losses),
        )
        for name, losses in shown.items()
    ]
    known = any(losses.wrong is not None for losses in shown.values())
    legend = [
        Key("right label" if known else "taken as clean", "clean-soft", "block"),
        Key("wrong label" if known else "flagged", "noisy-soft", "block"),
        Key("fitted: clean", "clean"),
        Key("fitted: noisy", "noisy"),
        Key("threshold: labels to its right are flagged", "ink", "line", (4, 2.5)),
    ]
    intro = (
        "A model that is still learning fits right labels before wrong ones, so wrong labels gather at large losses. All sites "
        "together fit two bell curves to these losses. A label is flagged where the left curve becomes too unlikely an explanation."
    )
    note = "Height: number of labels; an arrow marks a bar that is higher than its box. "
    note += f"Losses as the selector saw them in round {max(losses.round for losses in shown.values()) + 1}."
    if known:
        note += " The colours show the truth, which only a simulation knows; the selector does not."
    if len(seen) > MANY:
        note += f" Drawn: the {MANY} of {len(seen)} sites with the most flagged labels."
    return Section(
        "selection", "What the selector sees", intro, [Gallery(pictures, "half", legend, note)]
    )


def _title(name: str, losses: Losses) -> str:
    return f"{shorten(name, 26)}: {100 * float((~losses.clean).mean()):.0f} % flagged"


def _histogram_alt(name: str, losses: Losses) -> str:
    text = f"Loss histogram of {name}: {losses.losses.size} labels, {int((~losses.clean).sum())} flagged"
    if losses.wrong is None:
        return text + "."
    wrong = int(losses.wrong.sum())
    return f"{text}; {wrong} are wrong, {int((losses.wrong & ~losses.clean).sum())} of these are flagged."


def found_section(run: Run) -> Section | None:
    """delta_k (Eq. 8) against the share of wrong labels."""
    chosen = {
        name: site
        for name, site in run.last_selection.items()
        if number(site.get("delta")) is not None
    }
    if not chosen:
        return None
    known = any(run.realised(name) for name in chosen)
    rows = [
        (name, (run.realised(name) or {}).get("rate"), float(site["delta"]))
        for name, site in chosen.items()
    ]
    if len(rows) > MANY:
        gallery = Gallery([Picture(noise_dumbbells(rows), _found_alt(rows))], "wide", _dots(known))
    else:
        highest = max(
            [
                *(value for _, value, _ in rows if value is not None),
                *(max(run.series(name, "delta")[1]) for name in chosen),
            ]
        )
        top = 100 * min(1.03, max(0.1, 1.15 * highest))
        pictures = [
            Picture(noise_over_rounds(run, name, top), _found_alt([(name, present, share)]))
            for name, present, share in rows
        ]
        lines = [
            Key("flagged by the selector", "clean"),
            *([Key("really wrong", "noisy", "line", (4, 2.5))] if known else []),
        ]
        gallery = Gallery(
            pictures,
            "quarter",
            [*lines, *([Key("warm-up", "shade", "block")] if run.selecting_from else [])],
        )
    title = "Noise found against noise present" if known else "Noise found"
    intro = "The share of its labels that each site flags (δ)" + (
        ", beside the share that is really wrong. The closer the two, the better the federation knows its own noise."
        if known
        else "."
    )
    return Section("found", title, intro, [gallery])


def _dots(known: bool) -> list[Key]:
    return [
        Key("flagged by the selector", "clean", "dot"),
        *([Key("really wrong", "noisy", "ring")] if known else []),
    ]


def _found_alt(rows: Sequence[tuple[str, float | None, float]]) -> str:
    said = []
    for name, wrong, share in rows:
        said.append(
            f"{name}: {percent(share)} flagged"
            + (f", {percent(wrong)} wrong" if wrong is not None else "")
        )
    return "; ".join(said) + "."


COLUMNS = {
    "noisy_precision": "Precision of the flags",
    "noisy_recall": "Recall of wrong labels",
    "noisy_auroc": "AUROC",
    "pseudo_accuracy": "Right pseudo-labels",
}


def quality_section(run: Run) -> Section | None:
    """Precision, recall and AUROC of "noisy", pseudo-labels and their accuracy: last round as a table, all rounds as curves."""
    chosen = run.last_selection
    judged = [
        key for key in COLUMNS if any(number(site.get(key)) is not None for site in chosen.values())
    ]
    if not judged:
        return None
    level = percent(run.config.get(run.method, {}).get("noise_level", 0.1))
    intro = (
        "Only a simulation can say this, because it knows the truth. Precision: how many flagged labels are wrong. Recall: how "
        "many wrong labels are flagged. AUROC: how well the order of suspicion separates the two; 0.5 is chance, 1 is perfect."
    )
    note = (
        "At a clean site every flag is a false alarm. Pseudo-labels are suspect images for which the model was sure enough of "
        f"an answer; a site that flags less than {level} uses none and keeps all its given labels."
    )
    head = [
        "Site",
        "Kept",
        "Flagged",
        "Precision",
        "Recall",
        "AUROC",
        "Pseudo-labels",
        "Right ones",
    ]
    rows = [_judged(name, site) for name, site in chosen.items()]
    blocks: list[Block] = [
        folded(Table("Selection in the last round", head, rows, bars=(3, 4, 5, 7), note=note))
    ]
    noisy = [name for name in chosen if (run.realised(name) or {}).get("rate")]
    if any(len(run.series(name, key)[0]) > 1 for name in noisy for key in judged):
        pictures = [
            Picture(quality_over_rounds(run, key, COLUMNS[key], noisy), _trend_alt(run, key, noisy))
            for key in judged
        ]
        legend = (
            [Key(name, f"s{i}", "line", DASHES[i]) for i, name in enumerate(noisy)]
            if len(noisy) <= len(DASHES)
            else []
        )
        blocks.append(
            Gallery(
                pictures,
                "quarter",
                legend or [Key("mean of the noisy sites", "ink"), Key("one site", "grid")],
            )
        )
    return Section("quality", "How good the selection is", intro, blocks)


def _judged(name: str, site: Tree) -> list[str | Cell]:
    size, kept = number(site.get("num_samples")) or 0.0, number(site.get("clean"))
    made = number(site.get("pseudo", site.get("pseudo_count"))) or 0.0
    flagged = count(size - kept) if kept is not None else "–"
    quality = [_bar(site.get(key)) for key in ("noisy_precision", "noisy_recall", "noisy_auroc")]
    return [
        name,
        count(kept),
        flagged,
        *quality,
        count(made),
        _bar(site.get("pseudo_accuracy") if made else None),
    ]


def _bar(value: object) -> Cell:
    return Cell(ratio(value), number(value))


def _trend_alt(run: Run, key: str, sites: Sequence[str]) -> str:
    ends = [(name, values[-1]) for name in sites if (values := run.series(name, key)[1])]
    return (
        f"{COLUMNS[key]} over rounds, in the end "
        + ", ".join(f"{name} {value:.2f}" for name, value in ends)
        + "."
    )
