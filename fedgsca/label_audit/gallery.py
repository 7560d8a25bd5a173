"""gallery.html: the suspects of one site as one file to look at, grouped by confusion; no network, no script."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgsca import __version__
from fedgsca.label_audit.audit_images import Images
from fedgsca.label_audit.audit_table import Suspect
from fedgsca.report.elements import (
    Card,
    Cards,
    Gallery,
    Key,
    Page,
    Picture,
    Section,
    Shot,
    Table,
    Tile,
    folded,
)
from fedgsca.report.sentences import NBSP, method_name, percent, plural, ratio
from fedgsca.support.files import write_atomic

CONFUSIONS, EACH, BESIDE = (
    10,
    12,
    2,
)  # at most: groups, suspects in each, clean images of each class beside a suspect
PIXELS, SMALLER = 104, 64
SAYS = {"neighbours": "Its nearest neighbours say", "cleanlab": "Cleanlab says"}
LIMIT = 4_500_000  # bytes of pictures; a page of 5 MB still opens on a phone


def write_gallery(images: Images, *, unfinished: str = "") -> Path:
    from fedgsca.report.html_page import render

    target = images.audit.path / "gallery.html"
    write_atomic(target, render(gallery_page(images, unfinished)).encode())
    return target


def gallery_page(images: Images, unfinished: str = "") -> Page:
    header = images.audit.header
    found, test = header["summary"], header["split"] == "test"
    whose = "the test set" if test else header["site"]
    seen = (
        "the final model"
        if test
        else f"{plural(header['seen'], 'round')} of {method_name(header['method'])}"
    )
    sections = [_classes(found), _confusions(found), *_groups(images), _effort(found)]
    return Page(
        title=f"Suspect labels of {whose}",
        subtitle=f"{images.held.table.name} · {plural(found['labels'], 'label')} · seen by {seen}",
        lead=_lead(found),
        tiles=_tiles(found),
        sections=[section for section in sections if section is not None],
        banner=header.get("warning") or unfinished,
        footer=f"fedgsca {__version__} · {header['site']}",
    )


def _lead(found: Mapping[str, Any]) -> list[str]:
    wrong = found["estimated_wrong"]
    share = percent(wrong["count"] / max(found["labels"], 1))
    return [
        f"About {wrong['count']} of {found['labels']} labels ({share}) look wrong; between {wrong['low']} and {wrong['high']} is plausible.",
        "A model can be wrong, too: each suggestion is a reason to look again, not a diagnosis.",
        "This page shows images and file names of the site. It stays at the site: do not send it on.",
    ]


def _tiles(found: Mapping[str, Any]) -> list[Tile]:
    wrong = found["estimated_wrong"]
    tiles = [
        Tile("Labels", f"{found['labels']:,}"),
        Tile(
            "Probably wrong",
            f"{wrong['count']:,}",
            "",
            f"{wrong['low']:,} to {wrong['high']:,}",
            strong=True,
        ),
        Tile(
            "To review",
            f"{found['suspects']:,}",
            "",
            "the first of the list, and some of every class",
        ),
    ]
    truth = found.get("truth")
    if truth and truth["wrong"]:
        note = f"simulation: {truth['wrong']} labels are wrong"
        tiles.append(
            Tile("Wrong in the first tenth", percent(truth["precision_at"]["10%"]), "", note)
        )
        tiles.append(Tile("AUROC", ratio(truth["auroc"]), "", "of the ranking"))
    elif truth:
        tiles.append(Tile("Truly wrong", "0", "", "simulation: a clean site"))
    return tiles


def _classes(found: Mapping[str, Any]) -> Section:
    rows = []
    for entry in found["per_class"]:
        wrong = entry["estimated_wrong"]
        plausible = f"{wrong['low']} to {wrong['high']}"
        rows.append(
            [
                entry["class"],
                str(entry["labels"]),
                str(wrong["count"]),
                plausible,
                str(entry["suspects"]),
            ]
        )
    head = ["Given label", "Labels", "Probably wrong", "Plausible", "To review"]
    return Section(
        "classes",
        "By given label",
        "How many labels of each class look wrong.",
        [folded(Table("Given labels", head, rows))],
    )


def _confusions(found: Mapping[str, Any]) -> Section | None:
    rows = [[f"{c['given']} → {c['suggested']}", str(c["count"])] for c in found["confusions"]]
    if not rows:
        return None
    table = folded(
        Table("Confusions among the labels that look wrong", ["Given → suggested", "Labels"], rows)
    )
    return Section(
        "confusions",
        "Which confusions",
        "What the label says, and what the model says instead.",
        [table],
    )


def _groups(images: Images) -> list[Section]:
    """One section per confusion, the most frequent among the suspects first, until the page is full."""
    index, classes = images.audit.index, images.audit.classes
    counts: dict[tuple[int, int], int] = {}
    for entry in index[index["priority"] == 1]:
        pair = (int(entry["given"]), int(entry["suggested"]))
        counts[pair] = counts.get(pair, 0) + 1
    sections: list[Section] = []
    room = LIMIT
    for (given, suggested), total in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[
        :CONFUSIONS
    ]:
        suspects = images.audit.window(0, EACH, given=classes[given], suggested=classes[suggested])
        cards = [_card(images, suspect) for suspect in suspects]
        room -= sum(
            len(shot.data)
            for card in cards
            for shot in (card.shot, *(s for _, group in card.beside for s in group))
        )
        if room < 0 and sections:
            break
        title = f"{classes[given]} → {classes[suggested]}"
        intro = (
            f"Given {classes[given]}, suggested {classes[suggested]}: {plural(total, 'label')} to review"
            + (f", the first {len(cards)} here." if total > len(cards) else ".")
        )
        sections.append(Section(f"pair-{given}-{suggested}", title, intro, [Cards(cards)]))
    return sections


def _card(images: Images, suspect: Suspect) -> Card:
    near = images.neighbours(suspect.row, BESIDE)
    beside = [
        (
            f"clean {name}",
            [_shot(images, row, f"an example of {name}", SMALLER) for row in near[which]],
        )
        for which, name in (("given", suspect.given), ("suggested", suspect.suggested))
        if near[which]
    ]
    said = "".join(
        f" {SAYS.get(who, who)} {label} ({sure:.2f})."
        for who, (label, sure) in sorted(suspect.opinions.items())
    )
    text = f"{suspect.reason[:1].upper()}{suspect.reason[1:]}.{said}"
    return Card(
        _shot(images, suspect.row, f"suspect {suspect.rank}", PIXELS),
        f"{suspect.rank}.{NBSP}{suspect.id}",
        text,
        beside,
    )


def _shot(images: Images, row: int, alt: str, size: int) -> Shot:
    picture = base64.b64encode(
        images.thumbnail(row, 2 * size)
    ).decode()  # twice the pixels: screens have them
    return Shot(f"data:image/jpeg;base64,{picture}", alt)


def _effort(found: Mapping[str, Any]) -> Section | None:
    truth = found.get("truth")
    if not truth or not truth["wrong"]:
        return None
    intro = "Errors found when the list is worked through from the top. Known in a simulation only."
    keys = [Key("this list", "s0"), Key("labels in random order", "muted", dashes=(4, 3))]
    tenth = percent(truth["recall_at"]["10%"])
    picture = Picture(
        _effort_plot(truth["effort"]), f"a tenth of the labels holds {tenth} of the errors"
    )
    return Section("effort", "Review effort", intro, [Gallery([picture], "half", legend=keys)])


def _effort_plot(effort: Sequence[Sequence[int]]) -> str:
    from fedgsca.report.plot_style import MAIN, MUTED, canvas, styled, svg

    @styled
    def draw() -> str:
        figure, axes = canvas(440, 280, top=14)
        looked, errors = [k for k, _ in effort], [found for _, found in effort]
        axes.plot([0, looked[-1]], [0, errors[-1]], color=MUTED, lw=1.4, ls=(0, (4, 3)))
        axes.plot(looked, errors, color=MAIN)
        axes.set_xlim(0, looked[-1])
        axes.set_ylim(0, errors[-1] * 1.04)
        axes.set_xlabel("Labels looked at")
        axes.set_ylabel("Errors found")
        return svg(figure, "effort")

    return draw()
