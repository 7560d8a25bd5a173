"""The sites and their labels: noise, participation, and what was corrected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedgsca.federation.records import ClassResult, LabelPair, LabelsInUse, PreviousRun, finite
from fedgsca.lab.report.elements import (
    BulletList,
    Collapsible,
    HeatMatrix,
    MatrixGroup,
    PageElement,
    PageSection,
    fold_long_table,
    row_shares,
    run_section,
)
from fedgsca.lab.report.number_text import count_text, percent_text, score_number
from fedgsca.lab.report.previous_run import find_previous, other_differences, read_difference
from fedgsca.lab.report.run_facts import (
    knows_truth,
    noise_title,
    site_noise,
    unused_shares,
    wrong_share,
)
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.statistic import describe
from fedgsca.lab.table import Cell, Table
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


@run_section(position=40)
def site_section(run: LoadedRun) -> PageSection | None:
    """One row per site of the setup."""
    if not run.setup.sites:
        return None
    blocks: list[PageElement] = [_site_table(run)]
    matrix = _class_matrix(run)
    if matrix is not None:
        note = "Percent of the images of the site, with the number below."
        blocks.append(Collapsible("Classes at each site", [MatrixGroup([matrix], note=note)]))
    intro = "Images never leave their site; only model weights and a few numbers do."
    return PageSection("sites", "The sites and their labels", intro, blocks)


def _site_table(run: LoadedRun) -> Table | Collapsible:
    shares = unused_shares(run.metrics, run.settings.noise_level)
    estimates = {name: site.number("delta") for name, site in run.last_selection.items()}
    has_truth = knows_truth(run, run.setup.sites)
    head = ["Site", "Images"]
    if has_truth:
        head += ["Noise added", "Labels wrong"]
    if estimates:
        head.append("Estimated wrong (δ)")
    if shares:
        head.append("Labels not trained on as given")
    rows: list[list[str | Cell]] = []
    for name in run.sites:
        if name not in run.setup.sites:
            continue
        site = run.setup.sites[name]
        row: list[str | Cell] = [name, count_text(site.num_samples)]
        if has_truth:
            row.append(noise_title(site_noise(run, name)))
            row.append(percent_text(run.noise_rate(name), 1))
        if estimates:
            row.append(percent_text(estimates.get(name), 1))
        if shares:
            row.append(percent_text(shares.get(name), 1))
        rows.append(row)
    caption = "Sites, in the order of the experiment"
    return fold_long_table(Table(caption, head, rows, words=(2,) if has_truth else ()))


def _class_matrix(run: LoadedRun) -> HeatMatrix | None:
    """Given labels by site and class; None if a site keeps them to itself, as in a deployment."""
    counts = [site.given_per_class or () for site in run.setup.sites.values()]
    if not all(counts) or not run.classes:
        return None
    return HeatMatrix(
        "Given labels by site and class",
        list(run.setup.sites),
        run.classes,
        [row_shares(row) for row in counts],
        counts,
        "site ↓ label →",
    )


@run_section(position=45)
def participation_section(run: LoadedRun) -> PageSection | None:
    """For runs whose rounds do not ask all sites, or in which updates were late."""
    num_asked = Counter[str]()
    num_used = Counter[str]()
    num_late = Counter[str]()
    for record in run.metrics:
        num_asked.update(run.sites if record.asked_sites is None else record.asked_sites)
        for name, site in record.sites.items():
            is_late = site.number("rounds_late") is not None
            num_used[name] += not is_late
            num_late[name] += is_late
    is_partial = any(record.asked_sites is not None for record in run.metrics)
    if not is_partial and not num_late.total():
        return None
    return _section(run, num_asked, num_used, num_late)


def _section(
    run: LoadedRun, num_asked: Counter[str], num_used: Counter[str], num_late: Counter[str]
) -> PageSection:
    head = ["Site", "Rounds asked", "Updates in time"]
    if num_late.total():
        head.append("Late updates")
    rows: list[list[str | Cell]] = []
    for name in run.sites:
        row: list[str | Cell] = [name, count_text(num_asked[name]), count_text(num_used[name])]
        if num_late.total():
            row.append(count_text(num_late[name]))
        rows.append(row)
    per_round = num_asked.total() / max(len(run.metrics), 1)
    intro = (
        f"A round asked {per_round:.3g} of {plural(len(run.sites), 'site')} on average, drawn anew "
        "in every round."
    )
    num_never = sum(num_asked[name] == 0 for name in run.sites)
    if num_never:
        intro += f" {plural(num_never, 'site')} {_be(num_never)} never asked."
    if num_late.total():
        intro += (
            f" {plural(num_late.total(), 'update')} came late and counted with a smaller weight."
        )
    table = Table("Participation of the sites", head, rows)
    return PageSection("participation", "Who took part", intro, [fold_long_table(table)])


def _be(number: int) -> str:
    return "was" if number == 1 else "were"
