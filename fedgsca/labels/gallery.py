"""gallery.html: the suspects of one site on one page, grouped by confusion, without scripts."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedgsca.federation.records import AuditSummary, LabelSummary, RankingTruth, WrongEstimate
from fedgsca.lab.report.elements import (
    CardList,
    ImageCard,
    Page,
    PageSection,
    Photo,
    PlotGallery,
    PlotImage,
    Tile,
    fold_long_table,
)
from fedgsca.lab.report.number_text import percent_text, ratio_text
from fedgsca.lab.report.run_facts import method_title
from fedgsca.lab.table import LegendEntry, Table
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import Suspect
from fedgsca.labels.build_audit import FOLDER_AUDIT
from fedgsca.support.files import write_atomic
from fedgsca.support.text import NBSP, plural
from fedgsca.support.version import __version__

MAX_CONFUSIONS = 10  # sections
MAX_SUSPECTS = 12  # in each section
MAX_EXAMPLES = 2  # clean images of each class beside a suspect
SUSPECT_PIXELS = 104
EXAMPLE_PIXELS = 64
MAX_IMAGE_BYTES = 4_500_000  # a page of 5 MB still opens on a phone
OPINION_PHRASES = {"neighbours": "Its nearest neighbours say", "cleanlab": "Cleanlab says"}


def write_gallery(images: AuditImages, *, banner: str = "") -> Path:
    """Write gallery.html into the audit's folder. `banner` is a warning at the top of the page."""
    from fedgsca.lab.report.html_page import render_page

    target = images.audit.path / "gallery.html"
    page = render_page(build_gallery(images, banner))
    write_atomic(target, page.encode())
    return target


def build_gallery(images: AuditImages, banner: str = "") -> Page:
    """The page of one audit; the warning of the audit itself replaces `banner`."""
    header = images.audit.header
    summary = header.summary
    if header.split == "test":
        owner = "the test set"
        origin = "by the final model"
    else:
        owner = header.site
        origin = _describe_origin(header)
    sections = [
        _class_section(summary),
        _confusion_section(summary),
        *_suspect_sections(images),
        _effort_section(summary.truth),
    ]
    labels = plural(summary.labels, "label")
    return Page(
        title=f"Suspect labels of {owner}",
        subtitle=f"{images.site_data.table.name} · {labels} · judged {origin}",
        lead=_lead_sentences(summary),
        tiles=_tiles(summary),
        sections=[section for section in sections if section is not None],
        banner=header.warning or banner,
        footer=f"fedgsca {__version__} · {header.site}",
    )


def _describe_origin(header: AuditSummary) -> str:
    """Who judged the labels."""
    if header.method == FOLDER_AUDIT:
        return "by evidence heads, each trained on the other images of this folder"
    return f"by evidence heads beside {method_title(header.method)}"


def _lead_sentences(summary: LabelSummary) -> list[str]:
    wrong = summary.estimated_wrong
    share = percent_text(wrong.count / max(summary.labels, 1))
    estimate = (
        f"About {wrong.count} of {summary.labels} labels ({share}) look wrong; between {wrong.low}"
        f" and {wrong.high} is plausible."
    )
    if not wrong.can_tell:
        estimate = (
            f"How many of the {summary.labels} labels are wrong cannot be told: the images say too"
            f" little about the labels, and between {wrong.low} and {wrong.high} is plausible. The"
            " list is ordered all the same."
        )
    return [
        estimate,
        "A model can be wrong, too: a suggestion is a reason to look again, not a diagnosis.",
        "This page shows images and file names of the site. It stays at the site: do not share it.",
    ]


def _estimate_texts(wrong: WrongEstimate) -> tuple[str, str]:
    """The number of wrong labels and its interval."""
    count = f"{wrong.count:,}" if wrong.can_tell else "cannot tell"
    return count, f"{wrong.low:,} to {wrong.high:,}"


def _tiles(summary: LabelSummary) -> list[Tile]:
    wrong = summary.estimated_wrong
    count, interval = _estimate_texts(wrong)
    tiles = [
        Tile("Labels", f"{summary.labels:,}"),
        Tile("Probably wrong", count, note=interval, strong=True),
        Tile(
            "To review",
            f"{summary.suspects:,}",
            note="the top of the list, and some of every class",
        ),
    ]
    truth = summary.truth
    if truth is None:
        return tiles
    if not truth.num_wrong:
        return [*tiles, Tile("Truly wrong", "0", note="simulation: a clean site")]
    precision = percent_text(truth.precision_at["10%"])
    note = f"simulation: {plural(truth.num_wrong, 'label is', 'labels are')} wrong"
    tiles.append(Tile("Wrong in the first tenth", precision, note=note))
    tiles.append(Tile("AUROC", ratio_text(truth.auroc), note="of the ranking"))
    return tiles


def _class_section(summary: LabelSummary) -> PageSection:
    rows = []
    for entry in summary.per_class:
        wrong = entry.estimated_wrong
        counts = [str(entry.labels), *_estimate_texts(wrong)]
        rows.append([entry.class_name, *counts, str(entry.suspects)])
    head = ["Given label", "Labels", "Probably wrong", "Plausible", "To review"]
    return PageSection(
        "classes",
        "By given label",
        "How many labels of each class look wrong.",
        [fold_long_table(Table("Given labels", head, rows))],
    )


