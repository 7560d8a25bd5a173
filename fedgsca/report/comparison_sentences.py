"""A comparison in a few sentences, whoever wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from fedgsca.report.comparison_tables import BASELINE, Row
from fedgsca.report.run_reader import Tree
from fedgsca.report.sentences import listed, plural

OURS = "fedgsca"


def compare_lead(rows: Sequence[Row], compare: Tree) -> list[str]:
    ranked = [row for row in rows if not row.reference and row.f1]
    noises = list(dict.fromkeys(row.noise for row in ranked))
    if not ranked:
        return ["No run is finished yet."]
    labels = list(dict.fromkeys(row.label for row in ranked))
    first = f"{listed(labels)} trained on the same data with the same wrong labels"
    seeds = plural(len({str(cell["seed"]) for cell in compare["cells"]}), "seed")
    what = f"noise {noises[0]}" if len(noises) == 1 else f"{len(noises)} kinds of label noise"
    return [
        f"{first}: {what}, {seeds}.",
        *(_verdict(noise, [row for row in ranked if row.noise == noise]) for noise in noises[:4]),
    ]


def _verdict(noise: str, rows: Sequence[Row]) -> str:
    """Who is best under one noise, and where our method stands beside the baseline: whichever way it went."""
    first = [row for row in rows if "f1" in row.best] or [
        max(rows, key=lambda row: row.f1.mean if row.f1 else 0.0)
    ]
    top = first[0].f1
    assert top is not None  # rows without a score are left out before
    names = Markup(" and ").join(Markup("<strong>{}</strong>").format(row.label) for row in first)
    verb = (
        "is best with"
        if len(rows) > 1 and len(first) == 1
        else "reach"
        if len(first) > 1
        else "reaches"
    )
    text = Markup("Under noise {}, {} {} a macro F1 of <strong>{}&nbsp;%</strong>").format(
        noise, names, verb, top.text()
    )
    subject = "it" if [row.method for row in first] == [OURS] else ""
    return text + _beside_baseline({row.method: row for row in rows}, subject) + "."


def _beside_baseline(rows: Mapping[str, Row], subject: str) -> str:
    ours, base = rows.get(OURS), rows.get(BASELINE)
    if ours is None or base is None or ours.f1 is None or base.f1 is None:
        return ""
    gap = ours.f1.mean - base.f1.mean
    text = f"; {subject or ours.label} stands {abs(gap):.1f} points {'above' if gap >= 0 else 'below'} {base.label}"
    if abs(gap) < max(ours.f1.std or 0.0, base.f1.std or 0.0):
        text += ", which is less than the seeds differ"
    if ours.recovery is None or ours.recovery < 0:
        return text
    return Markup("{} and wins back <strong>{:.2f}</strong> of what the wrong labels cost").format(
        text, ours.recovery
    )
