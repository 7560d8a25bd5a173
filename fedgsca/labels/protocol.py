"""The record of a review as one page to print and sign: what was decided, by whom, what changed.

Texts of this page and of the review page are in English, German and French: texts.json in review/
static/ has the translations by the English text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

import numpy as np

from fedgsca.data.relabel import LabelChange
from fedgsca.errors import ConfigError
from fedgsca.lab.report.elements import Page, PageSection, Tile
from fedgsca.lab.table import Table
from fedgsca.labels.audit_table import Audit
from fedgsca.labels.consensus import summarise_decisions
from fedgsca.support.files import sha256_file, write_atomic
from fedgsca.support.text import did_you_mean, number
from fedgsca.support.version import __version__

TEXTS = Path(__file__).with_name("review") / "static" / "texts.json"
LANGUAGES = ("en", "de", "fr")
# key of DecisionCounts -> heading
COUNT_LABELS = {
    "looked_at": "Reviewed",
    "changed": "Changed",
    "confirmed": "Confirmed",
    "unsure": "Cannot tell",
    "disputed": "Disputed",
}
READER_HEAD = ("Reviewer", "Decided", "Accepted", "Kept", "Other class", "Cannot tell", "Counts")
AGREEMENT_HEAD = ("Reviewers", "Both gave a label", "Same label", "Cohen's κ", "Weighted κ")
CHANGE_HEAD = ("Given → new", "Labels")
CLASS_HEAD = ("Class", "Before", "Changed away", "Changed to it", "After")
SIGNATURE_HEAD = ("Name", "Place and date", "Signature")
HEADINGS = (
    "Record of a label review",
    "Corrected labels",
    "Readers",
    "Agreement between reviewers",
    "Changes",
    "Labels before and after",
    "Signatures",
)


@dataclass(frozen=True)
class ReviewResult:
    """What the page reports."""

    audits: Sequence[Audit]
    # key of COUNT_LABELS -> number of labels
    counts: Mapping[str, int]
    changes: Sequence[LabelChange]
    classes: tuple[str, ...]
    # (n,) class indices of all labels of the data
    old_labels: np.ndarray
    new_labels: np.ndarray
    # people whose decisions do not count
    without: Sequence[str] = ()


@cache
def load_texts(language: str) -> Mapping[str, str]:
    """English text -> its translation; empty for English."""
    if language not in ("", *LANGUAGES):
        raise ConfigError(
            "review.unknown-language",
            f"there are no texts in the language {language!r}",
            fix=f"{did_you_mean(language, LANGUAGES)}use one of: {', '.join(LANGUAGES)}",
        )
    texts: dict[str, dict[str, str]] = json.loads(TEXTS.read_bytes())
    return texts.get(language, {})


def write_protocol(file: Path, result: ReviewResult, language: str = "") -> Path:
    """Write the page beside the corrected labels `file`, for the owner of the file only."""
    from fedgsca.lab.report.html_page import render_page

    target = file.with_name(f"{file.stem}.protocol.html")
    page = build_protocol(file, result, language)
    write_atomic(target, render_page(page).encode())
    return target


def build_protocol(file: Path, result: ReviewResult, language: str = "") -> Page:
    """The page; headings in one of LANGUAGES."""
    texts = load_texts(language)

    def say(text: str) -> str:
        return texts.get(text, text)

    title, subject, *names = HEADINGS
    tables = []
    for name, (head, rows) in zip(names, _make_tables(result), strict=True):
        if rows:
            tables.append(Table(say(name), [say(text) for text in head], rows))
    tiles = []
    for key, label in COUNT_LABELS.items():
        tiles.append(Tile(say(label), f"{result.counts.get(key, 0):,}"))
    sites = ", ".join(audit.site for audit in result.audits)
    return Page(
        title=say(title),
        subtitle=f"{sites} · {date.today().isoformat()}",
        lead=[f"{say(subject)}: {file.name}, SHA-256 {sha256_file(file)}"],
        tiles=tiles,
        sections=[PageSection("record", say(subject), "", tables)],
        footer=f"fedgsca {__version__}",
    )


def _make_tables(result: ReviewResult) -> list[tuple[Sequence[str], list[list[str]]]]:
    """Names of the columns and rows of the tables, in the order of HEADINGS."""
    readers = []
    agreement = []
    signatures = []
    for audit in result.audits:
        summary = summarise_decisions(audit.open_decisions())
        for name, reviewer in summary.reviewers.items():
            counts = [str(reviewer.num_decisions), *map(str, reviewer.actions.values())]
            readers.append([name, *counts, "–" if name in result.without else "✓"])
            if name not in result.without:
                signatures.append([name, "", ""])
        for pair in summary.agreement:
            kappas = [number(pair.kappa, 2), number(pair.weighted_kappa, 2)]
            counts = [str(pair.num_labelled), str(pair.num_equal)]
            agreement.append([" · ".join(pair.reviewers), *counts, *kappas])
    changes = Counter((change.old, change.new) for change in result.changes).most_common()
    return [
        (READER_HEAD, readers),
        (AGREEMENT_HEAD, agreement),
        (CHANGE_HEAD, [[f"{old} → {new}", str(n)] for (old, new), n in changes]),
        (CLASS_HEAD, _list_classes(result)),
        (SIGNATURE_HEAD, [*signatures, [" ", "", ""]]),
    ]


def _list_classes(result: ReviewResult) -> list[list[str]]:
    """Per class: labels before, those that left and came, labels after."""
    num_classes = len(result.classes)
    old_counts = np.bincount(result.old_labels, minlength=num_classes)
    new_counts = np.bincount(result.new_labels, minlength=num_classes)
    losses = Counter(change.old for change in result.changes)
    gains = Counter(change.new for change in result.changes)
    rows = []
    for i, name in enumerate(result.classes):
        rows.append([name, *map(str, (old_counts[i], losses[name], gains[name], new_counts[i]))])
    return rows
