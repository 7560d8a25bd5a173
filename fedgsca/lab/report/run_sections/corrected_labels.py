"""A run on corrected labels: what was changed, and the scores before and after."""

from __future__ import annotations

from collections.abc import Sequence

from fedgsca.federation.records import ClassResult, LabelPair, LabelsInUse, PreviousRun, finite
from fedgsca.lab.report.elements import BulletList, PageElement, PageSection, fold_long_table
from fedgsca.lab.report.number_text import count_text, percent_text, score_number
from fedgsca.lab.report.page_sections import run_section
from fedgsca.lab.report.previous_run import find_previous, other_differences, read_difference
from fedgsca.lab.report.run_facts import wrong_share
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.statistic import describe
from fedgsca.lab.table import Table
from fedgsca.support.text import join_words, plural, signed

_MAX_DIFFERENCES = 12


@run_section(position=30)
def corrected_label_section(run: LoadedRun) -> PageSection | None:
    """For runs with a labels file, and for runs that are compared with an earlier one."""
    labels = run.setup.labels
    previous = find_previous(run)
    if labels is None and previous is None:
        return None
    blocks: list[PageElement] = []
    intro = ""
    if labels is not None:
        pairs = _changed_pairs(labels)
        intro = _describe_labels(labels, pairs)
        if pairs:
            rows = [[f"{pair.old} → {pair.new}", count_text(pair.count)] for pair in pairs]
            table = Table("Changed labels", ["Old → new", "Labels"], rows)
            blocks.append(fold_long_table(table))
    if previous is not None and run.result is not None:
        blocks += _compare_runs(run, previous)
    return PageSection("labels", "Corrected labels", intro, blocks)


def _changed_pairs(labels: LabelsInUse) -> Sequence[LabelPair]:
    """From the log of the review; without one, the differences from the source."""
    if labels.review is not None and labels.review.pairs:
        return labels.review.pairs
    return labels.differ or ()


def _describe_labels(labels: LabelsInUse, pairs: Sequence[LabelPair]) -> str:
    text = f"The training labels come from {labels.file}"
    review = labels.review
    if review is None or not review.counts:
        num_changes = sum(pair.count for pair in pairs)
        return (
            f"{text}: {count_text(num_changes)} of {count_text(labels.num_labels)} differ from "
            "those of the source."
        )
    counts = review.counts
    reviewers = join_words(review.reviewers or ("Reviewers",))
    text += (
        f". {reviewers} reviewed {plural(counts.get('looked_at', 0), 'label')}: "
        f"{count_text(counts.get('changed', 0))} changed, "
        f"{count_text(counts.get('confirmed', 0))} confirmed"
    )
    num_open = counts.get("disputed", 0) + counts.get("unsure", 0)
    if not num_open:
        return f"{text}."
    return (
        f"{text}, {count_text(num_open)} left unchanged because the reviewers were unsure or "
        "disagreed."
    )


def _compare_runs(run: LoadedRun, previous: PreviousRun) -> list[PageElement]:
    note = (
        "In percent, on the same test images. Macro scores are averaged over the last five "
        "rounds; the scores of single classes are those of the last round."
    )
    caption = f"Before ({previous.run or 'the audited run'}) and after"
    head = ["Score", "Before", "After", "Change"]
    rows = _comparison_rows(run, previous)
    difference = read_difference(run.path)
    if difference is not None and not difference.is_clear:  # a change by chance is not shown
        head = head[:-1]
        rows = [row[:-1] for row in rows]
    blocks: list[PageElement] = [Table(caption, head, rows, note=note)]
    if difference is not None:
        text = describe(difference, "This run", difference.reference)
        blocks.append(BulletList([text], "Is this more than chance?"))
    differences = other_differences(run, previous)
    if differences:
        heading = (
            "The runs also differ in other settings, so not all of the change is due to labels"
        )
        blocks.append(BulletList(differences[:_MAX_DIFFERENCES], heading))
    return blocks


def _comparison_rows(run: LoadedRun, previous: PreviousRun) -> list[list[str]]:
    result = run.result
    assert result is not None  # checked by the caller
    rows = [
        _score_row("Macro F1", previous.f1, result.f1),
        _score_row("Recall", previous.recall, result.recall),
        _score_row("Precision", previous.precision, result.precision),
    ]
    for name in run.classes:
        old = _class_f1(previous.per_class.get(name))
        new = _class_f1(result.per_class.get(name))
        rows.append(_score_row(f"F1 of {name}", old, new))
    old_share, new_share = finite(previous.wrong_share), wrong_share(run)
    if old_share is not None and new_share is not None:
        rows.append(["Wrong labels", percent_text(old_share, 1), percent_text(new_share, 1), ""])
    return rows


def _class_f1(scores: ClassResult | None) -> float | None:
    return None if scores is None else scores.f1


def _score_row(name: str, old: float | None, new: float | None) -> list[str]:
    old, new = finite(old), finite(new)
    change = ""
    if old is not None and new is not None:
        change = signed(new - old)
    return [name, score_number(old), score_number(new), change]
