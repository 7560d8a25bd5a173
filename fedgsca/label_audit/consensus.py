"""What the decisions of one or several reviewers amount to: counts, speed, agreement, and the labels that follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from fedgsca.errors import ConfigError
from fedgsca.label_audit.decisions import ACTIONS, Decision, Decisions

PAUSE = 120.0  # seconds: longer than this on one image is a pause, not work


def pace(decisions: Sequence[Decision]) -> float | None:
    """Images per minute; a coffee break counts as two minutes. None: not known yet."""
    spent = [min(d.seconds, PAUSE) for d in decisions if d.seconds is not None and d.seconds > 0]
    return 60.0 * len(spent) / sum(spent) if spent else None


def cohens_kappa(first: Sequence[str], second: Sequence[str]) -> float | None:
    """Agreement beyond chance: (p_o - p_e) / (1 - p_e). None where chance alone explains everything: no pairs, or one label only."""
    n = len(first)
    if n == 0:
        return None
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    mine, theirs = Counter(first), Counter(second)
    expected = sum(mine[label] * theirs[label] for label in mine) / n**2
    return None if expected == 1 else (observed - expected) / (1 - expected)


def agreement(one: Mapping[int, Decision], other: Mapping[int, Decision]) -> dict[str, Any]:
    """How far two reviewers agree on the labels of the images that both gave a label."""
    both = [row for row in one if row in other]
    told = [row for row in both if one[row].final is not None and other[row].final is not None]
    mine, theirs = [str(one[row].final) for row in told], [str(other[row].final) for row in told]
    return {
        "both": len(both),
        "n": len(told),
        "agree": sum(a == b for a, b in zip(mine, theirs, strict=True)),
        "kappa": cohens_kappa(mine, theirs),
        "conflicts": [
            {
                "row": row,
                "id": one[row].id,
                "given": one[row].given,
                "labels": [one[row].final, other[row].final],
            }
            for row in both
            if one[row].final != other[row].final
        ],
    }


def summarise(decisions: Decisions) -> dict[str, Any]:
    """Per reviewer: decisions by action and by confusion, speed; per pair of reviewers: agreement."""
    views = {name: decisions.of(name) for name in decisions.reviewers()}
    people = {}
    for name, rows in views.items():
        actions = Counter(d.action for d in rows.values())
        moves = Counter((d.given, d.label) for d in rows.values() if d.label is not None)
        spent = [d.seconds for d in rows.values() if d.seconds is not None]
        people[name] = {
            "decided": len(rows),
            "actions": {action: actions[action] for action in ACTIONS},
            "confusions": [
                {"given": a, "label": b, "count": n} for (a, b), n in moves.most_common()
            ],
            "median_seconds": median(spent) if spent else None,
            "per_minute": pace(list(rows.values())),
            "blind": sum(d.blind for d in rows.values()),
        }
    pairs = [
        {"reviewers": [a, b], **agreement(views[a], views[b])} for a, b in combinations(views, 2)
    ]
    return {"reviewers": people, "agreement": pairs, "damaged_lines": decisions.damaged}


@dataclass(frozen=True)
class Consensus:
    """What to do with the labels that were looked at."""

    settled: Mapping[int, tuple[Decision, ...]]  # row -> the decisions that want the same label
    disputed: Mapping[int, tuple[Decision, ...]]  # different labels, or one of several cannot tell
    unsure: Mapping[int, tuple[Decision, ...]]  # nobody could tell


def consensus(decisions: Decisions, *, prefer: str | None = None) -> Consensus:
    """Labels on which all who looked agree. `prefer`: where they do not, this reviewer's label counts."""
    names = decisions.reviewers()
    if prefer is not None and prefer not in names:
        raise ConfigError(
            "todo.consensus-1",
            f"{prefer!r} has decided nothing here",
            fix=f"--prefer one of: {', '.join(names) or 'nobody yet'}",
        )
    views: dict[int, list[Decision]] = {}
    for name in names:
        for row, decision in decisions.of(name).items():
            views.setdefault(row, []).append(decision)
    settled, disputed, unsure = {}, {}, {}
    for row, said in sorted(views.items()):
        wanted = {d.final for d in said}
        own = [d for d in said if d.reviewer == prefer and d.final is not None]
        if wanted == {None}:
            unsure[row] = tuple(said)
        elif len(wanted) == 1 or own:
            settled[row] = tuple(own) if len(wanted) > 1 else tuple(said)
        else:
            disputed[row] = tuple(said)
    return Consensus(settled, disputed, unsure)