def _confusion_section(summary: LabelSummary) -> PageSection | None:
    rows = [[f"{pair.given} → {pair.suggestion}", str(pair.count)] for pair in summary.confusions]
    if not rows:
        return None
    total = sum(pair.count for pair in summary.confusions)
    caption = f"Confusions among the {plural(total, 'label')} that are probably wrong"
    return PageSection(
        "confusions",
        "Confusions",
        "What the label says, and what the model says instead. The sections below and the menu of"
        " the review page count the labels to review instead.",
        [fold_long_table(Table(caption, ["Given → suggested", "Labels"], rows))],
    )


def _suspect_sections(images: AuditImages) -> list[PageSection]:
    """One section per confusion, the most frequent first, until the page is full."""
    index = images.audit.index
    priority = index[index["priority"] == 1]
    pairs = zip(priority["given"].tolist(), priority["suggested"].tolist(), strict=True)
    by_frequency = sorted(Counter(pairs).items(), key=lambda item: (-item[1], item[0]))
    sections: list[PageSection] = []
    free_bytes = MAX_IMAGE_BYTES
    for (given, suggestion), count in by_frequency[:MAX_CONFUSIONS]:
        cards = _suspect_cards(images, given, suggestion)
        free_bytes -= sum(_count_bytes(card) for card in cards)
        if free_bytes < 0 and sections:
            break
        sections.append(_suspect_section(images, given, suggestion, count, cards))
    return sections


def _suspect_section(
    images: AuditImages, given: int, suggestion: int, count: int, cards: Sequence[ImageCard]
) -> PageSection:
    given_name = images.audit.classes[given]
    suggestion_name = images.audit.classes[suggestion]
    intro = f"Given {given_name}, suggested {suggestion_name}: {plural(count, 'label')} to review"
    if count > len(cards):
        intro += f"; the first {len(cards)} are shown"
    return PageSection(
        f"pair-{given}-{suggestion}",
        f"{given_name} → {suggestion_name}",
        f"{intro}.",
        [CardList(cards)],
    )


def _suspect_cards(images: AuditImages, given: int, suggestion: int) -> list[ImageCard]:
    audit = images.audit
    suspects = audit.window(
        0, MAX_SUSPECTS, given=audit.classes[given], suggestion=audit.classes[suggestion]
    )
    return [_suspect_card(images, suspect) for suspect in suspects]


def _count_bytes(card: ImageCard) -> int:
    """Bytes of the images of a card."""
    size = len(card.photo.data)
    for _, photos in card.references:
        size += sum(len(photo.data) for photo in photos)
    return size


def _suspect_card(images: AuditImages, suspect: Suspect) -> ImageCard:
    neighbours = images.neighbours(suspect.row, MAX_EXAMPLES)
    references = []
    for name, rows in (
        (suspect.given, neighbours.given),
        (suspect.suggestion, neighbours.suggestion),
    ):
        if rows:
            references.append((f"clean {name}", _example_photos(images, rows, name)))
    text = f"{suspect.reason[:1].upper()}{suspect.reason[1:]}."
    for source, (label, confidence) in sorted(suspect.opinions.items()):
        text += f" {OPINION_PHRASES.get(source, source)} {label} ({confidence:.2f})."
    return ImageCard(
        _photo(images, suspect.row, f"suspect {suspect.rank}", SUSPECT_PIXELS),
        f"{suspect.rank}.{NBSP}{suspect.id}",
        text,
        references,
    )


def _example_photos(images: AuditImages, rows: Sequence[int], name: str) -> list[Photo]:
    return [_photo(images, row, f"an example of {name}", EXAMPLE_PIXELS) for row in rows]


def _photo(images: AuditImages, row: int, alt: str, size: int) -> Photo:
    jpeg = images.thumbnail(row, 2 * size)  # twice the pixels, for screens of high resolution
    return Photo(f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}", alt)


def _effort_section(truth: RankingTruth | None) -> PageSection | None:
    if truth is None or not truth.num_wrong:
        return None
    legend = [
        LegendEntry("this list", "s0"),
        LegendEntry("labels in random order", "muted", dashes=(4, 3)),
    ]
    recall = percent_text(truth.recall_at["10%"])
    plot = PlotImage(
        _draw_effort(truth.effort), f"the first tenth of the labels contains {recall} of the errors"
    )
    return PageSection(
        "effort",
        "Review effort",
        "Errors found when the list is reviewed from the top. Available in simulations only.",
        [PlotGallery([plot], "half", legend=legend)],
    )


def _draw_effort(effort: Sequence[Sequence[int]]) -> str:
    """`effort`: (labels reviewed, errors found) pairs, as SVG."""
    from fedgsca.lab.report.plots import GREY, MAIN, figure_svg, make_axes, with_plot_style

    @with_plot_style
    def draw() -> str:
        figure, axes = make_axes(440, 280, margin_top=14)
        labels = [point[0] for point in effort]
        errors = [point[1] for point in effort]
        axes.plot([0, labels[-1]], [0, errors[-1]], color=GREY, lw=1.4, ls=(0, (4, 3)))
        axes.plot(labels, errors, color=MAIN)
        axes.set_xlim(0, labels[-1])
        axes.set_ylim(0, errors[-1] * 1.04)
        axes.set_xlabel("Labels reviewed")
        axes.set_ylabel("Errors found")
        return figure_svg(figure, "effort")

    return draw()
