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

# a page of so many images has about 5 MB and still opens on a phone
MAX_CONFUSIONS = 10  # sections
MAX_SUSPECTS = 10  # in each section
MAX_EXAMPLES = 2  # clean images of each class beside a suspect
SUSPECT_PIXELS = 104
EXAMPLE_PIXELS = 64
OPINION_PHRASES = {
    "neighbours": "Its nearest neighbours say",
    "regression": "A regression says",
}


def write_gallery(images: AuditImages, *, banner: str = "") -> Path:
    """Write gallery.html into the audit's folder.

    `banner` is a warning at the top of the page; that of the audit itself replaces it.
    """
    from fedgsca.lab.report.html_page import render_page

    header = images.audit.header
    summary = header.summary
    labels = plural(summary.labels, "label")
    page = Page(
        title=f"Suspect labels of {header.site}",
        subtitle=f"{images.site_data.table.name} · {labels} · judged {_describe_origin(header)}",
        lead=_lead_sentences(summary),
        tiles=_tiles(summary),
        sections=[*_copy_sections(images), *_suspect_sections(images), _class_section(summary)],
        banner=header.warning or banner,
        footer=f"fedgsca {__version__} · {header.site}",
    )
    target = images.audit.path / "gallery.html"
    write_atomic(target, render_page(page).encode())
    return target


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
        least = f"At least {wrong.low}" if wrong.low else "Nobody can tell how many"
        estimate = (
            f"{least} of {summary.labels} labels look wrong; up to {wrong.high} is plausible:"
            " many images are hard, or say little about the label. The list is ordered anyway."
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
    return wrong.text, f"{wrong.low:,} to {wrong.high:,}"


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


def _copy_sections(images: AuditImages) -> list[PageSection]:
    """Contradicting copies, each beside the other, if there are any."""
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
        return []
    intro = "At least one label of each pair is wrong, whatever the evidence says."
    title = "The same image with different labels"
    return [PageSection("copies", title, intro, [CardList(cards)])]


def _suspect_sections(images: AuditImages) -> list[PageSection]:
    """One section per confusion, the most frequent first, until the page is full."""
    audit = images.audit
    priority = audit.index[audit.index["priority"] == 1]
    pairs = zip(priority["given"].tolist(), priority["suggested"].tolist(), strict=True)
    by_frequency = sorted(Counter(pairs).items(), key=lambda item: (-item[1], item[0]))
    sections: list[PageSection] = []
    for (given, suggestion), count in by_frequency[:MAX_CONFUSIONS]:
        names = audit.classes[given], audit.classes[suggestion]
        suspects = audit.window(0, MAX_SUSPECTS, given=names[0], suggestion=names[1])
        cards = [_suspect_card(images, suspect) for suspect in suspects if not suspect.copies]
        intro = f"Given {names[0]}, suggested {names[1]}: {plural(count, 'label')} to review"
        if count > len(cards):
            intro += f"; the first {len(cards)} are shown"
        title = f"{names[0]} → {names[1]}"
        sections.append(
            PageSection(f"pair-{given}-{suggestion}", title, f"{intro}.", [CardList(cards)])
        )
    return sections


def _suspect_card(images: AuditImages, suspect: Suspect) -> ImageCard:
    references = []
    for name in (suspect.given, suspect.suggestion):
        rows = images.similar(suspect.row, name, MAX_EXAMPLES)
        if rows:
            alt = f"an example of {name}"
            photos = [_photo(images, row, alt, EXAMPLE_PIXELS) for row in rows]
            references.append((f"clean {name}", photos))
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


def _photo(images: AuditImages, row: int, alt: str, size: int) -> Photo:
    jpeg = images.thumbnail(row, 2 * size)  # twice the pixels, for screens of high resolution
    return Photo(f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}", alt)
