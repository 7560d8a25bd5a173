"""The words around a table: its labels, its caption and what its marks mean. The same in every format."""

from __future__ import annotations

from statistics import fmean

from fedgsca.paper.ranking import MISSING, Entry, Group, Metric, group, winners
from fedgsca.paper.table_result import Score, TableResult
from fedgsca.report.sentences import MINUS, NBSP, listed, plural, signed

MANY = 4  # settings that get a sentence each


def scale_label(result: TableResult) -> str:
    """Stands wherever a mini result stands; empty at paper scale."""
    return f"mini scale on {result.data}" if result.scale == "mini" else ""


def heading(result: TableResult) -> str:
    return f"{result.title} ({scale_label(result)})" if result.scale == "mini" else result.title


def unfinished(result: TableResult) -> str:
    return (
        f"Unfinished: {result.done} of {result.total} runs are done."
        if result.done < result.total
        else ""
    )


def source(result: TableResult) -> str:
    """Which data and seeds stand behind our numbers, in one line."""
    where = (
        f"Mini scale on {result.data}"
        if result.scale == "mini"
        else f"Paper scale on {result.data}"
    )
    text = f"{where}, {plural(len(result.seeds), 'seed')}; the paper used {result.dataset}"
    return f"{text}. {unfinished(result)}".rstrip() if unfinished(result) else f"{text}."


def third_name(result: TableResult) -> str:
    return "Rank" if result.scale == "mini" else "Gap"


def third_text(result: TableResult, entry: Entry, about: Metric) -> str:
    """The gap to the paper's number; at mini scale the paper's rank and ours."""
    if result.scale == "mini":
        return MISSING if entry.paper_rank is None else f"{entry.paper_rank} → {entry.our_rank}"
    return (
        MISSING
        if entry.gap is None
        else signed(entry.gap, about.decimals(entry.paper.mean if entry.paper else 0.0))
    )


def mean_text(score: Score | None, about: Metric) -> str:
    return MISSING if score is None else f"{score.mean:.{about.decimals(score.mean)}f}"


def std_text(score: Score | None, about: Metric) -> str:
    return (
        ""
        if score is None or score.std is None
        else f"± {score.std:.{about.decimals(score.mean)}f}"
    )


def tail_text(entry: Entry) -> str:
    """What follows our number: stars of the test, and the seeds so far."""
    return f"{entry.stars} {seeds_text(entry)}".rstrip()


def seeds_text(entry: Entry) -> str:
    return f"[{entry.partial}]" if entry.partial else ""


def in_text(about: Metric) -> str:
    """A metric within a sentence: macro F1."""
    return about.label[0].lower() + about.label[1:]


def rho_text(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}".replace("-", MINUS)


def agreement(groups: list[Group]) -> str:
    """How far the paper's order of the rows is ours, per group; empty where the paper has no numbers."""
    known = [each for each in groups if each.rho is not None]
    if not known:
        return ""
    several = len({each.column for each in known}) > 1
    parts = [
        f"{each.column if several else each.about.short} {rho_text(each.rho)}" for each in known
    ]
    return f"Spearman's ρ between the paper's order and ours: {', '.join(parts)}."


def legend(result: TableResult) -> list[str]:
    """What the marks mean, as sentences."""
    name = next((row.label for row in result.rows if row.key == result.reference), result.reference)
    said = [
        "Mean ± standard deviation over seeds. Best bold, second best underlined, among the paper's numbers and among ours."
    ]
    if not any(any(row.paper.values()) for row in result.rows):
        said = [
            "Mean ± standard deviation over seeds. Best bold, second best underlined. The paper prints no numbers."
        ]
    elif result.scale == "mini":
        said.append("Rank: place in the paper → place here, among the rows that have both numbers.")
    else:
        said.append("Gap: ours minus the paper's.")
    if any(
        p is not None for row in result.rows for here in row.p_value.values() for p in here.values()
    ):
        levels = f"*{NBSP}p{NBSP}<{NBSP}0.05, **{NBSP}p{NBSP}<{NBSP}0.01"
        said.append(
            f"{levels}: paired t-test against {name} over the seeds, not corrected for the number of tests."
        )
    if any(
        each.partial
        for column in result.columns
        for metric in result.metrics
        for each in group(result, column, metric).entries
    ):
        said.append(f"[k/{len(result.seeds)}]: the number rests on k of {len(result.seeds)} seeds.")
    return said


def caption(result: TableResult) -> str:
    """One paragraph that stands alone: what is shown, on which data, and how to read it."""
    return " ".join([f"{result.title}.", source(result), *legend(result)])


def lead(result: TableResult) -> list[str]:
    """The outcome in a few sentences, whichever way it went."""
    metric = result.metrics[0]
    groups = [group(result, column, metric) for column in result.columns]
    if not any(each.ours for here in groups for each in here.entries):
        return ["No run is finished yet; only the paper's numbers are shown."]
    told = [_verdict(here) for here in groups] if len(groups) <= MANY else [_count(groups)]
    known = [here.rho for here in groups if here.rho is not None]
    about = in_text(groups[0].about)
    if known and result.scale == "mini":
        over = f", mean of {plural(len(known), 'setting')}" if len(known) > 1 else ""
        told.append(
            f"Order by {about} against the paper's: Spearman's ρ = {rho_text(fmean(known))}{over} (1: the same order; 0: no relation)."
        )
    gaps = [abs(each.gap) for here in groups for each in here.entries if each.gap is not None]
    if gaps and result.scale == "paper":
        told.append(
            f"Mean distance to the paper's {about}: {fmean(gaps):.2f}; the largest: {max(gaps):.2f}."
        )
    return [sentence for sentence in told if sentence]


def _verdict(here: Group) -> str:
    ours, paper = winners(here.entries, "ours"), winners(here.entries, "paper")
    if not ours:
        return ""
    verb = "is" if len(ours) == 1 else "are"
    text = f"{here.column}: {listed(ours)} {verb} best in {in_text(here.about)} here"
    if not paper:
        return f"{text}."
    return (
        f"{text}, as in the paper."
        if set(ours) == set(paper)
        else f"{text}, {listed(paper)} in the paper."
    )


def _count(groups: list[Group]) -> str:
    first = [name for here in groups for name in winners(here.entries, "ours")]
    counts = {name: first.count(name) for name in dict.fromkeys(first)}
    told = [
        f"{name} in {count} of {len(groups)} settings"
        for name, count in sorted(counts.items(), key=lambda item: -item[1])
    ]
    return f"Best in {in_text(groups[0].about)} here: {listed(told)}." if told else ""
