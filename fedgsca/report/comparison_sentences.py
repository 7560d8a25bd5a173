"""A comparison in a few sentences, whichever method wins."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from fedgsca.experiment.records import setting_name
from fedgsca.report.comparison_caution import Lead, find_lead
from fedgsca.report.comparison_tables import BASELINE, ComparisonRow, common_seeds
from fedgsca.report.loaded_comparison import LoadedComparison
from fedgsca.report.run_facts import is_selector_idle
from fedgsca.support.text import join_words, plural

# the method of the paper, which the sentences compare with the baseline
OURS = "fedgsca"
# noises that get a sentence each
_MAX_NOISES = 4


def describe_comparison(comparison: LoadedComparison) -> list[str]:
    """What was compared, and the best method under every noise."""
    rows = [row for row in comparison.rows if not row.reference and row.f1 is not None]
    if not rows:
        return ["No run is finished yet."]
    noises = list(dict.fromkeys(row.noise for row in rows))
    labels = list(dict.fromkeys(row.label for row in rows))
    seeds = plural(len({cell.seed for cell in comparison.cells}), "seed")
    noise_text = f"{len(noises)} kinds of label noise"
    if len(noises) == 1:
        noise_text = f"noise {noises[0]}"
    elif len(comparison.record.variants) > 1:
        num_noises = len(dict.fromkeys(row.noise_spec for row in rows))
        parts = [f"{plural(num_noises, 'kind')} of label noise", *_count_variants(comparison)]
        noise_text = ", ".join(parts)
    first = (
        f"{join_words(labels)} were trained on the same data with the same wrong labels: "
        f"{noise_text}, {seeds}."
    )
    if len(labels) == 1:
        first = f"{labels[0]} was trained with {noise_text} and {seeds}."
    sentences = [first]
    common_rows = [row for row in comparison.common_rows if not row.reference]
    for noise in noises[:_MAX_NOISES]:
        noise_rows = [row for row in common_rows if row.noise == noise]
        if noise_rows:
            sentences.append(_verdict(noise, noise_rows, find_lead(comparison, noise)))
        sentences += seed_sentences(comparison, noise)
    return sentences + idle_sentences(comparison)


def seed_sentences(comparison: LoadedComparison, noise: str) -> list[str]:
    """What the methods are compared over, if some of them have more seeds than others."""
    cells = [cell for cell in comparison.cells if cell.condition == noise]
    seeds = common_seeds(cells)
    if not seeds:
        return [f"Under noise {noise}, no seed has runs of all methods: they are not compared."]
    if all(cell.seed in seeds for cell in cells):
        return []
    names = join_words([str(seed) for seed in sorted(seeds)])
    word = "seed" if len(seeds) == 1 else "seeds"
    return [
        f"Under noise {noise}, some methods have more runs than others: they are compared over"
        f" {word} {names}, and the tables contain all runs."
    ]


def _count_variants(comparison: LoadedComparison) -> list[str]:
    """How many networks, and how many values of every varied setting."""
    record = comparison.record
    counts = [plural(len(record.models), "network")] if record.models else []
    for key, values in (record.vary or {}).items():
        counts.append(f"{plural(len(values), 'value')} of {setting_name(key)}")
    return counts


def idle_sentences(comparison: LoadedComparison) -> list[str]:
    """Methods that never began to select: their scores are those of training on all labels."""
    sentences = []
    for noise in comparison.noises:
        for method, label in comparison.labels.items():
            runs = comparison.find_runs(method, noise)
            num_idle = sum(is_selector_idle(run) for run in runs)
            if num_idle:
                extent = f" in {num_idle} of {len(runs)} runs" if len(runs) > 1 else ""
                sentences.append(
                    f"Under noise {noise}, {label} never began to select labels{extent}: every"
                    " round used all given labels, as FedAvg does. Either no label looked wrong, or"
                    " more rounds are needed to tell."
                )
    return sentences


def _verdict(noise: str, rows: Sequence[ComparisonRow], lead: Lead | None) -> str:
    """The best method under one noise, and FedGSCA compared with the baseline.

    Where the lead may be chance, no method is called the best, and a sentence says why.
    """
    winners = [row for row in rows if "f1" in row.best]
    if not winners:
        winners = [max(rows, key=lambda row: row.f1.mean if row.f1 else 0.0)]
    top = winners[0].f1
    assert top is not None  # rows without a score are left out before
    names = Markup(" and ").join(Markup("<strong>{}</strong>").format(row.label) for row in winners)
    template = "Under noise {}, {} {} a macro F1 of <strong>{}&nbsp;%</strong>"
    verb = "reaches"
    if len(winners) > 1:
        verb = "reach"
    elif len(rows) > 1:
        verb = "is best with"
    caution = "" if lead is None else lead.caution()
    if caution:
        verb = "has the highest score,"
        caution = f" {caution[0].upper()}{caution[1:]}"
    text = Markup(template).format(noise, names, verb, top.text())
    is_ours = [row.method for row in winners] == [OURS]
    return text + _compare_with_baseline(rows, is_subject_clear=is_ours) + "." + caution


def _compare_with_baseline(rows: Sequence[ComparisonRow], *, is_subject_clear: bool) -> str:
    """FedGSCA against FedAvg, as the end of a sentence; empty without both of them."""
    by_method = {row.method: row for row in rows}
    ours, base = by_method.get(OURS), by_method.get(BASELINE)
    if ours is None or base is None or ours.f1 is None or base.f1 is None:
        return ""
    gap = ours.f1.mean - base.f1.mean
    subject = "it" if is_subject_clear else ours.label
    direction = "above" if gap >= 0 else "below"
    text = f"; {subject} is {abs(gap):.1f} points {direction} {base.label}"
    if round(gap, 1) == 0:
        return f"; {ours.label} and {base.label} differ by less than 0.1 points"
    if abs(gap) < max(ours.f1.std or 0.0, base.f1.std or 0.0):
        text += ", which is less than the variation between seeds,"
    if ours.recovery is None or ours.recovery < 0:
        return text.removesuffix(",")
    template = "{} and recovers <strong>{:.2f}</strong> of the loss caused by the wrong labels"
    return Markup(template).format(text, ours.recovery)
