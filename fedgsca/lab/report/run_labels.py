"""The sites and their labels: noise, participation, and what was corrected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fedgsca.federation.records import (
    LabelPair,
    LabelsInUse,
    PreviousRun,
    SiteRecord,
    finite,
)
from fedgsca.lab.report.elements import (
    BulletList,
    Collapsible,
    HeatMatrix,
    MatrixGroup,
    PageElement,
    PageSection,
    count_text,
    fold_long_table,
    percent_text,
    ratio_text,
    row_shares,
    score_number,
)
from fedgsca.lab.report.previous_run import find_previous, other_differences, read_difference
from fedgsca.lab.report.run_facts import (
    flagged_shares,
    knows_truth,
    noise_title,
    site_noise,
    wrong_share,
)
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.statistic import describe
from fedgsca.lab.table import Cell, Table
from fedgsca.support.text import DASH, join_words, natural_key, plural, signed

_MAX_DIFFERENCES = 12


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
    scores = {
        "Macro F1": (previous.f1, result.f1),
        "Recall": (previous.recall, result.recall),
        "Precision": (previous.precision, result.precision),
    }
    for name in run.classes:
        if name in previous.per_class and name in result.per_class:
            scores[f"F1 of {name}"] = (previous.per_class[name].f1, result.per_class[name].f1)
    rows = []
    for name, (old, new) in scores.items():
        is_known = finite(old) is not None and finite(new) is not None
        change = signed(new - old) if is_known else ""
        rows.append([name, score_number(old), score_number(new), change])
    old_share, new_share = finite(previous.wrong_share), wrong_share(run)
    if old_share is not None and new_share is not None:
        rows.append(["Wrong labels", percent_text(old_share, 1), percent_text(new_share, 1), ""])
    return rows


# site -> cell
Column = Mapping[str, str | Cell]


def site_section(run: LoadedRun) -> PageSection | None:
    """One row per site of the setup: its labels, and its part in the rounds if that varies."""
    if not run.setup.sites:
        return None
    columns = {**label_columns(run), **participation_columns(run)}
    table = column_table("Sites, in the order of the experiment", run.setup.sites, columns)
    blocks: list[PageElement] = [fold_long_table(table)]
    matrix = _class_matrix(run)
    if matrix is not None:
        note = "Percent of the images of the site, with the number below."
        blocks.append(Collapsible("Classes at each site", [MatrixGroup([matrix], note=note)]))
    intro = "Images never leave their site; only model weights and a few numbers do."
    if "Rounds asked" in columns:
        intro += " Rounds ask some of the sites, drawn anew in every round."
    if "Late updates" in columns:
        intro += " Late updates counted with a smaller weight."
    return PageSection("sites", "The sites and their labels", intro, blocks)


def column_table(title: str, sites: Iterable[str], columns: Mapping[str, Column]) -> Table:
    """A row for each site; a site that a column does not have gets a dash."""
    rows = []
    for site in sorted(sites, key=natural_key):
        rows.append([site, *(column.get(site, DASH) for column in columns.values())])
    words = [i for i, name in enumerate(columns, 1) if name == "Noise added"]
    return Table(title, ["Site", *columns], rows, words=words)


def label_columns(run: LoadedRun) -> dict[str, Column]:
    """Size, wrong labels as far as they are known, and what the method made of the labels."""
    sites = run.setup.sites
    columns: dict[str, Column] = {
        "Images": {name: count_text(site.num_samples) for name, site in sites.items()}
    }
    if knows_truth(run, sites):
        columns["Noise added"] = {name: noise_title(site_noise(run, name)) for name in sites}
        columns["Labels wrong"] = {name: percent_text(run.noise_rate(name), 1) for name in sites}
    for key, records in (("delta", run.last_selection), ("noise_level", _last_round(run))):
        estimates = {name: site.number(key) for name, site in records.items()}
        if any(estimate is not None for estimate in estimates.values()):
            columns["Estimated wrong"] = {
                name: percent_text(estimate, 1) for name, estimate in estimates.items()
            }
    shares = flagged_shares(run.metrics, run.settings.noise_level)
    if shares:
        columns["Labels flagged"] = {name: percent_text(share, 1) for name, share in shares.items()}
    return columns


def _last_round(run: LoadedRun) -> Mapping[str, SiteRecord]:
    return run.metrics[-1].sites if run.metrics else {}


def participation_columns(run: LoadedRun) -> dict[str, Column]:
    """How often a site took part, if rounds do not ask all sites or if updates were late."""
    num_asked, num_used, num_late = Counter[str](), Counter[str](), Counter[str]()
    for record in run.metrics:
        num_asked.update(run.sites if record.asked_sites is None else record.asked_sites)
        for name, site in record.sites.items():
            (num_used if site.number("rounds_late") is None else num_late)[name] += 1
    columns: dict[str, Column] = {}
    if any(record.asked_sites is not None for record in run.metrics) or num_late:
        columns["Rounds asked"] = {name: count_text(num_asked[name]) for name in run.sites}
        columns["Updates in time"] = {name: count_text(num_used[name]) for name in run.sites}
    if num_late:
        columns["Late updates"] = {name: count_text(num_late[name]) for name in run.sites}
    return columns


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


# ---- how often the selection is right ----

# value in the log of a site that only a simulation has -> heading
_MEASURES = {
    "noisy_precision": "Noisy ones wrong",
    "noisy_recall": "Wrong found",
    "noisy_auroc": "AUROC",
    "pseudo_accuracy": "Pseudo-labels correct",
    "label_accuracy_before": "Labels correct before",
    "label_accuracy_after": "After",
}


def quality_section(run: LoadedRun) -> PageSection | None:
    """Precision, recall and AUROC of "noisy", and the accuracy of pseudo-labels."""
    columns = quality_columns(run)
    if not columns:
        return None
    intro = (
        "Only a simulation can measure this, because it knows the truth. Noisy ones wrong is the "
        "precision: at a clean site each noisy label is a false alarm. Wrong found is the recall: "
        "the share of wrong labels that are taken as noisy. AUROC: how well the ranking separates "
        "wrong from correct labels; 0.5 is chance, 1 is perfect."
    )
    table = column_table("Selection in the last round", run.last_selection, columns)
    bars = [i for i, name in enumerate(columns, 1) if name in _MEASURES.values()]
    return PageSection(
        "quality", "Quality of the selection", intro, [fold_long_table(replace(table, bars=bars))]
    )


def quality_columns(run: LoadedRun) -> dict[str, Column]:
    """The decisions about labels in the last round that selected any, compared with the truth."""
    selection = run.last_selection
    measures: dict[str, Column] = {}
    for name, title in _MEASURES.items():
        numbers = {site: record.number(name) for site, record in selection.items()}
        if any(number is not None for number in numbers.values()):
            measures[title] = {
                site: Cell(ratio_text(number), bar=number) for site, number in numbers.items()
            }
    if not measures:
        return {}
    noisy, pseudo = {}, {}
    for site, record in selection.items():
        num_clean = record.number("clean")
        noisy[site] = count_text(None if num_clean is None else record.num_samples - num_clean)
        pseudo[site] = count_text(record.number("pseudo_count"))
    return {"Taken as noisy": noisy, "Pseudo-labels": pseudo, **measures}
