"""gallery.html: the suspects of one site on one page, grouped by confusion, without scripts."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedgsca.federation.records import (
    CANNOT_TELL,
    SITES_DIFFER,
    AuditSummary,
    LabelSummary,
    WrongEstimate,
)
from fedgsca.lab.report.elements import (
    CardList,
    ImageCard,
    Page,
    PageSection,
    Photo,
    Tile,
    fold_long_table,
    percent_text,
    ratio_text,
)
from fedgsca.lab.report.run_facts import method_title
from fedgsca.lab.table import Table
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import Suspect
from fedgsca.labels.build_audit import FOLDER_AUDIT
from fedgsca.labels.score import evidence_level
from fedgsca.support.files import write_atomic
from fedgsca.support.text import DASH, NBSP, plural
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
    sections = [
        _class_section(summary),
        _confusion_section(summary),
        _copy_section(images),
        *_suspect_sections(images),
    ]
    labels = plural(summary.labels, "label")
    return Page(
        title=f"Suspect labels of {header.site}",
        subtitle=f"{images.site_data.table.name} · {labels} · judged {_describe_origin(header)}",
        lead=_lead_sentences(summary),
        tiles=_tiles(summary),
        sections=[section for section in sections if section is not None],
        banner=header.warning or banner,
        footer=f"fedgsca {__version__} · {header.site}",
    )


def _describe_origin(header: AuditSummary) -> str:
    """Who judged the labels."""
    if header.method == FOLDER_AUDIT:
        return "by a regression on the other images of this folder"
    origin = f"by the images of all sites and of this site, beside {method_title(header.method)}"
    return origin if header.evidence is None else f"{origin}. {header.evidence.reason}"


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
        *describe_findings(summary),
        "A model can be wrong, too: a suggestion is a reason to look again, not a diagnosis.",
        "This page shows images and file names of the site. It stays at the site: do not share it.",
    ]


def describe_findings(summary: LabelSummary) -> list[str]:
    """What is not a number of wrong labels: contradicting copies, and classes that are no count."""
    sentences = []
    copies = summary.copies
    if copies is not None:
        sentences.append(
            f"{plural(copies.pairs, 'pair')} of identical or nearly identical images"
            f" {'has' if copies.pairs == 1 else 'have'} different labels, so at least"
            f" {copies.least_wrong} of these {copies.labels} labels"
            f" {'is' if copies.least_wrong == 1 else 'are'} wrong. They are first on the list."
        )
    for entry in summary.per_class:
        if entry.verdict == SITES_DIFFER:
            sentences.append(
                f"Nearly all {entry.labels} labels of {entry.class_name} look wrong. That is a sign"
                " that the sites differ (other devices, patients or reading habits), so they are"
                " not counted as wrong labels: compare how the sites define and image this class."
            )
    unclear_classes = [
        e.class_name for e in summary.per_class if e.verdict == CANNOT_TELL and e.labels
    ]
    if unclear_classes and summary.estimated_wrong.can_tell:
        sentences.append(
            f"How many labels are wrong cannot be told for: {', '.join(unclear_classes)}."
        )
    return sentences


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
        count, interval = _estimate_texts(entry.estimated_wrong)
        if entry.verdict == SITES_DIFFER:
            count, interval = DASH, "a sign that sites differ"
        rows.append([entry.class_name, str(entry.labels), count, interval, str(entry.suspects)])
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


def _copy_section(images: AuditImages) -> PageSection | None:
    """Contradicting copies, each beside the other."""
    cards = []
    copy_rows: set[int] = set()
    for suspect in images.audit.window(0, 2 * MAX_SUSPECTS):
        if suspect.copies and suspect.row not in copy_rows:
            copy_rows.update(row for row, _, _ in suspect.copies)
            copies = []
            for row, name, label in suspect.copies[:MAX_EXAMPLES]:
                copies.append((f"copy: {label}", [_photo(images, row, name, SUSPECT_PIXELS)]))
            cards.append(_make_card(images, suspect, copies))
    if not cards:
        return None
    return PageSection(
        "copies",
        "The same image with different labels",
        "At least one label of each pair is wrong, whatever the evidence says.",
        [CardList(cards)],
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
    return [_suspect_card(images, suspect) for suspect in suspects if not suspect.copies]


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
    return _make_card(images, suspect, references)


def _make_card(
    images: AuditImages, suspect: Suspect, references: Sequence[tuple[str, Sequence[Photo]]]
) -> ImageCard:
    text = f"{suspect.reason[:1].upper()}{suspect.reason[1:]}."
    for source, (label, confidence) in sorted(suspect.opinions.items()):
        text += f" {OPINION_PHRASES.get(source, source)} {label} ({evidence_level(confidence)})."
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
