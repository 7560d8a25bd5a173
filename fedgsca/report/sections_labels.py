"""The section of a run with corrected labels: what was changed, and the scores before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedgsca.report.elements import Block, Bullets, Cell, Section, Table, folded
from fedgsca.report.previous_run import earlier, other_differences
from fedgsca.report.run_reader import Run, number
from fedgsca.report.sentences import count, percent, plural, score, signed, wrong_share


def labels_section(run: Run) -> Section | None:
    labels, before = run.setup.get("labels") or {}, earlier(run)
    if not labels and before is None:
        return None
    blocks: list[Block] = []
    pairs = labels.get("review", {}).get("pairs", labels.get("differ")) or []
    if pairs:
        rows: list[list[str | Cell]] = [
            [f"{pair['from']} → {pair['to']}", count(pair["count"])] for pair in pairs
        ]
        blocks.append(folded(Table("Changed labels", ["Old → new", "Labels"], rows)))
    if before is not None and run.result is not None:
        blocks += _compared(run, before)
    return Section("labels", "Corrected labels", _intro(labels, pairs), blocks)


def _intro(labels: Mapping[str, Any], pairs: list[Mapping[str, Any]]) -> str:
    if not labels:
        return ""
    review, changed = labels.get("review"), sum(int(pair["count"]) for pair in pairs)
    if review is None:
        of = count(labels.get("of"))
        return f"Training labels come from {labels['file']}: {count(changed)} of {of} differ from those of the source."
    counts, people = review["counts"], ", ".join(review.get("reviewers", ()))
    text = f"Training labels come from {labels['file']}. {people} looked at {plural(counts['looked_at'], 'label')}: "
    text += f"{count(counts['changed'])} changed, {count(counts['confirmed'])} confirmed"
    open_ones = counts["disputed"] + counts["unsure"]
    return text + (
        f", {count(open_ones)} left as they were because nobody could tell or opinions differ."
        if open_ones
        else "."
    )


def _compared(run: Run, before: Mapping[str, Any]) -> list[Block]:
    result = run.result or {}
    rows = [
        _row(name, before.get(key), result.get(key))
        for key, name in (("f1", "Macro F1"), ("recall", "Recall"), ("precision", "Precision"))
    ]
    old, new = before.get("per_class") or {}, result.get("per_class") or {}
    rows += [
        _row(f"F1 of {name}", (old.get(name) or {}).get("f1"), (new.get(name) or {}).get("f1"))
        for name in run.classes
    ]
    was, now = number(before.get("wrong")), wrong_share(run)
    if was is not None and now is not None:
        rows.append(["Wrong labels", percent(was, 1), percent(now, 1), ""])
    note = "In percent, on the same test images. Macro scores are means of the last five rounds, scores of single classes are of the last."
    blocks: list[Block] = [
        Table(
            f"Before ({before.get('run', 'the audited run')}) and after",
            ["Score", "Before", "After", "Change"],
            rows,
            note=note,
        )
    ]
    others = other_differences(run, before)
    if others:
        blocks.append(
            Bullets(
                others[:12],
                "The runs differ in more than the labels, so the change is not due to them alone",
            )
        )
    return blocks


def _row(name: str, before: Any, after: Any) -> list[str | Cell]:
    old, new = number(before), number(after)
    change = "" if old is None or new is None else signed(new - old, 1)
    return [name, score(old), score(new), change]
